// The audit log: who changed what, and when.

import { html, useState } from "../html.js";
import { all, download } from "../api.js";
import { toTime } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { EmptyState, ErrorAlert, PagedTable, Page, SelectField, TextField, RelativeTime, useAction, useLoad, usePagedList } from "../ui.js";

const PAGE_SIZE = 50;

export function AuditLog({ project }) {
  const [filters, setFilters] = useState({ action: "", actor: "", target: "", from: "", to: "" });
  const [scope, setScope] = useState("project");
  const set = (name) => (value) => setFilters((before) => ({ ...before, [name]: value.trim() }));
  const query = {
    project_id: scope === "project" ? project.id : undefined, action: filters.action, actor: filters.actor, target: filters.target,
    start_time: toTime(filters.from), end_time: toTime(filters.to),
  };
  const [keys] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const nameOf = (id) => keys?.find((key) => key.id === id)?.name;
  const list = usePagedList("/audit-events", { ...query, limit: PAGE_SIZE }, [project.id, scope, filters]);
  const [exportCsv, exporting, exportError] = useAction(() => download("/audit-events", query, { accept: "text/csv" }, "audit-log.csv"));
  const columns = [
    { title: t.time, cell: (row) => html`<${RelativeTime} value=${row.at} />` },
    { title: t.audit.action, cell: (row) => html`<code>${row.action}</code><br /><code class="muted">${row.target}</code>` },
    { title: t.audit.actor, cell: (row) => (row.actor ? html`${nameOf(row.actor) && html`${nameOf(row.actor)}<br />`}<code class="muted">${row.actor}</code>` : html`<span class="muted">${t.audit.server}</span>`) },
    { title: t.audit.details, cell: (row) => row.detail && html`<code class="muted details">${JSON.stringify(row.detail)}</code>` },
  ];
  return html`<${Page} title=${t.pages.audit} about=${t.audit.about}
      actions=${html`<button type="button" disabled=${exporting} onClick=${exportCsv}>${t.audit.csv}</button>`}>
    <div class="card filters">
      ${session.hasScope("admin") && html`<${SelectField} label=${t.project} value=${scope} onInput=${setScope}
        options=${[["project", project.name], ["all", t.audit.allProjects]]} />`}
      <${TextField} label=${t.audit.action} value=${filters.action} onInput=${set("action")} placeholder="api_key.rotated" />
      <${TextField} label=${t.audit.actor} value=${filters.actor} onInput=${set("actor")} placeholder="key_…" />
      <${TextField} label=${t.audit.target} value=${filters.target} onInput=${set("target")} placeholder="proj_…" />
      <${TextField} label=${t.from} type="datetime-local" value=${filters.from} onInput=${set("from")} />
      <${TextField} label=${t.to} type="datetime-local" value=${filters.to} onInput=${set("to")} />
    </div>
    <${ErrorAlert} error=${exportError} />
    <${PagedTable} list=${list} label=${t.pages.audit} columns=${columns} empty=${html`<${EmptyState} title=${t.audit.empty}><p>${t.audit.emptyHint}</p><//>`} />
  <//>`;
}
