// The audit log: who changed what, and when.

import { html, useMemo, useState } from "../html.js";
import { all, download } from "../api.js";
import { preciseDate } from "../format.js";
import { toJson } from "../json.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { PagedTable } from "../table.js";
import { limitsOf, TimeRangeFields, useTimeRange } from "../time-range.js";
import { Dialog, EmptyState, ErrorAlert, Filters, Page, SelectField, TextField, useAction, useLoad, usePagedList } from "../ui.js";

const PAGE_SIZE = 50;
const TIME_RANGES = ["all", "hour", "day", "week", "month", "custom"];
// Suggestions for the filter. A name without a dot selects all actions on such objects.
const ACTIONS = ["api_key", "api_key.created", "api_key.updated", "api_key.rotated", "api_key.revoked", "project", "project.created", "project.updated",
  "project.limits_updated", "project.archived", "agent", "agent.created", "agent.updated", "agent.deleted", "conversation", "conversation.created",
  "conversation.appended", "conversation.replaced", "conversation.updated", "conversation.item_deleted", "conversation.deleted",
  "file", "file.created", "file.deleted", "fine_tuning_job", "fine_tuning_job.created", "fine_tuning_job.updated", "fine_tuning_job.cancelled"];

/** `nested`: shown in a tab of the project's page, for that project only. */
export function AuditLog({ project, nested }) {
  const [filters, setFilters] = useState({ action: "", actor: "", target: "" });
  const [scope, setScope] = useState("project");
  const [range, setRange] = useTimeRange("all");
  const [open, setOpen] = useState(null);
  const set = (name) => (value) => setFilters((before) => ({ ...before, [name]: value.trim() }));
  // All pages of a list have the same limits.
  const query = useMemo(() => ({ project_id: scope === "project" ? project.id : undefined, ...filters, ...limitsOf(range) }), [project.id, scope, filters, range]);
  const [keys] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const list = usePagedList("/audit-events", { ...query, limit: PAGE_SIZE }, [query]);
  const [exportCsv, exporting, exportError] = useAction(() => download("/audit-events", query, { accept: "text/csv" }, "audit-log.csv"));
  const actorOf = ({ actor }) => (actor ? ([...(keys ?? []), session.me].find((key) => key.id === actor)?.name ?? actor) : t.audit.server);
  const columns = [
    { title: t.time, sort: (row) => row.at, cell: (row) => html`<time datetime=${row.at}>${preciseDate(row.at)}</time>` },
    { title: t.audit.action, sort: (row) => row.action, cell: (row) => html`<code>${row.action}</code>` },
    { title: t.audit.actor, sort: actorOf, cell: (row) => html`<span class="clipped" title=${row.actor}>${actorOf(row)}</span>` },
    { title: t.audit.target, cell: (row) => html`<code class="muted clipped" title=${row.target}>${row.target}</code>` },
    { title: t.audit.details, cell: (row) => row.detail && html`<code class="muted clipped wide">${JSON.stringify(row.detail)}</code>` },
    { title: t.actions, cell: (row) => html`<button type="button" class="text-button" onClick=${() => setOpen(row)}>${t.audit.view}<span class="visually-hidden"> ${row.action}</span></button>` },
  ];
  const active = [...Object.values(filters), scope === "all", range.name !== "all"].filter(Boolean).length;
  return html`<${Page} title=${t.pages.audit} about=${t.audit.about} nested=${nested}
      actions=${html`<button type="button" disabled=${exporting} onClick=${exportCsv}>${t.audit.csv}</button>`}>
    <${Filters} count=${active}>
      ${session.hasScope("admin") && !nested && html`<${SelectField} label=${t.project} value=${scope} onInput=${setScope}
        options=${[["project", project.name], ["all", t.audit.allProjects]]} />`}
      <${TimeRangeFields} ...${{ range, setRange, names: TIME_RANGES }} />
      <${TextField} label=${t.audit.action} value=${filters.action} onInput=${set("action")} placeholder=${t.audit.anyAction} list="audit-actions" />
      <${TextField} label=${t.audit.actor} value=${filters.actor} onInput=${set("actor")} placeholder=${t.audit.anyKey} list="audit-actors" />
      <${TextField} label=${t.audit.target} value=${filters.target} onInput=${set("target")} placeholder=${t.audit.anyTarget} />
      <datalist id="audit-actions">${ACTIONS.map((action) => html`<option key=${action} value=${action} />`)}</datalist>
      <datalist id="audit-actors">${keys?.map((key) => html`<option key=${key.id} value=${key.id}>${key.name}</option>`)}</datalist>
    <//>
    <${ErrorAlert} error=${exportError} />
    <${PagedTable} list=${list} label=${t.pages.audit} columns=${columns} empty=${html`<${EmptyState} title=${t.audit.empty}><p>${t.audit.emptyHint}</p><//>`} />
    ${open && html`<${EventDialog} event=${open} actor=${actorOf(open)} close=${() => setOpen(null)} />`}
  <//>`;
}

const EventDialog = ({ event, actor, close }) => html`<${Dialog} title=${event.action} close=${close} wide>
  <dl>
    <dt>${t.time}</dt><dd>${preciseDate(event.at)}</dd>
    <dt>${t.audit.actor}</dt><dd>${actor}${event.actor && event.actor !== actor && html`<br /><code class="muted">${event.actor}</code>`}</dd>
    <dt>${t.audit.target}</dt><dd><code>${event.target}</code></dd>
    <dt>${t.audit.event}</dt><dd><code>${event.id}</code></dd>
    ${event.detail && html`<dt>${t.audit.details}</dt><dd><pre class="json" tabindex="0" aria-label=${t.audit.details}>${toJson(event.detail)}</pre></dd>`}
  </dl>
  <div class="actions"><button type="button" onClick=${close}>${t.close}</button></div>
<//>`;
