// The list of projects.

import { html, useState } from "../html.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Table } from "../table.js";
import { Badge, Page, RelativeTime } from "../ui.js";
import { EditProject, ProjectPage, ProjectStatus } from "./project.js";

export function Projects({ rest, ...props }) {
  return rest[0] ? html`<${ProjectPage} key=${rest[0]} id=${rest[0]} tab=${rest[1]} ...${props} />` : html`<${ProjectList} ...${props} />`;
}

function ProjectList({ projects, refresh }) {
  const [creating, setCreating] = useState(false);
  const close = (created) => {
    setCreating(false);
    if (created) refresh();
  };
  const admin = session.hasScope("admin");
  const columns = [
    { title: t.name, sort: (one) => one.name, cell: (one) => html`<a href=${`#/projects/${one.id}`}><strong>${one.name}</strong></a><br /><code class="muted">${one.id}</code>` },
    { title: t.projects.environment, sort: (one) => one.environment, cell: (one) => one.environment && html`<${Badge}>${one.environment}<//>` },
    { title: t.status, sort: (one) => Boolean(one.archived_at), cell: (one) => html`<${ProjectStatus} project=${one} />` },
    { title: t.created, sort: (one) => one.created_at, cell: (one) => html`<${RelativeTime} value=${one.created_at} />` },
  ];
  return html`<${Page} title=${t.pages.projects} about=${admin ? t.projects.about : t.projects.aboutOwn}
      actions=${admin && html`<button type="button" class="primary" onClick=${() => setCreating(true)}>${t.projects.create}</button>`}>
    <${Table} label=${t.pages.projects} columns=${columns} rows=${projects} rowKey=${(one) => one.id} />
    ${creating && html`<${EditProject} close=${close} />`}
  <//>`;
}
