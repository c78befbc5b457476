// A project's page: overview, keys, limits and quotas, usage and audit log, as tabs.

import { html, useState } from "../html.js";
import { apiPath, get, post, put } from "../api.js";
import { bytes, date, exactSize, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, ConfirmDialog, CopyButton, EmptyState, ErrorAlert, FormDialog, Loading, Meter, Page, Stat, Tabs, TextField, useAction, useLoad } from "../ui.js";
import { ApiKeys } from "./api-keys.js";
import { AuditLog } from "./audit-log.js";
import { LimitsAndQuotas } from "./project/limits.js";
import { Usage } from "./usage.js";

const TABS = { overview: Overview, keys: ApiKeys, limits: LimitsAndQuotas, usage: Usage, audit: AuditLog };

export const ProjectStatus = ({ project }) => (project.archived_at ? html`<${Badge} kind="warning">${t.projects.archived}<//>` : html`<${Badge} kind="success">${t.projects.active}<//>`);

export function ProjectPage({ id, tab, me, projects, refresh }) {
  const [open, setOpen] = useState(null);
  const project = projects.find((one) => one.id === id);
  const name = TABS[tab] ? tab : "overview";
  const Tab = TABS[name];
  const close = (changed) => {
    setOpen(null);
    if (changed) refresh();
  };
  const back = html`<a href="#/projects">${t.back}</a> · <code>${id}</code>`;
  if (!project) return html`<${Page} title=${t.project} about=${back}><${EmptyState} title=${t.projects.notFound} /><//>`;
  const actions = !project.archived_at && html`<button type="button" onClick=${() => setOpen("edit")}>${t.edit}</button>
    ${session.hasScope("admin") && html`<button type="button" class="text-button error" onClick=${() => setOpen("archive")}>${t.projects.archive}</button>`}`;
  return html`<${Page} title=${project.name} about=${back} actions=${actions}>
    <${Tabs} label=${t.projects.tabsLabel} selected=${name} onSelect=${(one) => (location.hash = `#/projects/${encodeURIComponent(id)}/${one}`)} tabs=${Object.entries(t.projects.tabs)} />
    <${Tab} key=${name} nested project=${project} me=${me} />
    ${open === "edit" && html`<${EditProject} project=${project} close=${close} />`}
    ${open === "archive" && html`<${ArchiveProject} project=${project} close=${close} />`}
  <//>`;
}

function Overview({ project }) {
  const [limits, error, reload] = useLoad(() => get(apiPath`/projects/${project.id}/rate-limits`), [project.id]);
  const rows = [
    [t.projects.id, html`<code>${project.id}</code> <${CopyButton} text=${project.id} />`],
    [t.projects.environment, project.environment && html`<${Badge}>${project.environment}<//>`],
    [t.status, html`<${ProjectStatus} project=${project} />`],
    [t.created, date(project.created_at)],
    [t.projects.archivedAt, project.archived_at && date(project.archived_at)],
    [t.metadata, project.metadata && html`<code>${JSON.stringify(project.metadata)}</code>`],
  ];
  return html`<${ErrorAlert} error=${error} retry=${reload} />
    ${!limits && !error && html`<${Loading} />`}
    ${limits && html`<${Figures} limits=${limits} />`}
    <div class="card"><h2>${t.projects.details}</h2><dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl></div>`;
}

/** The use of the budget and of the most important quotas. */
function Figures({ limits: { effective, quotas, holds, tokens_this_month: used } }) {
  const figure = (label, value, max, { unit, format = number, formatMax = format } = {}) => html`<${Stat} label=${label} value=${format(value)} unit=${unit} hint=${max ? t.limits.ofQuota(formatMax(max)) : t.limits.noLimit}>
    ${max && html`<${Meter} label=${label} value=${value} max=${max} />`}<//>`;
  return html`<div class="stats">
    ${figure(t.limits.tokensThisMonth, used, effective.token_budget, { unit: t.usage.units.tokens(used) })}
    ${figure(t.limits.quota.api_keys, holds.api_keys, quotas.api_keys)}
    ${figure(t.limits.quota.conversations, holds.conversations, quotas.conversations)}
    ${figure(t.limits.quota.storage_bytes, holds.storage_bytes, quotas.storage_bytes, { format: bytes, formatMax: exactSize })}
  </div>`;
}

export function EditProject({ project, close }) {
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
