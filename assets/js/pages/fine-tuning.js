// Fine-tuning: training files, jobs and their progress.

import { html, useMemo, useState } from "../html.js";
import { all, apiPath, get, patch, post, remove } from "../api.js";
import { LineChart } from "../chart.js";
import { bytes, number } from "../format.js";
import { fromJson, toJson } from "../json.js";
import { t } from "../strings.js";
import { PagedTable, Table } from "../table.js";
import { TextArea, Badge, ConfirmDialog, EmptyState, ErrorAlert, Field, FormDialog, Page, SelectField, TextField, RelativeTime, useAction, useInterval, useLoad, useModels, usePagedList, Loading } from "../ui.js";

const POLL_MS = 3000;
const BADGES = { succeeded: "success", failed: "danger", cancelled: "warning", running: "success" };
const isActive = (job) => ["queued", "running", "validating_files"].includes(job?.state);

export const FineTuning = ({ project, rest }) => (rest[0] ? html`<${Job} key=${rest[0]} id=${rest[0]} />` : html`<${Overview} project=${project} />`);

const State = ({ job }) => html`<${Badge} kind=${BADGES[job.state] ?? ""}>${t.tuning.states[job.state] ?? job.state}<//>`;

function Overview({ project }) {
  const files = usePagedList("/files", { project_id: project.id }, [project.id]);
  const jobs = usePagedList("/fine_tuning/jobs", { project_id: project.id }, [project.id]);
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) files.reload();
  };
  const filename = (id) => files.rows.find((file) => file.id === id)?.filename ?? id;
  const fileColumns = [
    { title: t.tuning.file, sort: (file) => file.filename, cell: (file) => html`<strong>${file.filename}</strong><br /><code class="muted">${file.id}</code>` },
    { title: t.tuning.examples, numeric: true, sort: (file) => file.examples, cell: (file) => number(file.examples) },
    { title: t.tuning.size, numeric: true, sort: (file) => file.bytes, cell: (file) => bytes(file.bytes) },
    { title: t.created, sort: (file) => file.created_at, cell: (file) => html`<${RelativeTime} value=${file.created_at} />` },
    { title: t.actions, cell: (file) => html`<button type="button" class="text-button error" onClick=${() => setOpen(["remove", file])}>${t.delete}<span class="visually-hidden"> ${file.filename}</span></button>` },
  ];
  const jobColumns = [
    { title: t.tuning.job, sort: (job) => job.name ?? job.id, cell: (job) => html`<a href=${`#/tuning/${job.id}`}>${job.name ?? job.id}</a>${job.name && html`<br /><code class="muted">${job.id}</code>`}` },
    { title: t.status, sort: (job) => job.state, cell: (job) => html`<${State} job=${job} />` },
    { title: t.tuning.model, sort: (job) => job.model, cell: (job) => job.model },
    { title: t.tuning.training, cell: (job) => filename(job.training_file) },
    { title: t.created, sort: (job) => job.created_at, cell: (job) => html`<${RelativeTime} value=${job.created_at} />` },
  ];
  const [kind, file] = open ?? [];
  return html`<${Page} title=${t.pages.tuning} about=${t.tuning.about} actions=${html`<button type="button" onClick=${() => setOpen(["upload"])}>${t.tuning.uploadFile}</button>
      <button type="button" class="primary" disabled=${!files.rows.length} onClick=${() => setOpen(["start"])}>${t.tuning.startJob}</button>`}>
    <h2>${t.tuning.jobs}</h2>
    <${PagedTable} list=${jobs} label=${t.tuning.jobs} columns=${jobColumns} empty=${html`<${EmptyState} title=${t.tuning.noJobs}><p>${t.tuning.noJobsHint}</p><//>`} />
    <h2>${t.tuning.files}</h2>
    <${PagedTable} list=${files} label=${t.tuning.files} columns=${fileColumns} empty=${html`<${EmptyState} title=${t.tuning.noFiles}><p>${t.tuning.noFilesHint}</p><//>`} />
    ${kind === "upload" && html`<${Upload} project=${project} close=${close} />`}
    ${kind === "remove" && html`<${DeleteFile} file=${file} close=${close} />`}
    ${kind === "start" && html`<${StartJob} project=${project} files=${files.rows} close=${() => setOpen(null)} />`}
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

function StartJob({ project, files, close }) {
  const [form, setForm] = useState({ name: "", model: "", training: files[0].id, validation: "", epochs: "", suffix: "" });
  const [models] = useModels("chat_completions");
  const set = (name) => (value) => setForm((before) => ({ ...before, [name]: value }));
  const [start, busy, error] = useAction(() => post("/fine_tuning/jobs", {
    project_id: project.id, model: form.model || models[0].id, training_file: form.training, validation_file: form.validation || undefined, name: form.name || undefined,
    suffix: form.suffix || undefined, method: { type: "supervised", supervised: { hyperparameters: { n_epochs: form.epochs ? Number(form.epochs) : "auto" } } },
  }));
  const submit = async () => {
    const job = await start();
    if (job) location.hash = `#/tuning/${job.id}`;
  };
  const options = files.map((file) => [file.id, file.filename]);
  return html`<${FormDialog} title=${t.tuning.startJob} action=${t.tuning.start} ...${{ close, submit, busy: busy || !models?.length, error }}>
    <${TextField} label=${t.name} value=${form.name} onInput=${set("name")} maxlength="256" autofocus />
    <${SelectField} label=${t.tuning.model} value=${form.model || models?.[0]?.id} onInput=${set("model")} options=${(models ?? []).map((model) => [model.id, model.id])} />
    <${SelectField} label=${t.tuning.training} value=${form.training} onInput=${set("training")} options=${options} />
    <${SelectField} label=${t.tuning.validation} value=${form.validation} onInput=${set("validation")} options=${[["", t.tuning.noValidation], ...options]} />
    <div class="two-columns"><${TextField} label=${t.tuning.epochs} type="number" min="1" max="50" value=${form.epochs} onInput=${set("epochs")} placeholder=${t.tuning.auto} />
      <${TextField} label=${t.tuning.suffix} value=${form.suffix} onInput=${set("suffix")} maxlength="64" /></div>
  <//>`;
}

/** The loss curve, from the events that report a loss, as props of `LineChart`. */
function lossCurve(events) {
  const reports = events.filter((event) => Number.isFinite(event.data?.train_loss)).sort((a, b) => a.data.step - b.data.step);
  return { xs: reports.map((event) => event.data.step), values: reports.map((event) => event.data.train_loss) };
}

function Job({ id }) {
  const [job, error, reload] = useLoad(() => get(apiPath`/fine_tuning/jobs/${id}`), [id]);
  const [events, , reloadEvents] = useLoad(() => all(apiPath`/fine_tuning/jobs/${id}/events`), [id]);
  const [editing, setEditing] = useState(false);
  useInterval(POLL_MS, () => isActive(job) && Promise.all([reload(), reloadEvents()]));
  const [cancel, busy, cancelError] = useAction(async () => {
    await post(apiPath`/fine_tuning/jobs/${id}/cancel`, {});
    await Promise.all([reload(), reloadEvents()]);
  });
  const columns = [
    { title: t.time, cell: (event) => html`<${RelativeTime} value=${event.created_at} />` },
    { title: t.tuning.level, cell: (event) => html`<${Badge} kind=${{ error: "danger", warn: "warning" }[event.level] ?? ""}>${t.tuning.levels[event.level] ?? event.level}<//>` },
    { title: t.tuning.message, cell: (event) => event.message },
  ];
  const loss = useMemo(() => lossCurve(events ?? []), [events]);
  const rows = job ? [[t.tuning.model, job.model], [t.tuning.training, html`<code>${job.training_file}</code>`], [t.tuning.validation, job.validation_file && html`<code>${job.validation_file}</code>`],
    [t.tuning.epochs, job.hyperparameters?.n_epochs === "auto" ? t.tuning.auto : job.hyperparameters?.n_epochs], [t.tuning.fineTunedModel, job.fine_tuned_model ?? t.tuning.noneYet], [t.tuning.trainedTokens, job.trained_tokens !== null && number(job.trained_tokens)],
    [t.metadata, job.metadata && html`<code>${JSON.stringify(job.metadata)}</code>`]] : [];
  const actions = job && html`<button type="button" onClick=${() => setEditing(true)}>${t.edit}</button>
    ${isActive(job) && html`<button type="button" class="danger" disabled=${busy} onClick=${cancel}>${t.tuning.cancelJob}</button>`}`;
  return html`<${Page} title=${job?.name ?? t.tuning.job} about=${html`<a href="#/tuning">${t.back}</a> · <code>${id}</code>`} actions=${actions}>
    <${ErrorAlert} error=${error ?? cancelError} retry=${error && reload} />
    ${!job && !error && html`<${Loading} />`}
    ${job && html`<div class="card"><p><${State} job=${job} />${job.error && html` <span class="error">${job.error.message}</span>`}</p>
      <dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl></div>
      <h2>${t.tuning.loss}</h2>
      ${loss.xs.length > 1 ? html`<${LineChart} label=${t.tuning.loss} unit=${() => ""} format=${(step) => t.tuning.stepNumber(Math.round(step))} ...${loss} />` : html`<p class="muted">${t.tuning.noLoss}</p>`}
      <h2>${t.tuning.events}</h2>`}
    ${events?.length === 0 && html`<p class="muted">${t.tuning.noEvents}</p>`}
    ${events?.length > 0 && html`<${Table} label=${t.tuning.events} columns=${columns} rows=${events} rowKey=${(event) => event.id} />`}
    ${editing && html`<${EditJob} job=${job} close=${(changed) => (setEditing(false), changed && reload())} />`}
  <//>`;
}

function EditJob({ job, close }) {
  const [name, setName] = useState(job.name ?? "");
  const [metadata, setMetadata] = useState(toJson(job.metadata));
  const [save, busy, error] = useAction(async () => patch(apiPath`/fine_tuning/jobs/${job.id}`, { name: name || null, metadata: fromJson(t.metadata, metadata) }));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${t.tuning.editJob} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${TextField} label=${t.name} value=${name} onInput=${setName} maxlength="256" autofocus />
    <${TextArea} class="code" label=${t.metadata} hint=${t.metadataHint} value=${metadata} onInput=${setMetadata} rows="4" spellcheck="false" />
  <//>`;
}
