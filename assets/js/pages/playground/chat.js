// Chat: streaming, cancellation, tools, agents and conversations.

import { html, useEffect, useRef, useState } from "../../html.js";
import { all, apiPath, get, post, stream } from "../../api.js";
import { fromJson } from "../../json.js";
import { Message } from "../../message.js";
import { session } from "../../session.js";
import { t } from "../../strings.js";
import { TextArea, EmptyState, ErrorAlert, throttle, SelectField, TextField, useAction, useLoad } from "../../ui.js";

const NUMBERS = ["temperature", "top_p", "max_completion_tokens", "seed"];
// Minimum time between two updates of a streamed response.
const UPDATE_MS = 50;
const DEFAULTS = { model: "", agent: "", conversation: "", system: "", format: "text", schema: "", tools: "", tool_choice: "auto", ...Object.fromEntries(NUMBERS.map((name) => [name, ""])) };

/** The request's fields other than the messages. Throws if a field is not valid JSON. */
function parameters(settings, fallback) {
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

/** Adds a chunk to the assistant message received so far. */
function appendChunk(reply, chunk) {
  const next = { ...reply, usage: chunk.usage ?? reply.usage };
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

/** A message with only the fields of the API. Only tool calls may stand without content. */
const toApi = ({ role, content, tool_calls, tool_call_id }) => ({ role, content: content ?? (tool_calls ? null : ""), tool_calls, tool_call_id });

export function Chat({ project, models, initial, showCode }) {
  const preset = Object.fromEntries([initial.slice(0, 2)].filter(([name]) => ["agent", "conversation"].includes(name)));
  const [settings, setSettings] = useState({ ...DEFAULTS, model: preset.agent ? "" : models[0].id, ...preset });
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState("");
  const [partial, setPartial] = useState(null);
  const abort = useRef(null);
  const canManage = session.hasScope("project");
  const [agents] = useLoad(async () => (canManage ? all("/agents", { project_id: project.id }) : []), [project.id]);
  const [conversations, , reloadConversations] = useLoad(async () => (canManage ? (await get("/conversations", { project_id: project.id, limit: 100 })).data : []), [project.id]);
  const set = (name) => (value) => setSettings((settings) => ({ ...settings, [name]: value }));

  // Messages of the conversation are shown, but not sent again.
  const [selectConversation, , conversationError] = useAction(async (id) => {
    setMessages([]);
    set("conversation")(id);
    if (id && id !== "new") setMessages((await get(apiPath`/conversations/${id}`)).messages.map((message) => ({ ...message, stored: true })));
  });
  useEffect(() => {
    if (preset.conversation) selectConversation(preset.conversation);
    return () => abort.current?.abort();
  }, []);

  /** The request body for messages that the server does not store yet. */
  const request = (unsent, conversation) => {
    const instructions = settings.system.trim() && !messages.some((message) => message.stored) ? [{ role: "system", content: settings.system }] : [];
    return { ...parameters(settings, models[0].id), conversation_id: conversation || undefined, messages: [...instructions, ...unsent.map(toApi)], stream: true, stream_options: { include_usage: true } };
  };

  const [send, busy, error, clearError] = useAction(async (added) => {
    const all = [...messages, ...added];
    const isNew = settings.conversation === "new";
    const conversation = isNew ? "" : settings.conversation;
    // Validates the settings before the messages are shown as sent.
    const body = request(conversation ? all.filter((message) => !message.stored) : all, conversation);
    setMessages(all);
    setText("");
    abort.current = new AbortController();
    const started = performance.now();
    let [reply, firstChunk] = [{ role: "assistant" }, null];
    const show = throttle(UPDATE_MS, setPartial);
    try {
      for await (const { data } of stream("/chat/completions", body, abort.current.signal)) {
        firstChunk ??= performance.now();
        reply = appendChunk(reply, data);
        show(reply);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") {
        setMessages(messages);
        setText(added.findLast((message) => message.role === "user")?.content ?? "");
        throw problem;
      }
      reply = { ...reply, finish: "stopped" };
    } finally {
      show.cancel();
      setPartial(null);
    }
    const seconds = (performance.now() - (firstChunk ?? started)) / 1000;
    const showTurn = (stored) => setMessages([...all.map((message) => ({ ...message, stored: message.stored || stored })), { ...reply, stored, seconds }]);
    // The server stores a turn when the response completes. It does not store a stopped one.
    const complete = reply.finish !== "stopped";
    showTurn(complete && Boolean(conversation));
    if (complete && isNew) {
      // Created with its first complete turn, so that a failed attempt leaves no empty conversation.
      const created = await post("/conversations", { project_id: project.id, messages: [...body.messages, toApi(reply)] });
      showTurn(true);
      set("conversation")(created.id);
      await reloadConversations();
    }
  });

  const last = messages.at(-1);
  const calls = !partial && last?.role === "assistant" ? (last.tool_calls ?? []) : [];
  const sendText = () => text.trim() && !busy && send([{ role: "user", content: text }]);
  const clearChat = () => {
    clearError();
    setMessages([]);
    setSettings((settings) => ({ ...settings, conversation: "" }));
  };
  const [viewCode, , codeError] = useAction(async () => {
    const unsent = settings.conversation ? [] : messages;
    const added = text.trim() || !unsent.length ? [{ role: "user", content: text || "Hello!" }] : [];
    const conversation = settings.conversation === "new" ? "" : settings.conversation;
    showCode({ call: "chat.completions", path: "/v1/chat/completions", body: { ...request([...unsent, ...added], conversation), stream_options: undefined } });
  });
  return html`<div class="playground">
    <div>
      ${!messages.length && !partial && html`<${EmptyState} title=${t.chat.empty}><p>${t.chat.emptyHint}</p><//>`}
      <div class="message-list" role="log" aria-label=${t.chat.log} aria-busy=${Boolean(partial)}>
        ${messages.map((message, index) => html`<${Message} key=${index} message=${message} />`)}
        ${busy && last?.role !== "assistant" && html`<${Message} message=${partial ?? { role: "assistant" }} streaming />`}
      </div>
      <${ErrorAlert} error=${error ?? conversationError ?? codeError} />
      ${calls.length ? html`<${ToolResults} key=${messages.length} calls=${calls} submit=${(results) => send(results)} busy=${busy} />` : html`<${Composer} ...${{ text, setText, send: sendText, busy }} />`}
      <div class="actions">
        ${busy
          ? html`<button type="button" class="danger" onClick=${() => abort.current?.abort()}>${t.chat.stop}</button>`
          : !calls.length && html`<button type="button" class="primary" disabled=${!text.trim()} onClick=${sendText}>${t.chat.send}</button>`}
        <button type="button" disabled=${busy || !messages.length} onClick=${clearChat}>${t.chat.clear}</button>
        <button type="button" onClick=${viewCode}>${t.playground.viewCode}</button>
      </div>
    </div>
    <${Settings} ...${{ settings, set, models, agents, conversations, canManage, busy, selectConversation }} />
  </div>`;
}

function Composer({ text, setText, send, busy }) {
  const sendOnEnter = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<${TextArea} label=${t.chat.message} hint=${t.chat.messageHint} value=${text} onInput=${setText} onKeyDown=${sendOnEnter} rows="3" disabled=${busy} />`;
}

/** A form for tool results. The user plays the role of the application. */
function ToolResults({ calls, submit, busy }) {
  const [results, setResults] = useState({});
  const onSubmit = (event) => {
    event.preventDefault();
    submit(calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: results[id] ?? "" })));
  };
  return html`<form class="card" onSubmit=${onSubmit}>
    ${calls.map((call) => html`<${TextArea} key=${call.id} class="code" label=${t.chat.toolResult(call.function.name)} value=${results[call.id] ?? ""} rows="2"
      onInput=${(value) => setResults({ ...results, [call.id]: value })} />`)}
    <button class="primary" disabled=${busy}>${t.chat.submitResults}</button>
  </form>`;
}

