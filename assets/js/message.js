// One chat message.

import { html } from "./html.js";
import { number } from "./format.js";
import { t } from "./strings.js";

/** The text of a message: its content, content parts or refusal. */
function textOf({ content, refusal }) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? part.refusal ?? `[${part.type}]`).join("\n");
  return content ?? refusal ?? "";
}

/** `streaming`: the response is still being generated. */
export function Message({ message, streaming }) {
  const { role, tool_calls: calls = [], usage, seconds, finish } = message;
  const notes = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    notes.push(t.chat.tokens(number(usage.prompt_tokens), number(usage.completion_tokens)));
    if (cached) notes.push(t.chat.cached(number(cached)));
    if (seconds > 0 && usage.completion_tokens > 1) notes.push(t.chat.speed(((usage.completion_tokens - 1) / seconds).toFixed(1)));
  }
  if (finish === "length") notes.push(t.chat.maxTokensReached);
  if (finish === "stopped") notes.push(t.chat.stopped);
  return html`<article class=${`message ${role}`}>
    <div class="muted">${t.chat.roles[role] ?? role}${message.name ? ` (${message.name})` : ""}</div>
    <div class=${`multiline ${streaming ? "loading" : ""}`}>${textOf(message) || (streaming ? "…" : "")}</div>
    ${calls.map((call) => html`<div key=${call.id}><span class="muted">${t.chat.toolCall(call.function.name)}</span> <code>${call.function.arguments}</code></div>`)}
    ${notes.length > 0 && html`<div class="muted">${notes.join(" · ")}</div>`}
  </article>`;
}
