// Chat: streaming, cancellation, regeneration, tools, agents and conversations.

import { html, useEffect, useRef, useState } from "../../html.js";
import { all, apiPath, get, post, put } from "../../api.js";
import { Icon } from "../../icons.js";
import { Message, splitReasoning } from "../../message.js";
import { session } from "../../session.js";
import { t } from "../../strings.js";
import { CopyButton, EmptyState, ErrorAlert, TextArea, useAction, useLoad } from "../../ui.js";
import { DEFAULTS, parameters, streamReply, toApi } from "./chat-request.js";
import { Settings } from "./chat-settings.js";
import { comparisonHash } from "./comparison.js";
import { Composer } from "./composer.js";
import { Transcript } from "./transcript.js";

/** `preset`: the settings to begin with. */
export function Chat({ project, models, preset, showCode }) {
  const [settings, setSettings] = useState({ ...DEFAULTS, model: preset.agent ? "" : models[0].id, ...preset });
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState("");
  const [partial, setPartial] = useState({ role: "assistant" });
  const [turn, setTurn] = useState(0);
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
    return { ...parameters(settings, models[0].id), conversation_id: conversation || undefined, messages: [...instructions, ...unsent.map(toApi)] };
  };

  /** Streams a response and returns it; its `finish` is `stopped` if the user stops it. */
  async function generate(body) {
    abort.current = new AbortController();
    setTurn((turn) => turn + 1);
    setPartial({ role: "assistant" });
    return streamReply(body, abort.current.signal, setPartial);
  }

  /** Sends `added` after the messages `kept`. */
  async function complete(kept, added) {
    const all = [...kept, ...added];
    const isNew = settings.conversation === "new";
    const conversation = isNew ? "" : settings.conversation;
    // Validates the settings before the messages are shown as sent.
    const body = request(conversation ? all.filter((message) => !message.stored) : all, conversation);
    setMessages(all);
    const question = added.findLast((message) => message.role === "user");
    if (question) setText("");
    const reply = await generate(body).catch((problem) => {
      setMessages(messages);
      if (question) setText(question.content);
      throw problem;
    });
    const showTurn = (stored) => setMessages([...all.map((message) => ({ ...message, stored: message.stored || stored })), { ...reply, stored }]);
    // The server stores a turn when the response completes. It does not store a stopped one.
    const isComplete = reply.finish !== "stopped";
    showTurn(isComplete && Boolean(conversation));
    if (isComplete && isNew) {
      // Created with its first complete turn, so that a failed attempt leaves no empty conversation.
      const created = await post("/conversations", { project_id: project.id, messages: [...body.messages, toApi(reply)] });
      showTurn(true);
      set("conversation")(created.id);
      await reloadConversations();
    }
  }

  /** Replaces the last message of the conversation by a new response. Without a complete one, the conversation stays as it is. */
  async function replaceStored() {
    const path = apiPath`/conversations/${settings.conversation}`;
    const { messages: stored, metadata, version } = await get(path);
    // Another client may have added a turn, which must not be replaced.
    if ((stored.at(-1)?.content ?? "") !== (messages.at(-1).content ?? "")) throw new Error(t.chat.changed);
    const kept = stored.slice(0, -1);
    const body = { ...parameters(settings, models[0].id), messages: kept };
    setMessages(kept.map((message) => ({ ...message, stored: true })));
    try {
      const reply = await generate(body);
      if (reply.finish === "stopped") return setMessages(messages);
      await put(path, { messages: [...kept, toApi(reply)], metadata: metadata ?? undefined, version });
      setMessages([...kept, reply].map((message) => ({ ...message, stored: true })));
    } catch (problem) {
      setMessages(messages);
      throw problem;
    }
  }

  const [send, sending, sendError, clearSendError] = useAction((added) => complete(messages, added));
  const [regenerate, regenerating, regenerateError, clearRegenerateError] = useAction(() => (messages.at(-1).stored ? replaceStored() : complete(messages.slice(0, -1), [])));
  const busy = sending || regenerating;
  const last = messages.at(-1);
  const calls = !busy && last?.role === "assistant" ? (last.tool_calls ?? []) : [];
  const clearErrors = () => {
    clearSendError();
    clearRegenerateError();
  };
  const sendText = () => {
    if (!text.trim() || busy) return;
    clearErrors();
    send([{ role: "user", content: text }]);
  };
  const clearChat = () => {
    clearErrors();
    setMessages([]);
    setSettings((settings) => ({ ...settings, conversation: "" }));
  };
  const [viewCode, , codeError] = useAction(async () => {
    const unsent = settings.conversation ? [] : messages;
    const added = text.trim() || !unsent.length ? [{ role: "user", content: text || t.chat.placeholder }] : [];
    const conversation = settings.conversation === "new" ? "" : settings.conversation;
    showCode({ call: "chat.completions", path: "/chat/completions", body: { ...request([...unsent, ...added], conversation), stream_options: undefined } });
  });
  const actionsOf = (message, index) => message.role === "assistant" && html`<${CopyButton} text=${splitReasoning(message).answer} label=${t.chat.copyResponse} />
    ${index === messages.length - 1 && !busy && html`<button type="button" class="copy" onClick=${() => (clearErrors(), regenerate())}><${Icon} name="redo" />${t.chat.regenerate}</button>`}`;
  // A response keeps its place when it is complete, so that it is not built again.
  const shown = busy && last?.role !== "assistant" ? [...messages, partial] : messages;
  return html`<div class="chat">
    <div class="chat-main">
      <${Transcript} busy=${busy} turn=${turn}>
        ${!messages.length && !busy && html`<${EmptyState} title=${t.chat.empty}><p>${t.chat.emptyHint}</p><//>`}
        <div class="message-list">
          ${shown.map((message, index) => html`<${Message} key=${index} message=${message} streaming=${index === messages.length} actions=${index < messages.length && actionsOf(message, index)} />`)}
        </div>
      <//>
      <${ErrorAlert} error=${sendError ?? regenerateError ?? conversationError ?? codeError} />
      ${calls.length ? html`<${ToolResults} key=${messages.length} calls=${calls} submit=${(results) => send(results)} />` : html`<${Composer} ...${{ text, setText, send: sendText, busy }} stop=${() => abort.current?.abort()} />`}
      <div class="actions chat-actions">
        <button type="button" class="text-button" disabled=${busy || !messages.length} onClick=${clearChat}><${Icon} name="plus" />${t.chat.clear}</button>
        <button type="button" class="text-button" onClick=${viewCode}><${Icon} name="code" />${t.playground.viewCode}</button>
        <span class="muted hint">${t.chat.messageHint}</span>
      </div>
    </div>
    <${Settings} ...${{ settings, set, models, agents, conversations, canManage, busy, selectConversation }} selectOther=${(id) => (location.hash = comparisonHash(settings.model || models[0].id, id))} />
  </div>`;
}

/** A form for tool results. The user plays the role of the application. */
function ToolResults({ calls, submit }) {
  const [results, setResults] = useState({});
  const onSubmit = (event) => {
    event.preventDefault();
    submit(calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: results[id] ?? "" })));
  };
  return html`<form class="card tool-results" onSubmit=${onSubmit}>
    ${calls.map((call) => html`<${TextArea} key=${call.id} class="code" label=${t.chat.toolResult(call.function.name)} value=${results[call.id] ?? ""} rows="2"
      onInput=${(value) => setResults({ ...results, [call.id]: value })} />`)}
    <button class="primary">${t.chat.submitResults}</button>
  </form>`;
}
