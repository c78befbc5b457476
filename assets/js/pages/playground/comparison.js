// Two models side by side: each message goes to both, with the same settings.

import { html, useEffect, useRef, useState } from "../../html.js";
import { Icon } from "../../icons.js";
import { Message } from "../../message.js";
import { t } from "../../strings.js";
import { EmptyState, ErrorAlert, useAction } from "../../ui.js";
import { DEFAULTS, parameters, streamReply, toApi } from "./chat-request.js";
import { Settings } from "./chat-settings.js";
import { Composer } from "./composer.js";
import { Transcript } from "./transcript.js";

const MAX_SEED = 2 ** 31;

/** The address of the playground with two models side by side. */
export const comparisonHash = (model, other) => `#/playground/chat/model/${encodeURIComponent(model)}/compare/${encodeURIComponent(other)}`;

/** `preset`: the settings to begin with; its `compare` is the second model. */
export function Comparison({ models, preset }) {
  const [settings, setSettings] = useState({ ...DEFAULTS, model: models[0].id, ...preset });
  const [turns, setTurns] = useState([]);
  const [text, setText] = useState("");
  const abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const set = (name) => (value) => setSettings((settings) => ({ ...settings, [name]: value }));
  const pair = [settings.model, settings.compare];
  const baseOf = (id) => models.find((model) => model.id === id)?.base_model;
  const labelOf = (side) => (baseOf(pair[side]) === pair[1 - side] ? t.chat.fineTuned : baseOf(pair[1 - side]) === pair[side] ? t.chat.baseModel : t.chat.comparisonModel(side + 1));

  const setAnswer = (at, side, answer) => setTurns((turns) => turns.map((turn, index) => (index === at ? { ...turn, answers: turn.answers.map((old, other) => (other === side ? answer : old)) } : turn)));
  /** What a model was asked and has answered so far. */
  const historyOf = (side) => turns.filter(({ answers }) => !answers[side].error).flatMap(({ question, answers }) => [question, answers[side]]);

  const [send, busy, error] = useAction(async () => {
    const shared = { seed: Math.floor(Math.random() * MAX_SEED), ...parameters(settings) };
    const instructions = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    const question = { role: "user", content: text };
    const titles = pair.map((model, side) => ({ role: "assistant", model, label: labelOf(side) }));
    setText("");
    setTurns([...turns, { question, answers: titles.map((title) => ({ ...title, streaming: true })) }]);
    abort.current = new AbortController();
    await Promise.all(titles.map(async (title, side) => {
      const show = (answer) => setAnswer(turns.length, side, { ...title, ...answer });
      const body = { ...shared, model: title.model, messages: [...instructions, ...historyOf(side), question].map(toApi) };
      try {
        show(await streamReply(body, abort.current.signal, (reply) => show({ ...reply, streaming: true })));
      } catch (error) {
        show({ error });
      }
    }));
  });
  const selectOther = (id) => {
    if (id) set("compare")(id);
    else location.hash = `#/playground/chat/model/${encodeURIComponent(settings.model)}`;
  };
  return html`<div class="chat comparison">
    <div class="chat-main">
      <${Transcript} busy=${busy} turn=${turns.length}>
        ${!turns.length && html`<${EmptyState} title=${t.chat.emptyComparison}><p>${t.chat.emptyComparisonHint}</p>
          <ul class="pair">${pair.map((model, side) => html`<li key=${side}><strong>${labelOf(side)}</strong> <code>${model}</code></li>`)}</ul><//>`}
        <div class="message-list">${turns.map(({ question, answers }, at) => html`
          <${Message} key=${`question ${at}`} message=${question} />
          <div key=${`answers ${at}`} class="answers">${answers.map((answer, side) => html`<${Answer} key=${side} answer=${answer} />`)}</div>`)}</div>
      <//>
      <${ErrorAlert} error=${error} />
      <${Composer} placeholder=${t.chat.comparisonPlaceholder} ...${{ text, setText, busy }} send=${() => text.trim() && !busy && send()} stop=${() => abort.current?.abort()} />
      <div class="actions chat-actions">
        <button type="button" class="text-button" disabled=${busy || !turns.length} onClick=${() => setTurns([])}><${Icon} name="plus" />${t.chat.clear}</button>
        <span class="muted hint">${t.chat.messageHint}</span>
      </div>
    </div>
    <${Settings} ...${{ settings, set, models, busy }} other=${settings.compare} selectOther=${selectOther} />
  </div>`;
}

function Answer({ answer: { label, model, error, streaming, ...message } }) {
  const title = html`${label} <code>${model}</code>`;
  return html`<section class="answer" aria-label=${`${label} ${model}`}>
    ${error ? html`<div class="role">${title}</div><${ErrorAlert} error=${error} />` : html`<${Message} message=${message} label=${title} streaming=${streaming} />`}
  </section>`;
}
