// Conversations: search, view, edit, export.

import { html, useState } from "../html.js";
import { apiPath, get, patch, put, remove } from "../api.js";
import { fromJson, toJson } from "../json.js";
import { Message } from "../message.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { PagedTable } from "../table.js";
import { TextArea, ConfirmDialog, EmptyState, ErrorAlert, FormDialog, Page, downloadJson, SelectField, TextField, RelativeTime, useAction, useLoad, usePagedList, Loading } from "../ui.js";

const ROLES = ["developer", "system", "user", "assistant", "tool"];

export const Conversations = ({ project, rest }) => (rest[0] ? html`<${ConversationPage} key=${rest[0]} id=${rest[0]} />` : html`<${ConversationList} project=${project} />`);

function ConversationList({ project }) {
  const [input, setInput] = useState("");
  const [search, setSearch] = useState("");
  const list = usePagedList("/conversations", { project_id: project.id, search }, [project.id, search]);
  const submit = (event) => {
    event.preventDefault();
    setSearch(input.trim());
  };
  const columns = [
    { title: t.conversations.firstMessage, sort: (one) => one.preview, cell: (one) => html`<a href=${`#/conversations/${one.id}`}>${one.preview ?? t.conversations.noPreview}</a><br /><code class="muted">${one.id}</code>` },
    { title: t.conversations.messages, numeric: true, sort: (one) => one.message_count, cell: (one) => one.message_count },
    { title: t.updated, sort: (one) => one.updated_at, cell: (one) => html`<${RelativeTime} value=${one.updated_at} />` },
    { title: t.created, sort: (one) => one.created_at, cell: (one) => html`<${RelativeTime} value=${one.created_at} />` },
  ];
  return html`<${Page} title=${t.pages.conversations} about=${t.conversations.about}>
    <form class="card search" onSubmit=${submit} role="search">
      <${TextField} label=${t.conversations.search} type="search" placeholder=${t.conversations.searchHint} value=${input} onInput=${setInput} maxlength="200" />
      <button>${t.conversations.search}</button>
    </form>
    <${PagedTable} list=${list} label=${t.pages.conversations} columns=${columns} moreLabel=${search ? t.conversations.searchMore : t.showMore}
      empty=${search ? html`<${EmptyState} title=${t.conversations.notFound}><p>${t.conversations.notFoundHint}</p><//>` : html`<${EmptyState} title=${t.conversations.empty}><p>${t.conversations.emptyHint}</p><//>`} />
  <//>`;
}

function ConversationPage({ id }) {
  const [conversation, error, reload] = useLoad(() => get(apiPath`/conversations/${id}`), [id]);
  const [draft, setDraft] = useState(null);
  const [open, setOpen] = useState(null);
  const messages = draft ?? conversation?.messages;
  const edit = (index, message) => setDraft(messages.map((other, position) => (position === index ? message : other)));
  const [save, busy, saveError] = useAction(async () => {
    // The server compares the version, so concurrent changes are not overwritten.
    await put(apiPath`/conversations/${id}`, { messages, metadata: conversation.metadata ?? undefined, version: conversation.version });
    setDraft(null);
    await reload();
  });
  const close = (changed) => {
    setOpen(null);
    if (changed) reload();
  };
  const actions = conversation && html`
    ${session.hasScope("inference") && html`<a class="button" href=${`#/playground/chat/conversation/${encodeURIComponent(id)}`}>${t.conversations.continue}</a>`}
    <button type="button" onClick=${() => downloadJson(`${id}.json`, toJson(conversation))}>${t.conversations.export}</button>
    <button type="button" onClick=${() => setOpen("metadata")}>${t.conversations.editMetadata}</button>
    ${!draft && html`<button type="button" onClick=${() => setDraft(conversation.messages)}>${t.edit}</button>`}
    <button type="button" class="text-button error" onClick=${() => setOpen("delete")}>${t.delete}</button>`;
  return html`<${Page} title=${t.conversations.title} about=${html`<a href="#/conversations">${t.back}</a> · <code>${id}</code>${conversation && html` · ${t.conversations.version(conversation.version)} · ${t.updated} <${RelativeTime} value=${conversation.updated_at} />`}`} actions=${actions}>
    <${ErrorAlert} error=${error ?? saveError} retry=${error && reload} />
    ${!conversation && !error && html`<${Loading} />`}
    ${conversation?.metadata && html`<p class="muted">${t.metadata}: <code>${JSON.stringify(conversation.metadata)}</code></p>`}
    ${messages && !draft && (messages.length ? html`<div class="message-list">${messages.map((message, index) => html`<${Message} key=${index} message=${message} />`)}</div>` : html`<${EmptyState} title=${t.conversations.noMessages} />`)}
    ${draft && html`<div class="message-list">
      ${messages.map((message, index) => html`<${EditMessage} key=${index} position=${index + 1} message=${message} change=${(next) => edit(index, next)} remove=${() => setDraft(messages.filter((_, other) => other !== index))} />`)}
      <div class="actions">
        <button type="button" onClick=${() => setDraft([...messages, { role: "user", content: "" }])}>${t.conversations.addMessage}</button>
        <button type="button" class="primary" disabled=${busy} onClick=${save}>${t.conversations.save}</button>
        <button type="button" onClick=${() => setDraft(null)}>${t.cancel}</button>
      </div></div>`}
    ${open === "metadata" && html`<${EditMetadata} conversation=${conversation} close=${close} />`}
    ${open === "delete" && html`<${DeleteConversation} id=${id} close=${close} />`}
  <//>`;
}

function EditMessage({ position, message, change, remove }) {
  const plain = typeof message.content === "string" && !message.tool_calls;
  const [text, setText] = useState(() => (plain ? "" : toJson(message)));
  const [error, setError] = useState(null);
  const editJson = (value) => {
    setText(value);
    try {
      change(fromJson(t.conversations.content, value) ?? {});
      setError(null);
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<div class="card">
    ${plain && html`<${SelectField} label=${t.conversations.roleOf(position)} value=${message.role} onInput=${(role) => change({ ...message, role })} options=${ROLES.map((role) => [role, role])} />
      <${TextArea} label=${t.conversations.contentOf(position)} value=${message.content} onInput=${(content) => change({ ...message, content })} rows="3" />`}
    ${!plain && html`<${TextArea} class="code" label=${t.conversations.contentOf(position)} hint=${t.conversations.editAsJson} error=${error} value=${text} onInput=${editJson} rows="8" spellcheck="false" />`}
    <button type="button" class="text-button error" onClick=${remove}>${t.conversations.deleteMessage(position)}</button>
  </div>`;
}

function EditMetadata({ conversation, close }) {
  const [text, setText] = useState(toJson(conversation.metadata));
  const [save, busy, error] = useAction(() => patch(apiPath`/conversations/${conversation.id}`, { metadata: fromJson(t.metadata, text), version: conversation.version }));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${t.conversations.editMetadata} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${TextArea} class="code" label=${t.metadata} hint=${t.metadataHint} value=${text} onInput=${setText} rows="6" spellcheck="false" />
  <//>`;
}

const DeleteConversation = ({ id, close }) => html`<${ConfirmDialog} title=${t.conversations.deleteTitle} action=${t.delete} close=${() => close(false)}
  run=${() => remove(apiPath`/conversations/${id}`)} onDone=${() => (location.hash = "#/conversations")}>${t.conversations.deleteAbout}<//>`;
