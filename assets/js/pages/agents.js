// Agents: instructions, tools, model and memory under one id, with every version of them.

import { html, useState } from "../html.js";
import { all, get, patch, post, remove } from "../api.js";
import { fromJson, toJson } from "../json.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Area, Badge, Confirm, Dialog, Empty, Failure, FormDialog, Listing, Page, Select, Table, Text, Time, useAction, useLoad, useModels, usePages, Waiting } from "../ui.js";

export const Agents = ({ project, rest }) => (rest[0] ? html`<${One} key=${rest[0]} id=${rest[0]} />` : html`<${List} project=${project} />`);

/** The fields that a form holds, as texts. */
const texts = (agent) => ({
  name: agent?.name ?? "", model: agent?.model ?? "", instructions: agent?.instructions ?? "", tools: agent?.tools?.length ? toJson(agent.tools) : "",
  truncation: agent?.memory?.truncation ?? "", last: String(agent?.memory?.last_messages ?? ""), metadata: toJson(agent?.metadata),
});

/** The same as the API takes them; what is empty is null. */
function fields({ name, model, instructions, tools, truncation, last, metadata }) {
  const memory = truncation || last ? { truncation: truncation || undefined, last_messages: last ? Number(last) : undefined } : null;
  return { name: name || null, model: model || null, instructions: instructions || null, tools: fromJson(t.agents.tools, tools), memory, metadata: fromJson(t.metadata, metadata) };
}

