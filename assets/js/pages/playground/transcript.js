// A list of messages that scrolls to its end while a response is streamed, unless the reader has scrolled up.

import { html, useLayoutEffect, useRef, useState } from "../../html.js";
import { Icon } from "../../icons.js";
import { t } from "../../strings.js";

// Pixels from the end that still count as the end.
const TOLERANCE = 40;

/** `turn`: changes when the user sends something, which always scrolls to the end. */
export function Transcript({ busy, turn, children }) {
  const element = useRef();
  const following = useRef(true);
  const [atEnd, setAtEnd] = useState(true);
  const toEnd = () => {
    following.current = true;
    element.current.scrollTop = element.current.scrollHeight;
  };
  // The event may come after the element was removed.
  const onScroll = ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
    following.current = scrollHeight - scrollTop - clientHeight < TOLERANCE;
    setAtEnd(following.current);
  };
  useLayoutEffect(toEnd, [turn]);
  useLayoutEffect(() => {
    if (following.current) toEnd();
  });
  return html`<div class="transcript-area">
    <div class="transcript" ref=${element} onScroll=${onScroll} role="log" aria-label=${t.chat.log} aria-busy=${busy} tabindex="0">${children}</div>
    ${!atEnd && html`<button type="button" class="to-end" onClick=${toEnd}><${Icon} name="down" />${t.chat.toEnd}</button>`}
  </div>`;
}
