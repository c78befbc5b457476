// A message of a chat, as it is shown.

import { html } from "./html.js";
import { number } from "./format.js";
import { t } from "./strings.js";

/** The text of a message's content, or of its parts. */
function contentOf({ content, refusal }) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? part.refusal ?? `[${part.type}]`).join("\n");
  return content ?? refusal ?? "";
}

/** `growing`: the answer is still being generated. */
export function Said({ message, growing }) {
  const { role, tool_calls: calls = [], usage, spent, finish } = message;
  const notes = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    notes.push(t.chat.tokens(number(usage.prompt_tokens), number(usage.completion_tokens)));
    if (cached) notes.push(t.chat.cached(number(cached)));
    if (spent > 0 && usage.completion_tokens > 1) notes.push(t.chat.speed(((usage.completion_tokens - 1) / spent).toFixed(1)));
  }
  if (finish === "length") notes.push(t.chat.maxTokensReached);
  if (finish === "stopped") notes.push(t.chat.stopped);
  return html`<article class=${`said ${role}`}>
    <div class="dim">${t.chat.roles[role] ?? role}${message.name ? ` (${message.name})` : ""}</div>
    <div class=${`words ${growing ? "waiting" : ""}`}>${contentOf(message) || (growing ? "…" : "")}</div>
    ${calls.map((call) => html`<div key=${call.id}><span class="dim">${t.chat.toolCall(call.function.name)}</span> <code>${call.function.arguments}</code></div>`)}
    ${notes.length > 0 && html`<div class="dim">${notes.join(" · ")}</div>`}
  </article>`;
}
