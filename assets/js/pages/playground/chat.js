// A chat with a model: streamed, stopped, with tools, agents and conversations.

import { html, useEffect, useRef, useState } from "../../html.js";
import { all, get, post, stream } from "../../api.js";
import { fromJson } from "../../json.js";
import { Said } from "../../messages.js";
import { session } from "../../session.js";
import { t } from "../../strings.js";
import { Area, Empty, Failure, paced, Select, Text, useAction, useLoad } from "../../ui.js";

const NUMBERS = ["temperature", "top_p", "max_completion_tokens", "seed"];
// Milliseconds between two looks at an answer that grows.
const FRAME = 50;
const START = { model: "", agent: "", conversation: "", system: "", format: "text", schema: "", tools: "", tool_choice: "auto", ...Object.fromEntries(NUMBERS.map((name) => [name, ""])) };

/** The request's fields beside the messages. Throws where a field is no JSON. */
function fields(settings, fallback) {
  const body = { model: settings.model || (settings.agent ? undefined : fallback) };
  if (settings.agent) body.agent_id = settings.agent;
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: fromJson(t.chat.schema, settings.schema) ?? {} } };
  }
  if (settings.tools.trim()) body.tools = fromJson(t.chat.tools, settings.tools);
  if (settings.tool_choice !== "auto") body.tool_choice = settings.tool_choice;
  return body;
}

/** Adds what a chunk tells to the answer so far. */
function grow(answer, chunk) {
  const next = { ...answer, usage: chunk.usage ?? answer.usage };
  const choice = chunk.choices[0];
  if (!choice) return next;
  if (choice.delta.content) next.content = (next.content ?? "") + choice.delta.content;
  for (const part of choice.delta.tool_calls ?? []) {
    const calls = [...(next.tool_calls ?? [])];
    const call = calls[part.index] ?? { id: part.id, type: "function", function: { name: part.function.name, arguments: "" } };
    calls[part.index] = { ...call, function: { ...call.function, arguments: call.function.arguments + (part.function.arguments ?? "") } };
    next.tool_calls = calls;
  }
  next.finish = choice.finish_reason ?? next.finish;
  return next;
}

/** A message as the API takes it: what only the page knows is left out. */
const bare = ({ role, content, tool_calls, tool_call_id }) => ({ role, content: content ?? null, tool_calls, tool_call_id });

