// Agents and their versions.

import { html, useState } from "../html.js";
import { all, apiPath, get, patch, post, remove } from "../api.js";
import { fromJson, toJson } from "../json.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { PagedTable, Table } from "../table.js";
import { TextArea, Badge, ConfirmDialog, Dialog, EmptyState, ErrorAlert, FormDialog, Page, SelectField, TextField, RelativeTime, useAction, useLoad, useModels, usePagedList, Loading } from "../ui.js";

export const Agents = ({ project, rest }) => (rest[0] ? html`<${AgentPage} key=${rest[0]} id=${rest[0]} />` : html`<${AgentList} project=${project} />`);

/** An agent as the texts of the form. */
const toForm = (agent) => ({
  name: agent?.name ?? "", model: agent?.model ?? "", instructions: agent?.instructions ?? "", tools: agent?.tools?.length ? toJson(agent.tools) : "",
  truncation: agent?.memory?.truncation ?? "", last: String(agent?.memory?.last_messages ?? ""), metadata: toJson(agent?.metadata),
});

/** The form as fields of the API. Empty texts become null. */
function fromForm({ name, model, instructions, tools, truncation, last, metadata }) {
  const memory = truncation || last ? { truncation: truncation || undefined, last_messages: last ? Number(last) : undefined } : null;
  return { name: name || null, model: model || null, instructions: instructions || null, tools: fromJson(t.agents.tools, tools), memory, metadata: fromJson(t.metadata, metadata) };
}

