// The field for a message, with the button that sends it or stops the response.

import { html } from "../../html.js";
import { Icon } from "../../icons.js";
import { t } from "../../strings.js";

export function Composer({ text, setText, send, stop, busy, placeholder = t.chat.messagePlaceholder }) {
  const sendOnEnter = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<div class="composer">
    <label for="composer" class="visually-hidden">${t.chat.message}</label>
    <textarea id="composer" rows="1" value=${text} placeholder=${placeholder} onInput=${(event) => setText(event.target.value)} onKeyDown=${sendOnEnter}></textarea>
    ${busy
      ? html`<button key="stop" type="button" class="danger" onClick=${stop}><${Icon} name="stop" />${t.chat.stop}</button>`
      : html`<button key="send" type="button" class="primary" disabled=${!text.trim()} onClick=${send}><${Icon} name="send" />${t.chat.send}</button>`}
  </div>`;
}
