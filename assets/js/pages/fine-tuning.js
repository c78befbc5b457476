// Fine-tuning: training files and jobs.

import { html, useState } from "../html.js";
import { apiPath, get, post, remove } from "../api.js";
import { bytes, number } from "../format.js";
import { t } from "../strings.js";
import { PagedTable } from "../table.js";
import { ConfirmDialog, EmptyState, Field, FormDialog, Page, RelativeTime, useAction, useInterval, usePagedList } from "../ui.js";
import { Job } from "./fine-tuning/job.js";
import { isActive, JobProgress, JobState } from "./fine-tuning/job-state.js";
import { StartJob } from "./fine-tuning/start-job.js";

const POLL_MS = 3000;

export const FineTuning = ({ project, me, rest }) => (rest[0] ? html`<${Job} key=${rest[0]} id=${rest[0]} me=${me} />` : html`<${Overview} project=${project} />`);

/** Keeps the states of a project's jobs current while one of them trains: returns `jobs` with their latest versions. The list keeps the pages that were loaded. */
function useLatest(jobs, project) {
  const [latest, setLatest] = useState(new Map());
  const current = jobs.map((job) => latest.get(job.id) ?? job);
  const [update] = useAction(async () => {
    const { data } = await get("/fine_tuning/jobs", { project_id: project.id, limit: 100 });
    setLatest(new Map(data.map((job) => [job.id, job])));
  });
  useInterval(POLL_MS, () => current.some(isActive) && update());
  return current;
}

function Overview({ project }) {
  const files = usePagedList("/files", { project_id: project.id, purpose: "fine-tune" }, [project.id]);
  const jobs = usePagedList("/fine_tuning/jobs", { project_id: project.id }, [project.id]);
  const jobRows = useLatest(jobs.rows, project);
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) files.reload();
  };
  const filename = (id) => files.rows.find((file) => file.id === id)?.filename ?? id;
  const fileColumns = [
    { title: t.tuning.file, sort: (file) => file.filename, cell: (file) => html`<strong>${file.filename}</strong><br /><code class="muted">${file.id}</code>` },
    { title: t.tuning.examples, numeric: true, sort: (file) => file.examples, cell: (file) => number(file.examples) },
    { title: t.tuning.format, sort: (file) => file.example_format, cell: (file) => t.tuning.formats[file.example_format] ?? file.example_format },
    { title: t.tuning.size, numeric: true, sort: (file) => file.bytes, cell: (file) => bytes(file.bytes) },
    { title: t.created, sort: (file) => file.created_at, cell: (file) => html`<${RelativeTime} value=${file.created_at} />` },
    { title: t.actions, cell: (file) => html`<button type="button" class="text-button error" onClick=${() => setOpen(["remove", file])}>${t.delete}<span class="visually-hidden"> ${file.filename}</span></button>` },
  ];
  const jobColumns = [
    { title: t.tuning.job, sort: (job) => job.name ?? job.id, cell: (job) => html`<a href=${`#/tuning/${job.id}`}>${job.name ?? job.id}</a>${job.name && html`<br /><code class="muted">${job.id}</code>`}` },
    { title: t.status, sort: (job) => job.state, cell: (job) => html`<${JobState} job=${job} />` },
    { title: t.tuning.progress, cell: (job) => html`<${JobProgress} job=${job} />` },
    { title: t.tuning.model, sort: (job) => job.model, cell: (job) => job.model },
    { title: t.tuning.training, cell: (job) => filename(job.training_file) },
    { title: t.created, sort: (job) => job.created_at, cell: (job) => html`<${RelativeTime} value=${job.created_at} />` },
  ];
  const [kind, file] = open ?? [];
  return html`<${Page} title=${t.pages.tuning} about=${t.tuning.about} actions=${html`<button type="button" onClick=${() => setOpen(["upload"])}>${t.tuning.uploadFile}</button>
      <button type="button" class="primary" disabled=${!files.rows.length} onClick=${() => setOpen(["start"])}>${t.tuning.startJob}</button>`}>
    <h2>${t.tuning.jobs}</h2>
    <${PagedTable} list=${{ ...jobs, rows: jobRows }} label=${t.tuning.jobs} columns=${jobColumns} empty=${html`<${EmptyState} title=${t.tuning.noJobs}><p>${t.tuning.noJobsHint}</p><//>`} />
    <h2>${t.tuning.files}</h2>
    <${PagedTable} list=${files} label=${t.tuning.files} columns=${fileColumns} empty=${html`<${EmptyState} title=${t.tuning.noFiles}><p>${t.tuning.noFilesHint}</p><//>`} />
    ${kind === "upload" && html`<${Upload} project=${project} close=${close} />`}
    ${kind === "remove" && html`<${DeleteFile} file=${file} close=${close} />`}
    ${kind === "start" && html`<${StartJob} project=${project} close=${() => setOpen(null)} />`}
  <//>`;
}

function Upload({ project, close }) {
  const [file, setFile] = useState(null);
  const [upload, busy, error] = useAction(() => {
    const form = new FormData();
    // The server reads the fields in order, so the file comes last.
    form.append("purpose", "fine-tune");
    form.append("project_id", project.id);
    form.append("file", file, file.name);
    return post("/files", form);
  });
  const submit = async () => (await upload()) && close(true);
  return html`<${FormDialog} title=${t.tuning.uploadFile} action=${busy ? t.tuning.uploading : t.tuning.upload} ...${{ close: () => close(false), submit, busy, error }}>
    <${Field} label=${t.tuning.file} hint=${t.tuning.fileHint}>${(ids) => html`<input type="file" required accept=".jsonl,.json,.txt" ...${ids} onChange=${(event) => setFile(event.target.files[0])} />`}<//>
  <//>`;
}

const DeleteFile = ({ file, close }) => html`<${ConfirmDialog} title=${t.tuning.deleteTitle(file.filename)} action=${t.delete} close=${() => close(false)}
  run=${() => remove(apiPath`/files/${file.id}`)} onDone=${() => close(true)}>${t.tuning.deleteAbout}<//>`;