function AgentList({ project }) {
  const list = usePagedList("/agents", { project_id: project.id }, [project.id]);
  const [creating, setCreating] = useState(false);
  const close = (created) => {
    setCreating(false);
    if (created) location.hash = `#/agents/${created.id}`;
  };
  const columns = [
    { title: t.name, sort: (one) => one.name, cell: (one) => html`<a href=${`#/agents/${one.id}`}>${one.name ?? t.agents.unnamed}</a><br /><code class="muted">${one.id}</code>` },
    { title: t.agents.model, sort: (one) => one.model, cell: (one) => one.model ?? html`<span class="muted">${t.agents.modelFromRequest}</span>` },
    { title: t.agents.version, numeric: true, sort: (one) => one.version, cell: (one) => one.version },
    { title: t.updated, sort: (one) => one.updated_at, cell: (one) => html`<${RelativeTime} value=${one.updated_at} />` },
  ];
  return html`<${Page} title=${t.pages.agents} about=${t.agents.about} actions=${html`<button type="button" class="primary" onClick=${() => setCreating(true)}>${t.agents.create}</button>`}>
    <${PagedTable} list=${list} label=${t.pages.agents} columns=${columns} empty=${html`<${EmptyState} title=${t.agents.empty}><p>${t.agents.emptyHint}</p><//>`} />
    ${creating && html`<${EditAgent} project=${project} close=${close} />`}
  <//>`;
}

function EditAgent({ project, agent, close }) {
  const [form, setForm] = useState(toForm(agent));
  const [models] = useModels("chat_completions");
  const set = (name) => (value) => setForm((form) => ({ ...form, [name]: value }));
  const [save, busy, error] = useAction(async () => {
    const body = fromForm(form);
    return agent ? patch(apiPath`/agents/${agent.id}`, { ...body, version: agent.version }) : post("/agents", { ...body, project_id: project.id });
  });
  const submit = async () => {
    const saved = await save();
    if (saved) close(saved);
  };
  const names = [...new Set([...(models ?? []).map((model) => model.id), ...(agent?.model ? [agent.model] : [])])];
  return html`<${FormDialog} title=${agent ? t.agents.editTitle : t.agents.create} action=${agent ? t.save : t.create} ...${{ close: () => close(null), submit, busy, error }}>
    <${TextField} label=${t.name} value=${form.name} onInput=${set("name")} maxlength="256" autofocus />
    <${SelectField} label=${t.agents.model} value=${form.model} onInput=${set("model")} options=${[["", t.agents.modelFromRequest], ...names.map((name) => [name, name])]} />
    <${TextArea} label=${t.agents.instructions} hint=${t.agents.instructionsHint} value=${form.instructions} onInput=${set("instructions")} rows="6" />
    <${TextArea} class="code" label=${t.agents.tools} hint=${t.toolsHint} value=${form.tools} onInput=${set("tools")} rows="3" spellcheck="false" />
    <${SelectField} label=${t.agents.truncation} hint=${t.agents.truncationHint} value=${form.truncation} onInput=${set("truncation")} options=${Object.entries(t.agents.truncations)} />
    <${TextField} label=${t.agents.maxMessages} hint=${t.agents.maxMessagesHint} type="number" min="1" max="4096" value=${form.last} onInput=${set("last")} placeholder=${t.agents.allMessages} />
    <${TextArea} class="code" label=${t.metadata} hint=${t.metadataHint} value=${form.metadata} onInput=${set("metadata")} rows="2" spellcheck="false" />
  <//>`;
}

function AgentPage({ id }) {
  const [agent, error, reload] = useLoad(() => get(apiPath`/agents/${id}`), [id]);
  const [versions, , reloadVersions] = useLoad(() => all(apiPath`/agents/${id}/versions`), [id]);
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) reload().then(reloadVersions);
  };
  const [restore, busy, restoreError] = useAction(async (version) => {
    await patch(apiPath`/agents/${id}`, { ...fromForm(toForm(version)), version: agent.version });
    close(true);
  });
  const columns = [
    { title: t.agents.version, cell: (one) => html`${one.version} ${one.version === agent?.version && html`<${Badge} kind="success">${t.agents.current}<//>`}` },
    { title: t.name, cell: (one) => one.name ?? t.agents.unnamed },
    { title: t.updated, sort: (one) => one.updated_at, cell: (one) => html`<${RelativeTime} value=${one.updated_at} />` },
    { title: t.actions, cell: (one) => html`<button type="button" class="text-button" onClick=${() => setOpen(one)}>${t.agents.view}<span class="visually-hidden"> ${t.agents.versionTitle(one.version)}</span></button>` },
  ];
  const actions = agent && html`
    ${session.hasScope("inference") && html`<a class="button" href=${`#/playground/chat/agent/${encodeURIComponent(id)}`}>${t.agents.try}</a>`}
    <button type="button" onClick=${() => setOpen("edit")}>${t.edit}</button>
    <button type="button" class="text-button error" onClick=${() => setOpen("delete")}>${t.delete}</button>`;
  return html`<${Page} title=${agent ? (agent.name ?? t.agents.unnamed) : t.pages.agents} about=${html`<a href="#/agents">${t.back}</a> · <code>${id}</code>`} actions=${actions}>
    <${ErrorAlert} error=${error ?? restoreError} retry=${error && reload} />
    ${!agent && !error && html`<${Loading} />`}
    ${agent && html`<div class="card"><${AgentDetails} agent=${agent} /></div><h2>${t.agents.versions}</h2>`}
    ${versions && html`<${Table} label=${t.agents.versions} columns=${columns} rows=${versions} rowKey=${(one) => one.version} />`}
    ${open === "edit" && html`<${EditAgent} agent=${agent} close=${close} />`}
    ${open === "delete" && html`<${DeleteAgent} agent=${agent} close=${close} />`}
    ${open?.version && html`<${Dialog} title=${t.agents.versionTitle(open.version)} close=${() => setOpen(null)}>
      <${AgentDetails} agent=${open} />
      <div class="actions"><button type="button" onClick=${() => setOpen(null)}>${t.close}</button>
        ${open.version !== agent.version && html`<button type="button" class="primary" disabled=${busy} onClick=${() => restore(open)}>${t.agents.restore}</button>`}</div>
    <//>`}
  <//>`;
}

function AgentDetails({ agent }) {
  const { truncation, last_messages: last } = agent.memory ?? {};
  const rows = [
    [t.agents.model, agent.model ?? t.agents.modelFromRequest],
    [t.agents.instructions, agent.instructions && html`<div class="multiline">${agent.instructions}</div>`],
    [t.agents.tools, agent.tools?.length > 0 && html`<pre class="json" tabindex="0" aria-label=${t.agents.tools}>${toJson(agent.tools)}</pre>`],
    [t.agents.truncation, truncation && t.agents.truncations[truncation]],
    [t.agents.maxMessages, last],
    [t.metadata, agent.metadata && html`<code>${JSON.stringify(agent.metadata)}</code>`],
  ];
  return html`<dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

const DeleteAgent = ({ agent, close }) => html`<${ConfirmDialog} title=${t.agents.deleteTitle(agent.name ?? agent.id)} action=${t.delete} close=${() => close(false)}
  run=${() => remove(apiPath`/agents/${agent.id}`)} onDone=${() => (location.hash = "#/agents")}>${t.agents.deleteAbout}<//>`;