export function Chat({ project, models, begin, show }) {
  const started = Object.fromEntries([begin.slice(0, 2)].filter(([name]) => ["agent", "conversation"].includes(name)));
  const [settings, setSettings] = useState({ ...START, model: started.agent ? "" : models[0].id, ...started });
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState("");
  const [partial, setPartial] = useState(null);
  const stop = useRef(null);
  const manages = session.may("project");
  const [agents] = useLoad(async () => (manages ? all("/agents", { project_id: project.id }) : []), [project.id]);
  const [talks, , lookAgain] = useLoad(async () => (manages ? (await get("/conversations", { project_id: project.id, limit: 100 })).data : []), [project.id]);
  const set = (name) => (value) => setSettings((before) => ({ ...before, [name]: value }));

  // What a conversation holds already is shown, and not sent again.
  const [recall, , unread] = useAction(async (id) => {
    setMessages([]);
    set("conversation")(id);
    if (id && id !== "new") setMessages((await get(`/conversations/${id}`)).messages.map((message) => ({ ...message, kept: true })));
  });
  useEffect(() => {
    if (started.conversation) recall(started.conversation);
    return () => stop.current?.abort();
  }, []);

  /** The request for messages that are not kept by the server. */
  const request = (fresh, conversation) => {
    const instructions = settings.system.trim() && !messages.some((message) => message.kept) ? [{ role: "system", content: settings.system }] : [];
    return { ...fields(settings, models[0].id), conversation_id: conversation || undefined, messages: [...instructions, ...fresh.map(bare)], stream: true, stream_options: { include_usage: true } };
  };

  const [ask, busy, error, clear] = useAction(async (added) => {
    const all = [...messages, ...added];
    // Checked before anything is shown as sent.
    request(added, "");
    let { conversation } = settings;
    if (conversation === "new") {
      conversation = (await post("/conversations", { project_id: project.id, messages: [] })).id;
      await lookAgain();
    }
    setMessages(all);
    setText("");
    stop.current = new AbortController();
    const began = performance.now();
    let [answer, first] = [{ role: "assistant" }, null];
    const show = paced(FRAME, setPartial);
    try {
      const fresh = conversation ? all.filter((message) => !message.kept) : all;
      for await (const { data } of stream("/chat/completions", request(fresh, conversation), stop.current.signal)) {
        first ??= performance.now();
        answer = grow(answer, data);
        show(answer);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") {
        setMessages(messages);
        setText(added.findLast((message) => message.role === "user")?.content ?? "");
        throw problem;
      }
      answer = { ...answer, finish: "stopped" };
    } finally {
      show.stop();
      setPartial(null);
    }
    // The conversation has the turn when the answer has ended well; one that was stopped is kept by nobody.
    const kept = Boolean(conversation) && answer.finish !== "stopped";
    const spent = (performance.now() - (first ?? began)) / 1000;
    setMessages([...all.map((message) => ({ ...message, kept: message.kept || kept })), { ...answer, kept, spent }]);
    if (conversation !== settings.conversation) set("conversation")(conversation);
  });

  const last = messages.at(-1);
  const calls = !partial && last?.role === "assistant" ? (last.tool_calls ?? []) : [];
  const say = () => text.trim() && !busy && ask([{ role: "user", content: text }]);
  const startOver = () => {
    clear();
    setMessages([]);
    setSettings((before) => ({ ...before, conversation: "" }));
  };
  const [copy, , wrong] = useAction(async () => {
    const fresh = settings.conversation ? [] : messages;
    const added = text.trim() || !fresh.length ? [{ role: "user", content: text || "Hello!" }] : [];
    const conversation = settings.conversation === "new" ? "" : settings.conversation;
    show({ call: "chat.completions", path: "/v1/chat/completions", body: { ...request([...fresh, ...added], conversation), stream_options: undefined } });
  });
  return html`<div class="bench">
    <div>
      ${!messages.length && !partial && html`<${Empty} title=${t.chat.empty}><p>${t.chat.emptyHint}</p><//>`}
      <div class="talk" role="log" aria-label=${t.chat.log} aria-busy=${Boolean(partial)}>
        ${messages.map((message, at) => html`<${Said} key=${at} message=${message} />`)}
        ${busy && html`<${Said} message=${partial ?? { role: "assistant" }} growing />`}
      </div>
      <${Failure} error=${error ?? unread ?? wrong} />
      ${calls.length ? html`<${Results} key=${messages.length} calls=${calls} give=${(results) => ask(results)} busy=${busy} />` : html`<${Composer} ...${{ text, setText, say, busy }} />`}
      <div class="actions">
        ${busy
          ? html`<button type="button" class="danger" onClick=${() => stop.current?.abort()}>${t.chat.stop}</button>`
          : !calls.length && html`<button type="button" class="first" disabled=${!text.trim()} onClick=${say}>${t.chat.send}</button>`}
        <button type="button" disabled=${busy || !messages.length} onClick=${startOver}>${t.chat.clear}</button>
        <button type="button" onClick=${copy}>${t.playground.viewCode}</button>
      </div>
    </div>
    <${Settings} ...${{ settings, set, models, agents, talks, manages, busy, recall }} />
  </div>`;
}

function Composer({ text, setText, say, busy }) {
  const send = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  };
  return html`<${Area} label=${t.chat.message} hint=${t.chat.messageHint} value=${text} onInput=${setText} onKeyDown=${send} rows="3" disabled=${busy} />`;
}

/** What the called tools give: typed in by the user, who stands for the application. */
function Results({ calls, give, busy }) {
  const [results, setResults] = useState({});
  const submit = (event) => {
    event.preventDefault();
    give(calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: results[id] ?? "" })));
  };
  return html`<form class="card" onSubmit=${submit}>
    ${calls.map((call) => html`<${Area} key=${call.id} class="code" label=${t.chat.toolResult(call.function.name)} value=${results[call.id] ?? ""} rows="2"
      onInput=${(value) => setResults({ ...results, [call.id]: value })} />`)}
    <button class="first" disabled=${busy}>${t.chat.submitResults}</button>
  </form>`;
}

function Settings({ settings, set, models, agents, talks, manages, busy, recall }) {
  const names = models.map((model) => [model.id, model.id]);
  const agent = agents?.find((one) => one.id === settings.agent);
  const named = (one) => [one.id, one.name ?? one.id];
  const ranges = { temperature: { min: 0, max: 2, step: "any" }, top_p: { min: 0, max: 1, step: "any" }, max_completion_tokens: { min: 1 }, seed: {} };
  const chooseAgent = (id) => {
    set("agent")(id);
    set("model")(id && agents.find((one) => one.id === id)?.model ? "" : settings.model || models[0].id);
  };
  const listed = talks?.map((one) => [one.id, one.preview ?? one.id]) ?? [];
  const known = !settings.conversation || settings.conversation === "new" || listed.some(([id]) => id === settings.conversation);
  return html`<section class="card" aria-label=${t.chat.settings}>
    <${Select} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${agent?.model ? [["", t.chat.agentModel], ...names] : names} />
    ${agents?.length > 0 && html`<${Select} label=${t.chat.agent} value=${settings.agent} onInput=${chooseAgent} options=${[["", t.chat.noAgent], ...agents.map(named)]} />`}
    ${manages && html`<${Select} label=${t.chat.conversation} value=${settings.conversation} onInput=${recall} disabled=${busy}
      options=${[["", t.chat.noConversation], ["new", t.chat.newConversation], ...(known ? [] : [[settings.conversation, settings.conversation]]), ...listed]} />`}
    <${Area} label=${t.chat.system} value=${settings.system} onInput=${set("system")} rows="2" />
    <div class="pairs">${NUMBERS.map((name) => html`<${Text} key=${name} label=${t.chat[name]} type="number" ...${ranges[name]} value=${settings[name]} onInput=${set(name)} placeholder=${t.chat.default} />`)}</div>
    <${Select} label=${t.chat.format} value=${settings.format} onInput=${set("format")} options=${Object.entries(t.chat.formats)} />
    ${settings.format === "json_schema" && html`<${Area} class="code" label=${t.chat.schema} value=${settings.schema} onInput=${set("schema")} rows="5" spellcheck="false"
      placeholder=${'{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'} />`}
    <${Area} class="code" label=${t.chat.tools} hint=${t.toolsHint} value=${settings.tools} onInput=${set("tools")} rows="2" spellcheck="false" />
    ${(settings.tools.trim() || agent?.tools?.length > 0) && html`<${Select} label=${t.chat.tool_choice} value=${settings.tool_choice} onInput=${set("tool_choice")} options=${Object.entries(t.chat.toolChoices)} />`}
  </section>`;
}
