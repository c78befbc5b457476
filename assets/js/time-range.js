// The choice of a time range.

import { html, useState } from "./html.js";
import { toTime } from "./format.js";
import { t } from "./strings.js";
import { SelectField, TextField } from "./ui.js";

const HOUR = 3_600_000;
/** Milliseconds of each range with a fixed length. */
export const LENGTHS = { hour: HOUR, day: 24 * HOUR, week: 168 * HOUR, month: 720 * HOUR };

/** The state of a time range: its name, and the limits of a custom one as local times. */
export const useTimeRange = (initial) => useState({ name: initial, from: "", to: "" });

/** The limits of a range as `{start_time, end_time}`; either is absent if it is open. */
export function limitsOf({ name, from, to }, now = Date.now()) {
  if (name === "custom") return { start_time: toTime(from), end_time: toTime(to) };
  return LENGTHS[name] ? { start_time: new Date(now - LENGTHS[name]).toISOString() } : {};
}

export function TimeRangeFields({ range, setRange, names }) {
  const set = (name) => (value) => setRange((range) => ({ ...range, [name]: value }));
  return html`<${SelectField} label=${t.timeRange} value=${range.name} onInput=${set("name")} options=${names.map((name) => [name, t.timeRanges[name]])} />
    ${range.name === "custom" && html`<${TextField} label=${t.from} type="datetime-local" value=${range.from} onInput=${set("from")} />
      <${TextField} label=${t.to} type="datetime-local" value=${range.to} onInput=${set("to")} />`}`;
}
