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
    { title: t.talks.begins, cell: (one) => html`<a href=${`#/conversations/${one.id}`}>${one.preview ?? t.talks.noPreview}</a><br /><code class="dim">${one.id}</code>` },
    { title: t.talks.messages, right: true, cell: (one) => one.message_count },
    { title: t.changed, cell: (one) => html`<${Time} value=${one.updated_at} />` },
    { title: t.created, cell: (one) => html`<${Time} value=${one.created_at} />` },
  ];
  return html`<${Page} title=${t.pages.conversations} about=${t.talks.about}>
    <form class="card search" onSubmit=${submit} role="search">
      <${Text} label=${t.talks.search} type="search" placeholder=${t.talks.searchHint} value=${asked} onInput=${setAsked} maxlength="200" />
      <button>${t.talks.search}</button>
    </form>
    <${Listing} list=${list} label=${t.pages.conversations} columns=${columns} further=${search ? t.talks.searchOn : t.more}
      empty=${search ? html`<${Empty} title=${t.talks.notFound}><p>${t.talks.notFoundHint}</p><//>` : html`<${Empty} title=${t.talks.none}><p>${t.talks.noneHint}</p><//>`} />
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
    ${session.may("inference") && html`<a class="button" href=${`#/playground/chat/conversation/${id}`}>${t.talks.go}</a>`}
    <button type="button" onClick=${() => saveFile(`${id}.json`, toJson(talk))}>${t.talks.export}</button>
    <button type="button" onClick=${() => setOpen("metadata")}>${t.metadata}</button>
    ${!messages && html`<button type="button" onClick=${() => setMessages(talk.messages)}>${t.edit}</button>`}
    <button type="button" class="plain wrong" onClick=${() => setOpen("remove")}>${t.remove}</button>`;
  return html`<${Page} title=${t.talks.title} about=${html`<a href="#/conversations">${t.back}</a> · <code>${id}</code>${talk && html` · ${t.talks.version(talk.version)} · <${Time} value=${talk.updated_at} />`}`} actions=${actions}>
    <${Failure} error=${error ?? failed} again=${error && again} />
    ${!talk && !error && html`<${Waiting} />`}
    ${talk?.metadata && html`<p class="dim">${t.metadata}: <code>${JSON.stringify(talk.metadata)}</code></p>`}
    ${shown && !messages && (shown.length ? html`<div class="talk">${shown.map((message, at) => html`<${Said} key=${at} message=${message} />`)}</div>` : html`<${Empty} title=${t.talks.empty} />`)}
    ${messages && html`<div class="talk">
      ${shown.map((message, at) => html`<${Edited} key=${at} at=${at + 1} message=${message} change=${(next) => edit(at, next)} drop=${() => setMessages(shown.filter((_, place) => place !== at))} />`)}
      <div class="actions">
        <button type="button" onClick=${() => setMessages([...shown, { role: "user", content: "" }])}>${t.talks.add}</button>
        <button type="button" class="first" disabled=${busy} onClick=${store}>${t.talks.save}</button>
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
      change(fromJson(t.talks.content, value) ?? {});
      setWrong(null);
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<div class="card">
    ${plain && html`<${Select} label=${t.talks.roleOf(at)} value=${message.role} onInput=${(role) => change({ ...message, role })} options=${ROLES.map((role) => [role, role])} />
      <${Area} label=${t.talks.contentOf(at)} value=${message.content} onInput=${(content) => change({ ...message, content })} rows="3" />`}
    ${!plain && html`<${Area} class="code" label=${t.talks.contentOf(at)} hint=${t.talks.parts} error=${wrong} value=${text} onInput=${typed} rows="8" spellcheck="false" />`}
    <button type="button" class="plain wrong" onClick=${drop}>${t.talks.removeMessage(at)}</button>
  </div>`;
}

function Metadata({ talk, close }) {
  const [text, setText] = useState(toJson(talk.metadata));
  const [store, busy, error] = useAction(() => patch(`/conversations/${talk.id}`, { metadata: fromJson(t.metadata, text), version: talk.version }));
  const submit = async () => (await store()) && close(true);
  return html`<${FormDialog} title=${t.metadata} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${Area} class="code" label=${t.metadata} hint=${t.metadataHint} value=${text} onInput=${setText} rows="6" spellcheck="false" />
  <//>`;
}

const Remove = ({ id, close }) => html`<${Confirm} title=${t.talks.removeTitle} action=${t.remove} close=${() => close(false)}
  act=${() => remove(`/conversations/${id}`)} done=${() => (location.hash = "#/conversations")}>${t.talks.removeAbout}<//>`;
