// One chat message.

import { html } from "./html.js";
import { number } from "./format.js";
import { Markdown } from "./markdown.js";
import { t } from "./strings.js";
import { CodeBlock } from "./ui.js";

/** The text of a message: its content, content parts or refusal. */
export function textOf({ content, refusal }) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? part.refusal ?? `[${part.type}]`).join("\n");
  return content ?? refusal ?? "";
}

/**
 * Separates the reasoning of a model from its answer: `{reasoning, answer}`. Some models write it between `<think>` tags; others
 * have the opening tag in their template, so that the text contains only the closing one.
 */
export function splitReasoning(message) {
  const text = textOf(message);
  const reasoning = message.reasoning_content ?? message.reasoning ?? "";
  const opened = /^\s*<think>/.exec(text)?.[0].length ?? 0;
  const close = text.indexOf("</think>");
  if (!opened && close < 0) return { reasoning, answer: text };
  if (close < 0) return { reasoning: reasoning + text.slice(opened), answer: "" };
  return { reasoning: reasoning + text.slice(opened, close).trim(), answer: text.slice(close + "</think>".length).trimStart() };
}

const Reasoning = ({ text, unfinished }) => html`<details class="reasoning">
  <summary class=${unfinished ? "loading" : ""}>${unfinished ? t.chat.thinking : t.chat.reasoning}</summary>
  <div class="multiline">${text}</div>
</details>`;

/** An answer of the model: JSON as a code block, anything else as Markdown. */
const Answer = ({ text, growing }) => (text.trimStart().startsWith("{") ? html`<${CodeBlock} text=${text} language="json" label=${t.chat.codeBlock("json")} />` : html`<${Markdown} text=${text} growing=${growing} />`);

/** The token counts and the speed of a response. */
function notesOf({ usage, seconds, finish }) {
  const notes = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    notes.push(t.chat.tokens(number(usage.prompt_tokens), number(usage.completion_tokens)));
    if (cached) notes.push(t.chat.cached(number(cached)));
    if (seconds > 0 && usage.completion_tokens > 1) notes.push(t.chat.speed(((usage.completion_tokens - 1) / seconds).toFixed(1)));
  }
  if (finish === "length") notes.push(t.chat.maxTokensReached);
  if (finish === "stopped") notes.push(t.chat.stopped);
  return notes;
}

/** `streaming`: the response is still being generated. `actions`: buttons below the message. `label`: shown in place of the role. */
export function Message({ message, streaming, actions, label }) {
  const { role, tool_calls: calls = [] } = message;
  const notes = notesOf(message);
  const isAnswer = role === "assistant";
  const { reasoning, answer } = isAnswer ? splitReasoning(message) : { answer: textOf(message) };
  return html`<article class=${`message ${role}`}>
    <div class="role">${label ?? t.chat.roles[role] ?? role}${message.name ? ` (${message.name})` : ""}</div>
    ${reasoning && html`<${Reasoning} text=${reasoning} unfinished=${streaming && !answer} />`}
    <div class=${`content ${isAnswer ? "" : "multiline"} ${streaming ? "loading" : ""}`}>
      ${isAnswer && answer ? html`<${Answer} text=${answer} growing=${streaming} />` : answer || (streaming && !reasoning ? "…" : "")}
    </div>
    ${calls.map((call) => html`<div class="tool-call" key=${call.id}><span class="muted">${t.chat.toolCall(call.function.name)}</span> <code>${call.function.arguments}</code></div>`)}
    ${(notes.length > 0 || actions) && html`<div class="message-footer">${actions}${notes.length > 0 && html`<span class="muted">${notes.join(" · ")}</span>`}</div>`}
  </article>`;
}
