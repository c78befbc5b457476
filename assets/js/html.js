// Preact, its hooks, and htm for markup without a compile step.

import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { Fragment, h, render } from "../vendor/preact.js";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";

export const html = htm.bind(h);