function Settings({ settings, set, models, agents, conversations, canManage, busy, selectConversation }) {
  const modelOptions = models.map((model) => [model.id, model.id]);
  const agent = agents?.find((one) => one.id === settings.agent);
  const toOption = (agent) => [agent.id, agent.name ?? agent.id];
  const ranges = { temperature: { min: 0, max: 2, step: "any" }, top_p: { min: 0, max: 1, step: "any" }, max_completion_tokens: { min: 1 }, seed: {} };
  const chooseAgent = (id) => {
    set("agent")(id);
    set("model")(id && agents.find((one) => one.id === id)?.model ? "" : settings.model || models[0].id);
  };
  const listed = conversations?.map((one) => [one.id, one.preview ?? one.id]) ?? [];
  const isListed = !settings.conversation || settings.conversation === "new" || listed.some(([id]) => id === settings.conversation);
  return html`<section class="card" aria-label=${t.chat.settings}>
    <${SelectField} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${agent?.model ? [["", t.chat.agentModel], ...modelOptions] : modelOptions} />
    ${agents?.length > 0 && html`<${SelectField} label=${t.chat.agent} value=${settings.agent} onInput=${chooseAgent} options=${[["", t.chat.noAgent], ...agents.map(toOption)]} />`}
    ${canManage && html`<${SelectField} label=${t.chat.conversation} value=${settings.conversation} onInput=${selectConversation} disabled=${busy}
      options=${[["", t.chat.noConversation], ["new", t.chat.newConversation], ...(isListed ? [] : [[settings.conversation, settings.conversation]]), ...listed]} />`}
    <${TextArea} label=${t.chat.system} value=${settings.system} onInput=${set("system")} rows="2" />
    <div class="two-columns">${NUMBERS.map((name) => html`<${TextField} key=${name} label=${t.chat[name]} type="number" ...${ranges[name]} value=${settings[name]} onInput=${set(name)} placeholder=${t.chat.default} />`)}</div>
    <${SelectField} label=${t.chat.format} value=${settings.format} onInput=${set("format")} options=${Object.entries(t.chat.formats)} />
    ${settings.format === "json_schema" && html`<${TextArea} class="code" label=${t.chat.schema} value=${settings.schema} onInput=${set("schema")} rows="5" spellcheck="false"
      placeholder=${'{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'} />`}
    <${TextArea} class="code" label=${t.chat.tools} hint=${t.toolsHint} value=${settings.tools} onInput=${set("tools")} rows="2" spellcheck="false" />
    ${(settings.tools.trim() || agent?.tools?.length > 0) && html`<${SelectField} label=${t.chat.tool_choice} value=${settings.tool_choice} onInput=${set("tool_choice")} options=${Object.entries(t.chat.toolChoices)} />`}
  </section>`;
}
