// Projects, with their limits and quotas.

import { html, useState } from "../html.js";
import { apiPath, get, patch, post, put } from "../api.js";
import { bytes, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, ConfirmDialog, ErrorAlert, FormDialog, Page, Table, TextField, RelativeTime, useAction, useLoad, Loading } from "../ui.js";

const LIMITS = ["requests_per_minute", "burst_limit", "tokens_per_minute", "token_budget"];
const QUOTAS = ["api_keys", "conversations", "agents", "files", "fine_tuning_jobs", "storage_bytes"];

export function Projects({ project, projects, refresh }) {
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) refresh();
  };
  const [kind, selected] = open ?? [];
  const admin = session.hasScope("admin");
  const columns = [
    { title: t.name, cell: (one) => html`<strong>${one.name}</strong><br /><code class="muted">${one.id}</code>` },
    { title: t.projects.environment, cell: (one) => one.environment && html`<${Badge}>${one.environment}<//>` },
    { title: t.status, cell: (one) => (one.archived_at ? html`<${Badge} kind="warning">${t.projects.archived}<//>` : html`<${Badge} kind="success">${t.projects.active}<//>`) },
    { title: t.created, cell: (one) => html`<${RelativeTime} value=${one.created_at} />` },
    { title: html`<span class="visually-hidden">${t.actions}</span>`, cell: (one) => !one.archived_at && html`<div class="actions">
      <button type="button" class="text-button" onClick=${() => setOpen(["edit", one])}>${t.edit}<span class="visually-hidden"> ${one.name}</span></button>
      ${admin && html`<button type="button" class="text-button error" onClick=${() => setOpen(["archive", one])}>${t.projects.archive}<span class="visually-hidden"> ${one.name}</span></button>`}
    </div>` },
  ];
  return html`<${Page} title=${t.pages.projects} about=${admin ? t.projects.about : t.projects.aboutOwn}
      actions=${admin && html`<button type="button" class="primary" onClick=${() => setOpen(["create"])}>${t.projects.create}</button>`}>
    <${Table} label=${t.pages.projects} columns=${columns} rows=${projects} rowKey=${(one) => one.id} />
    <${Limits} key=${project.id} project=${project} />
    ${kind === "create" && html`<${EditProject} close=${close} />`}
    ${kind === "edit" && html`<${EditProject} project=${selected} close=${close} />`}
    ${kind === "archive" && html`<${ArchiveProject} project=${selected} close=${close} />`}
  <//>`;
}

function EditProject({ project, close }) {
  const [name, setName] = useState(project?.name ?? "");
  const [environment, setEnvironment] = useState(project?.environment ?? "");
  const body = { name, environment: environment || undefined };
  const [save, busy, error] = useAction(() => (project ? put(apiPath`/projects/${project.id}`, body) : post("/projects", body)));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${project ? t.projects.editTitle(project.name) : t.projects.create} action=${project ? t.save : t.create}
      ...${{ close: () => close(false), submit, busy, error }}>
    <${TextField} label=${t.name} value=${name} onInput=${setName} required maxlength="200" autofocus />
    <${TextField} label=${t.projects.environment} value=${environment} onInput=${setEnvironment} hint=${t.projects.environmentHint} />
  <//>`;
}

const ArchiveProject = ({ project, close }) => html`<${ConfirmDialog} title=${t.projects.archiveTitle(project.name)} action=${t.projects.archive} close=${() => close(false)}
  run=${() => post(apiPath`/projects/${project.id}/archive`, {})} onDone=${() => close(true)}>${t.projects.archiveAbout}<//>`;

/** The number in a field, or null when it is empty. */
const toLimit = (text) => (text.trim() === "" ? null : Number(text));

function Limits({ project }) {
  const path = apiPath`/projects/${project.id}/rate-limits`;
  const [limits, error, reload] = useLoad(() => get(path), [project.id]);
  if (!limits) return html`<${ErrorAlert} error=${error} retry=${reload} />${!error && html`<${Loading} />`}`;
  const { effective, ceiling, quotas, holds } = limits;
  const admin = session.hasScope("admin");
  const update = async (body) => {
    await patch(path, body);
    await reload();
  };
  const format = (name, value) => (name === "storage_bytes" ? bytes(value) : number(value));
  const hint = (name) => `${t.limits.hints[name]}${ceiling[name] ? ` ${t.limits.ceilingHint(number(ceiling[name]))}` : ""}`;
  return html`<div class="grid wide">
    <${NumbersForm} title=${t.limits.title(project.name)} names=${LIMITS} label=${(name) => t.limits[name]} hint=${hint} values=${limits} update=${update}>
      <p class="muted">${t.limits.effective(effective.requests_per_minute && number(effective.requests_per_minute), number(effective.burst_limit ?? effective.requests_per_minute))}</p>
      <p class="muted">${t.limits.monthUsage(number(limits.tokens_this_month), effective.token_budget && number(effective.token_budget))}</p>
    <//>
    <div class="card"><h2>${t.limits.resourceUsage}</h2>
      <${Table} label=${t.limits.resourceUsage} rows=${QUOTAS} rowKey=${(name) => name} columns=${[
        { title: t.limits.resource, cell: (name) => t.limits.quota[name] },
        { title: t.limits.used, numeric: true, cell: (name) => format(name, holds[name]) },
        { title: t.limits.quotaColumn, numeric: true, cell: (name) => format(name, quotas[name]) },
      ]} />
    </div>
    ${admin && html`<${NumbersForm} title=${t.limits.ceilingTitle} about=${t.limits.ceilingAbout} names=${LIMITS} label=${(name) => t.limits[name]} values=${ceiling}
      update=${(ceiling) => update({ ceiling })} />`}
    ${admin && html`<${NumbersForm} title=${t.limits.quotaTitle} about=${t.limits.quotaAbout} names=${QUOTAS} label=${(name) => t.limits.quota[name]} placeholder=${t.limits.defaultQuota} values=${quotas}
      update=${(quotas) => update({ quotas })} />`}
  </div>`;
}

/** A form of optional numbers. `update` is called with the edited ones. */
function NumbersForm({ title, about, names, label, hint = () => undefined, placeholder = t.limits.noLimit, values, update, children }) {
  const [edited, setEdited] = useState({});
  const [save, busy, error] = useAction(async () => {
    await update(Object.fromEntries(Object.entries(edited).map(([name, text]) => [name, toLimit(text)])));
    setEdited({});
  });
  const submit = (event) => {
    event.preventDefault();
    save();
  };
  return html`<form class="card" onSubmit=${submit} aria-label=${title}>
    <h2>${title}</h2>
    ${about && html`<p class="muted">${about}</p>`}
    ${names.map((name) => html`<${TextField} key=${name} label=${label(name)} type="number" min="1" value=${edited[name] ?? String(values[name] ?? "")}
      onInput=${(text) => setEdited({ ...edited, [name]: text })} placeholder=${placeholder} hint=${hint(name)} />`)}
    ${children}
    <${ErrorAlert} error=${error} />
    <button class="primary" disabled=${busy || !Object.keys(edited).length}>${t.save}</button>
  </form>`;
}