function List({ project }) {
  const list = usePages("/agents", { project_id: project.id }, [project.id]);
  const [open, setOpen] = useState(false);
  const close = (made) => {
    setOpen(false);
    if (made) location.hash = `#/agents/${made.id}`;
  };
  const columns = [
    { title: t.name, cell: (one) => html`<a href=${`#/agents/${one.id}`}>${one.name ?? t.agents.unnamed}</a><br /><code class="dim">${one.id}</code>` },
    { title: t.agents.model, cell: (one) => one.model ?? html`<span class="dim">${t.agents.modelFromRequest}</span>` },
    { title: t.agents.version, right: true, cell: (one) => one.version },
    { title: t.updated, cell: (one) => html`<${Time} value=${one.updated_at} />` },
  ];
  return html`<${Page} title=${t.pages.agents} about=${t.agents.about} actions=${html`<button type="button" class="first" onClick=${() => setOpen(true)}>${t.agents.create}</button>`}>
    <${Listing} list=${list} label=${t.pages.agents} columns=${columns} empty=${html`<${Empty} title=${t.agents.empty}><p>${t.agents.emptyHint}</p><//>`} />
    ${open && html`<${Edit} project=${project} close=${close} />`}
  <//>`;
}

function Edit({ project, agent, close }) {
  const [form, setForm] = useState(texts(agent));
  const [models] = useModels("chat_completions");
  const set = (name) => (value) => setForm((before) => ({ ...before, [name]: value }));
  const [store, busy, error] = useAction(async () => {
    const body = fields(form);
    return agent ? patch(`/agents/${agent.id}`, { ...body, version: agent.version }) : post("/agents", { ...body, project_id: project.id });
  });
  const submit = async () => {
    const stored = await store();
    if (stored) close(stored);
  };
  const names = [...new Set([...(models ?? []).map((model) => model.id), ...(agent?.model ? [agent.model] : [])])];
  return html`<${FormDialog} title=${agent ? t.agents.editTitle : t.agents.create} action=${agent ? t.save : t.create} ...${{ close: () => close(null), submit, busy, error }}>
    <${Text} label=${t.name} value=${form.name} onInput=${set("name")} maxlength="256" autofocus />
    <${Select} label=${t.agents.model} value=${form.model} onInput=${set("model")} options=${[["", t.agents.modelFromRequest], ...names.map((name) => [name, name])]} />
    <${Area} label=${t.agents.instructions} hint=${t.agents.instructionsHint} value=${form.instructions} onInput=${set("instructions")} rows="6" />
    <${Area} class="code" label=${t.agents.tools} hint=${t.toolsHint} value=${form.tools} onInput=${set("tools")} rows="3" spellcheck="false" />
    <${Select} label=${t.agents.truncation} hint=${t.agents.truncationHint} value=${form.truncation} onInput=${set("truncation")} options=${Object.entries(t.agents.truncations)} />
    <${Text} label=${t.agents.maxMessages} hint=${t.agents.maxMessagesHint} type="number" min="1" max="4096" value=${form.last} onInput=${set("last")} placeholder=${t.agents.allMessages} />
    <${Area} class="code" label=${t.metadata} hint=${t.metadataHint} value=${form.metadata} onInput=${set("metadata")} rows="2" spellcheck="false" />
  <//>`;
}

function One({ id }) {
  const [agent, error, again] = useLoad(() => get(`/agents/${id}`), [id]);
  const [versions, , lookAgain] = useLoad(() => all(`/agents/${id}/versions`), [id]);
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) again().then(lookAgain);
  };
  const [restore, busy, failed] = useAction(async (old) => {
    await patch(`/agents/${id}`, { ...fields(texts(old)), version: agent.version });
    close(true);
  });
  const columns = [
    { title: t.agents.version, cell: (one) => html`${one.version} ${one.version === agent?.version && html`<${Badge} kind="good">${t.agents.current}<//>`}` },
    { title: t.name, cell: (one) => one.name ?? t.agents.unnamed },
    { title: t.updated, cell: (one) => html`<${Time} value=${one.updated_at} />` },
    { title: html`<span class="hidden">${t.actions}</span>`, cell: (one) => html`<button type="button" class="plain" onClick=${() => setOpen(one)}>${t.agents.view}<span class="hidden"> ${t.agents.versionTitle(one.version)}</span></button>` },
  ];
  const actions = agent && html`
    ${session.may("inference") && html`<a class="button" href=${`#/playground/chat/agent/${id}`}>${t.agents.try}</a>`}
    <button type="button" onClick=${() => setOpen("edit")}>${t.edit}</button>
    <button type="button" class="plain wrong" onClick=${() => setOpen("remove")}>${t.delete}</button>`;
  return html`<${Page} title=${agent ? (agent.name ?? t.agents.unnamed) : t.pages.agents} about=${html`<a href="#/agents">${t.back}</a> · <code>${id}</code>`} actions=${actions}>
    <${Failure} error=${error ?? failed} again=${error && again} />
    ${!agent && !error && html`<${Waiting} />`}
    ${agent && html`<div class="card"><${Shown} agent=${agent} /></div><h2>${t.agents.versions}</h2>`}
    ${versions && html`<${Table} label=${t.agents.versions} columns=${columns} rows=${versions} keyed=${(one) => one.version} />`}
    ${open === "edit" && html`<${Edit} agent=${agent} close=${close} />`}
    ${open === "remove" && html`<${Remove} agent=${agent} close=${close} />`}
    ${open?.version && html`<${Dialog} title=${t.agents.versionTitle(open.version)} close=${() => setOpen(null)}>
      <${Shown} agent=${open} />
      <div class="actions"><button type="button" onClick=${() => setOpen(null)}>${t.close}</button>
        ${open.version !== agent.version && html`<button type="button" class="first" disabled=${busy} onClick=${() => restore(open)}>${t.agents.restore}</button>`}</div>
    <//>`}
  <//>`;
}

function Shown({ agent }) {
  const { truncation, last_messages: last } = agent.memory ?? {};
  const rows = [
    [t.agents.model, agent.model ?? t.agents.modelFromRequest],
    [t.agents.instructions, agent.instructions && html`<div class="words">${agent.instructions}</div>`],
    [t.agents.tools, agent.tools?.length > 0 && html`<pre class="json" tabindex="0" aria-label=${t.agents.tools}>${toJson(agent.tools)}</pre>`],
    [t.agents.truncation, truncation && t.agents.truncations[truncation]],
    [t.agents.maxMessages, last],
    [t.metadata, agent.metadata && html`<code>${JSON.stringify(agent.metadata)}</code>`],
  ];
  return html`<dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

const Remove = ({ agent, close }) => html`<${Confirm} title=${t.agents.deleteTitle(agent.name ?? agent.id)} action=${t.delete} close=${() => close(false)}
  act=${() => remove(`/agents/${agent.id}`)} done=${() => (location.hash = "#/agents")}>${t.agents.deleteAbout}<//>`;
