// Projects: their names, and what they may use.

import { html, useState } from "../html.js";
import { get, patch, post, put } from "../api.js";
import { bytes, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, Confirm, Failure, FormDialog, Page, Table, Text, Time, useAction, useLoad, Waiting } from "../ui.js";

const RATES = ["requests_per_minute", "burst_limit", "tokens_per_minute", "token_budget"];
const QUOTAS = ["api_keys", "conversations", "agents", "files", "fine_tuning_jobs", "storage_bytes"];

export function Projects({ project, projects, refresh }) {
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) refresh();
  };
  const [kind, shown] = open ?? [];
  const admin = session.may("admin");
  const columns = [
    { title: t.name, cell: (one) => html`<strong>${one.name}</strong><br /><code class="dim">${one.id}</code>` },
    { title: t.projects.environment, cell: (one) => one.environment && html`<${Badge}>${one.environment}<//>` },
    { title: t.status, cell: (one) => (one.archived_at ? html`<${Badge} kind="warn">${t.projects.archived}<//>` : html`<${Badge} kind="good">${t.projects.active}<//>`) },
    { title: t.created, cell: (one) => html`<${Time} value=${one.created_at} />` },
    { title: html`<span class="hidden">${t.actions}</span>`, cell: (one) => !one.archived_at && html`<div class="actions">
      <button type="button" class="plain" onClick=${() => setOpen(["edit", one])}>${t.edit}<span class="hidden"> ${one.name}</span></button>
      ${admin && html`<button type="button" class="plain wrong" onClick=${() => setOpen(["archive", one])}>${t.projects.archive}<span class="hidden"> ${one.name}</span></button>`}
    </div>` },
  ];
  return html`<${Page} title=${t.pages.projects} about=${admin ? t.projects.about : t.projects.aboutOwn}
      actions=${admin && html`<button type="button" class="first" onClick=${() => setOpen(["create"])}>${t.projects.create}</button>`}>
    <${Table} label=${t.pages.projects} columns=${columns} rows=${projects} keyed=${(one) => one.id} />
    <${Limits} key=${project.id} project=${project} />
    ${kind === "create" && html`<${Edit} close=${close} />`}
    ${kind === "edit" && html`<${Edit} shown=${shown} close=${close} />`}
    ${kind === "archive" && html`<${Archive} shown=${shown} close=${close} />`}
  <//>`;
}

function Edit({ shown, close }) {
  const [name, setName] = useState(shown?.name ?? "");
  const [environment, setEnvironment] = useState(shown?.environment ?? "");
  const body = { name, environment: environment || undefined };
  const [save, busy, error] = useAction(() => (shown ? put(`/projects/${shown.id}`, body) : post("/projects", body)));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${shown ? t.projects.editTitle(shown.name) : t.projects.create} action=${shown ? t.save : t.create}
      ...${{ close: () => close(false), submit, busy, error }}>
    <${Text} label=${t.name} value=${name} onInput=${setName} required maxlength="200" autofocus />
    <${Text} label=${t.projects.environment} value=${environment} onInput=${setEnvironment} hint=${t.projects.environmentHint} />
  <//>`;
}

const Archive = ({ shown, close }) => html`<${Confirm} title=${t.projects.archiveTitle(shown.name)} action=${t.projects.archive} close=${() => close(false)}
  act=${() => post(`/projects/${shown.id}/archive`, {})} done=${() => close(true)}>${t.projects.archiveAbout}<//>`;

/** A number, or null where the field is empty. */
const limit = (text) => (text.trim() === "" ? null : Number(text));

function Limits({ project }) {
  const path = `/projects/${project.id}/rate-limits`;
  const [limits, error, again] = useLoad(() => get(path), [project.id]);
  if (!limits) return html`<${Failure} error=${error} again=${again} />${!error && html`<${Waiting} />`}`;
  const { effective, ceiling, quotas, holds } = limits;
  const admin = session.may("admin");
  const change = async (body) => {
    await patch(path, body);
    await again();
  };
  const shown = (name, value) => (name === "storage_bytes" ? bytes(value) : number(value));
  const hint = (name) => `${t.limits.hints[name]}${ceiling[name] ? ` ${t.limits.ceilingHint(number(ceiling[name]))}` : ""}`;
  return html`<div class="grid wide">
    <${Numbers} title=${t.limits.title(project.name)} names=${RATES} label=${(name) => t.limits[name]} hint=${hint} values=${limits} change=${change}>
      <p class="dim">${t.limits.effective(effective.requests_per_minute && number(effective.requests_per_minute), number(effective.burst_limit ?? effective.requests_per_minute))}</p>
      <p class="dim">${t.limits.monthUsage(number(limits.tokens_this_month), effective.token_budget && number(effective.token_budget))}</p>
    <//>
    <div class="card"><h2>${t.limits.resourceUsage}</h2>
      <${Table} label=${t.limits.resourceUsage} rows=${QUOTAS} keyed=${(name) => name} columns=${[
        { title: t.limits.resource, cell: (name) => t.limits.quota[name] },
        { title: t.limits.used, right: true, cell: (name) => shown(name, holds[name]) },
        { title: t.limits.quotaColumn, right: true, cell: (name) => shown(name, quotas[name]) },
      ]} />
    </div>
    ${admin && html`<${Numbers} title=${t.limits.ceilingTitle} about=${t.limits.ceilingAbout} names=${RATES} label=${(name) => t.limits[name]} values=${ceiling}
      change=${(ceiling) => change({ ceiling })} />`}
    ${admin && html`<${Numbers} title=${t.limits.quotaTitle} about=${t.limits.quotaAbout} names=${QUOTAS} label=${(name) => t.limits.quota[name]} placeholder=${t.limits.defaultQuota} values=${quotas}
      change=${(quotas) => change({ quotas })} />`}
  </div>`;
}

/** A form of numbers, each of which may be empty; `change` is called with those that were edited. */
function Numbers({ title, about, names, label, hint = () => undefined, placeholder = t.limits.noLimit, values, change, children }) {
  const [edited, setEdited] = useState({});
  const [save, busy, error] = useAction(async () => {
    await change(Object.fromEntries(Object.entries(edited).map(([name, text]) => [name, limit(text)])));
    setEdited({});
  });
  const submit = (event) => {
    event.preventDefault();
    save();
  };
  return html`<form class="card" onSubmit=${submit} aria-label=${title}>
    <h2>${title}</h2>
    ${about && html`<p class="dim">${about}</p>`}
    ${names.map((name) => html`<${Text} key=${name} label=${label(name)} type="number" min="1" value=${edited[name] ?? String(values[name] ?? "")}
      onInput=${(text) => setEdited({ ...edited, [name]: text })} placeholder=${placeholder} hint=${hint(name)} />`)}
    ${children}
    <${Failure} error=${error} />
    <button class="first" disabled=${busy || !Object.keys(edited).length}>${t.save}</button>
  </form>`;
}
