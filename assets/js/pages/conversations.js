// Conversations: found, read, edited, taken along.

import { html, useState } from "../html.js";
import { get, patch, put, remove } from "../api.js";
import { fromJson, toJson } from "../json.js";
import { Said } from "../messages.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Area, Confirm, Empty, Failure, FormDialog, Listing, Page, save as saveFile, Select, Text, Time, useAction, useLoad, usePages, Waiting } from "../ui.js";

const ROLES = ["developer", "system", "user", "assistant", "tool"];

export const Conversations = ({ project, rest }) => (rest[0] ? html`<${One} key=${rest[0]} id=${rest[0]} />` : html`<${List} project=${project} />`);

function List({ project }) {
  const [asked, setAsked] = useState("");
  const [search, setSearch] = useState("");
  const list = usePages("/conversations", { project_id: project.id, search }, [project.id, search]);
  const submit = (event) => {
    event.preventDefault();
    setSearch(asked.trim());
  };
  const columns = [
    { title: t.conversations.firstMessage, cell: (one) => html`<a href=${`#/conversations/${one.id}`}>${one.preview ?? t.conversations.noPreview}</a><br /><code class="dim">${one.id}</code>` },
    { title: t.conversations.messages, right: true, cell: (one) => one.message_count },
    { title: t.updated, cell: (one) => html`<${Time} value=${one.updated_at} />` },
    { title: t.created, cell: (one) => html`<${Time} value=${one.created_at} />` },
  ];
  return html`<${Page} title=${t.pages.conversations} about=${t.conversations.about}>
    <form class="card search" onSubmit=${submit} role="search">
      <${Text} label=${t.conversations.search} type="search" placeholder=${t.conversations.searchHint} value=${asked} onInput=${setAsked} maxlength="200" />
      <button>${t.conversations.search}</button>
    </form>
    <${Listing} list=${list} label=${t.pages.conversations} columns=${columns} further=${search ? t.conversations.searchMore : t.showMore}
      empty=${search ? html`<${Empty} title=${t.conversations.notFound}><p>${t.conversations.notFoundHint}</p><//>` : html`<${Empty} title=${t.conversations.empty}><p>${t.conversations.emptyHint}</p><//>`} />
  <//>`;
}

function One({ id }) {
  const [talk, error, again] = useLoad(() => get(`/conversations/${id}`), [id]);
  const [messages, setMessages] = useState(null);
  const [open, setOpen] = useState(null);
  const shown = messages ?? talk?.messages;
  const edit = (at, message) => setMessages(shown.map((one, place) => (place === at ? message : one)));
  const [store, busy, failed] = useAction(async () => {
    // Whoever wrote in between is not overwritten: the server compares the version.
    await put(`/conversations/${id}`, { messages: shown, metadata: talk.metadata ?? undefined, version: talk.version });
    setMessages(null);
    await again();
  });
  const close = (changed) => {
    setOpen(null);
    if (changed) again();
  };
  const actions = talk && html`
    ${session.may("inference") && html`<a class="button" href=${`#/playground/chat/conversation/${id}`}>${t.conversations.continue}</a>`}
    <button type="button" onClick=${() => saveFile(`${id}.json`, toJson(talk))}>${t.conversations.export}</button>
    <button type="button" onClick=${() => setOpen("metadata")}>${t.conversations.editMetadata}</button>
    ${!messages && html`<button type="button" onClick=${() => setMessages(talk.messages)}>${t.edit}</button>`}
    <button type="button" class="plain wrong" onClick=${() => setOpen("remove")}>${t.delete}</button>`;
  return html`<${Page} title=${t.conversations.title} about=${html`<a href="#/conversations">${t.back}</a> · <code>${id}</code>${talk && html` · ${t.conversations.version(talk.version)} · <${Time} value=${talk.updated_at} />`}`} actions=${actions}>
    <${Failure} error=${error ?? failed} again=${error && again} />
    ${!talk && !error && html`<${Waiting} />`}
    ${talk?.metadata && html`<p class="dim">${t.metadata}: <code>${JSON.stringify(talk.metadata)}</code></p>`}
    ${shown && !messages && (shown.length ? html`<div class="talk">${shown.map((message, at) => html`<${Said} key=${at} message=${message} />`)}</div>` : html`<${Empty} title=${t.conversations.noMessages} />`)}
    ${messages && html`<div class="talk">
      ${shown.map((message, at) => html`<${Edited} key=${at} at=${at + 1} message=${message} change=${(next) => edit(at, next)} drop=${() => setMessages(shown.filter((_, place) => place !== at))} />`)}
      <div class="actions">
        <button type="button" onClick=${() => setMessages([...shown, { role: "user", content: "" }])}>${t.conversations.addMessage}</button>
        <button type="button" class="first" disabled=${busy} onClick=${store}>${t.conversations.save}</button>
        <button type="button" onClick=${() => setMessages(null)}>${t.cancel}</button>
      </div></div>`}
    ${open === "metadata" && html`<${Metadata} talk=${talk} close=${close} />`}
    ${open === "remove" && html`<${Remove} id=${id} close=${close} />`}
  <//>`;
}

function Edited({ at, message, change, drop }) {
  const plain = typeof message.content === "string" && !message.tool_calls;
  const [text, setText] = useState(() => (plain ? "" : toJson(message)));
  const [wrong, setWrong] = useState(null);
  const typed = (value) => {
    setText(value);
    try {
      change(fromJson(t.conversations.content, value) ?? {});
      setWrong(null);
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<div class="card">
    ${plain && html`<${Select} label=${t.conversations.roleOf(at)} value=${message.role} onInput=${(role) => change({ ...message, role })} options=${ROLES.map((role) => [role, role])} />
      <${Area} label=${t.conversations.contentOf(at)} value=${message.content} onInput=${(content) => change({ ...message, content })} rows="3" />`}
    ${!plain && html`<${Area} class="code" label=${t.conversations.contentOf(at)} hint=${t.conversations.editAsJson} error=${wrong} value=${text} onInput=${typed} rows="8" spellcheck="false" />`}
    <button type="button" class="plain wrong" onClick=${drop}>${t.conversations.deleteMessage(at)}</button>
  </div>`;
}

function Metadata({ talk, close }) {
  const [text, setText] = useState(toJson(talk.metadata));
  const [store, busy, error] = useAction(() => patch(`/conversations/${talk.id}`, { metadata: fromJson(t.metadata, text), version: talk.version }));
  const submit = async () => (await store()) && close(true);
  return html`<${FormDialog} title=${t.conversations.editMetadata} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${Area} class="code" label=${t.metadata} hint=${t.metadataHint} value=${text} onInput=${setText} rows="6" spellcheck="false" />
  <//>`;
}

const Remove = ({ id, close }) => html`<${Confirm} title=${t.conversations.deleteTitle} action=${t.delete} close=${() => close(false)}
  act=${() => remove(`/conversations/${id}`)} done=${() => (location.hash = "#/conversations")}>${t.conversations.deleteAbout}<//>`;
