// A job's page: live while it trains.

import { html, useMemo, useRef, useState } from "../../html.js";
import { all, apiPath, get, patch, post } from "../../api.js";
import { LineChart } from "../../chart.js";
import { compact, decimal, duration, number, percent } from "../../format.js";
import { fromJson, toJson } from "../../json.js";
import { session } from "../../session.js";
import { t } from "../../strings.js";
import { Table } from "../../table.js";
import { Badge, ConfirmDialog, Disclosure, ErrorAlert, FormDialog, Loading, Page, RelativeTime, Stat, TextArea, TextField, useAction, useInterval, useLoad } from "../../ui.js";
import { comparisonHash } from "../playground/comparison.js";
import { measurements, readEvents } from "./job-events.js";
import { isActive, JobProgress, JobState } from "./job-state.js";
import { DeleteModel, modelExists } from "./tuned-models.js";

const POLL_MS = 2000;
// The last step before a pause is still to be reported, and another client may resume the job.
const PAUSED_POLL_MS = 10_000;
const LEVELS = { error: "danger", warn: "warning" };

export function Job({ id, me }) {
  const path = apiPath`/fine_tuning/jobs/${id}`;
  const known = useRef([]);
  const [job, error, reload] = useLoad(() => get(path), [id]);
  const [events, eventsError, reloadEvents] = useLoad(async () => (known.current = await readEvents(id, known.current)), [id]);
  const messages = useMemo(() => events?.filter((event) => event.type !== "metrics"), [events]);
  // Each new checkpoint is announced by an event of the type "message".
  const [checkpoints, , reloadCheckpoints] = useLoad(async () => (messages ? all(`${path}/checkpoints`) : null), [id, messages?.length]);
  const refreshing = useRef(false);
  const refresh = async () => {
    if (refreshing.current) return;
    refreshing.current = true;
    // In this order, so that the events of a job that has ended are complete.
    await reload();
    await reloadEvents();
    refreshing.current = false;
  };
  useInterval(job?.state === "paused" ? PAUSED_POLL_MS : POLL_MS, () => (isActive(job) || job?.state === "paused") && refresh());
  // What a poll that is under way returns may be out of date.
  const reloadAll = () => Promise.all([reload(), reloadEvents()]);
  const [change, busy, changeError] = useAction(async (action) => {
    await post(`${path}/${action}`, {});
    await reloadAll();
  });
  const [open, setOpen] = useState(null);
  const close = (reload) => (changed) => {
    setOpen(null);
    if (changed) reload();
  };
  const [kind, model] = open ?? [];
  const rows = useMemo(() => measurements(events ?? []), [events]);
  // Tuned models belong to the project of the job, and only its keys can call and delete them.
  const ownProject = job?.project_id === me.project_id;
  const tuned = ownProject ? job.fine_tuned_model : null;
  const [exists, , reloadExists] = useLoad(async () => (tuned ? modelExists(tuned) : null), [tuned]);
  const canCompare = ownProject && session.hasScope("inference");
  const button = (action, text) => html`<button type="button" disabled=${busy} onClick=${() => change(action)}>${text}</button>`;
  const actions = job && html`
    ${isActive(job) && button("pause", t.tuning.pause)}
    ${job.state === "paused" && button("resume", t.tuning.resume)}
    <button type="button" onClick=${() => setOpen(["edit"])}>${t.edit}</button>
    ${(isActive(job) || job.state === "paused") && html`<button type="button" class="text-button error" onClick=${() => setOpen(["cancel"])}>${t.tuning.cancelJob}</button>`}
    ${exists && html`<button type="button" class="text-button error" onClick=${() => setOpen(["delete", job.fine_tuned_model])}>${t.tuning.deleteModel}</button>`}
    ${exists && canCompare && html`<a class="button primary" href=${comparisonHash(job.model, job.fine_tuned_model)}>${t.tuning.compareWithBase}</a>`}`;
  return html`<${Page} title=${job?.name ?? t.tuning.job} about=${html`<a href="#/tuning">${t.back}</a> · <code>${id}</code>`} actions=${actions}>
    <${ErrorAlert} error=${error ?? eventsError ?? changeError} retry=${(error ?? eventsError) && refresh} />
    ${!job && !error && html`<${Loading} />`}
    ${job && html`
      <div class="card job-state"><${JobState} job=${job} /><${JobProgress} job=${job} format=${t.tuning.stepOf} />${job.error && html`<p class="error">${job.error.message} <span class="muted nowrap">${t.tuning.errorCode} <code>${job.error.code}</code></span></p>`}</div>
      ${job.progress && html`<${Figures} job=${job} />`}
      <h2>${t.tuning.loss}</h2>
      <${Loss} job=${job} rows=${rows} />
      <div class="job-details">
        <section class="card"><h2>${t.tuning.details}</h2><${Facts} rows=${detailsOf(job, exists === false)} /></section>
        <section class="card"><h2>${t.tuning.hyperparameters}</h2><${Facts} rows=${Object.entries(job.hyperparameters).map(([name, value]) => [t.tuning.hyperparameter[name] ?? name, hyperparameterText(value)])} /></section>
      </div>
      <h2>${t.tuning.checkpoints}</h2>
      ${checkpoints?.length > 0 ? html`<${Checkpoints} ...${{ job, checkpoints, ownProject, canCompare }} remove=${(name) => setOpen(["delete", name])} />` : html`<p class="muted">${t.tuning.noCheckpoints}</p>`}
      <h2>${t.tuning.events}</h2>
      ${messages?.length === 0 && html`<p class="muted">${t.tuning.noEvents}</p>`}
      ${messages?.length > 0 && html`<${Events} events=${messages} />`}`}
    ${kind === "edit" && html`<${EditJob} job=${job} close=${close(reload)} />`}
    ${kind === "cancel" && html`<${ConfirmDialog} title=${t.tuning.cancelTitle} action=${t.tuning.cancelJob} dismiss=${t.tuning.keepJob} close=${() => setOpen(null)} run=${() => post(`${path}/cancel`, {})} onDone=${() => close(reloadAll)(true)}>${t.tuning.cancelAbout}<//>`}
    ${kind === "delete" && html`<${DeleteModel} id=${model} close=${close(() => Promise.all([reloadCheckpoints(), reloadExists()]))} />`}
  <//>`;
}

const hyperparameterText = (value) => (value === "auto" ? t.tuning.auto : typeof value === "boolean" ? (value ? t.tuning.yes : t.tuning.no) : Array.isArray(value) ? value.join(", ") : Number.isInteger(value) ? number(value) : decimal(value));

/** `[name, value]` of each detail. `isDeleted`: the model that the job has trained no longer exists. */
const detailsOf = (job, isDeleted) => [
  [t.tuning.method, t.tuning.methods[job.method?.type] ?? job.method?.type], [t.tuning.baseModel, job.model],
  [t.tuning.fineTunedModel, job.fine_tuned_model ? html`<code>${job.fine_tuned_model}</code>${isDeleted && html` <${Badge}>${t.tuning.deleted}<//>`}` : html`<span class="muted">${job.finished_at ? t.tuning.none : t.tuning.noneYet}</span>`],
  [t.tuning.training, html`<code>${job.training_file}</code>`], [t.tuning.validation, job.validation_file && html`<code>${job.validation_file}</code>`], [t.tuning.suffix, job.suffix], [t.tuning.seed, String(job.seed)],
  [t.tuning.trainedTokens, job.trained_tokens !== null && number(job.trained_tokens)],
  [t.created, html`<${RelativeTime} value=${job.created_at} />`], [t.tuning.finished, job.finished_at && html`<${RelativeTime} value=${job.finished_at} />`],
  [t.metadata, job.metadata && html`<code>${JSON.stringify(job.metadata)}</code>`],
];

const Facts = ({ rows }) => html`<dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** How far the training has come, and how well. */
function Figures({ job }) {
  const { progress, state } = job;
  const method = job.method?.type ?? "supervised";
  const epochs = job.hyperparameters.n_epochs;
  const left = job.estimated_finish && Math.max(1, job.estimated_finish - Math.floor(Date.now() / 1000));
  return html`<div class="stats">
    ${Number.isFinite(epochs) && html`<${Stat} label=${t.tuning.epoch} value=${((progress.step / progress.steps) * epochs).toFixed(1)} unit=${t.tuning.of(number(epochs))} />`}
    <${Stat} label=${t.tuning.trainingLoss} value=${decimal(progress.train_loss)} />
    ${progress.valid_loss !== null && html`<${Stat} label=${t.tuning.validationLoss} value=${decimal(progress.valid_loss)} />`}
    <${Stat} label=${t.tuning.accuracy[method]} value=${percent(progress.train_mean_token_accuracy)}
      hint=${progress.valid_mean_token_accuracy === null ? t.tuning.accuracyHint[method] : t.tuning.validationAccuracy(percent(progress.valid_mean_token_accuracy))} />
    <${Stat} label=${t.tuning.speed} value=${compact(progress.tokens_per_second)} unit=${t.tuning.perSecond} />
    ${state === "running" && html`<${Stat} label=${t.tuning.timeLeft} value=${Number.isFinite(left) ? duration(left) : "–"} />`}
  </div>`;
}

/** The curves of the loss, and their values as a table. */
function Loss({ job, rows }) {
  const curve = (name, color, field) => {
    const own = rows.filter((row) => Number.isFinite(row[field]));
    return { name, color, xs: own.map((row) => row.step), values: own.map((row) => row[field]) };
  };
  const series = [curve(t.tuning.trainingLoss, "color-0", "train_loss"), curve(t.tuning.validationLoss, "color-1", "full_valid_loss")].filter(({ xs }) => xs.length);
  if (!series.length) return html`<p class="muted">${job.finished_at ? t.tuning.noLossRecorded : t.tuning.noLoss}</p>`;
  const format = (step) => t.tuning.stepNumber(number(step));
  const value = (title, field, show = decimal) => ({ title, numeric: true, cell: (row) => (Number.isFinite(row[field]) ? show(row[field]) : "–") });
  const columns = [
    { title: t.tuning.step, numeric: true, cell: (row) => html`<strong>${number(row.step)}</strong>` }, value(t.tuning.trainingLoss, "train_loss"), ...(series.length > 1 ? [value(t.tuning.validationLoss, "full_valid_loss")] : []),
    value(t.tuning.accuracy[job.method?.type] ?? t.tuning.accuracy.supervised, "train_mean_token_accuracy", percent), value(t.tuning.learningRate, "learning_rate", (rate) => rate.toExponential(2)),
    value(t.tuning.gradientNorm, "gradient_norm"), value(t.tuning.perSecond, "tokens_per_second", compact),
  ];
  return html`<${LineChart} label=${t.tuning.loss} unit=${() => ""} whole fine ...${{ series, format }} />
    <${Disclosure} label=${t.tuning.valuesByStep}><div class="long-table"><${Table} label=${t.tuning.valuesByStep} columns=${columns} rows=${rows} rowKey=${(row) => row.step} /></div><//>`;
}

function Checkpoints({ job, checkpoints, ownProject, canCompare, remove }) {
  const hasValidation = checkpoints.some((checkpoint) => checkpoint.metrics.full_valid_loss !== null);
  const columns = [
    { title: t.tuning.model, cell: (one) => html`<code>${one.fine_tuned_model_checkpoint}</code>` },
    { title: t.tuning.step, numeric: true, cell: (one) => number(one.step_number) },
    { title: t.tuning.trainingLoss, numeric: true, cell: (one) => decimal(one.metrics.train_loss) },
    ...(hasValidation ? [{ title: t.tuning.validationLoss, numeric: true, cell: (one) => decimal(one.metrics.full_valid_loss) }] : []),
    { title: t.created, cell: (one) => html`<${RelativeTime} value=${one.created_at} />` },
    ...(ownProject ? [{ title: t.actions, cell: ({ fine_tuned_model_checkpoint: name }) => html`<div class="actions">
      ${canCompare && html`<a class="button text-button" href=${comparisonHash(job.model, name)}>${t.tuning.compare}<span class="visually-hidden"> ${name}</span></a>`}
      <button type="button" class="text-button error" onClick=${() => remove(name)}>${t.delete}<span class="visually-hidden"> ${name}</span></button></div>` }] : []),
  ];
  return html`${!ownProject && html`<p class="muted">${t.tuning.otherProject}</p>`}
    <${Table} label=${t.tuning.checkpoints} columns=${columns} rows=${checkpoints} rowKey=${(one) => one.id} />`;
}

function Events({ events }) {
  const columns = [
    { title: t.time, cell: (event) => html`<${RelativeTime} value=${event.created_at} />` },
    { title: t.tuning.level, cell: (event) => html`<${Badge} kind=${LEVELS[event.level] ?? ""}>${t.tuning.levels[event.level] ?? event.level}<//>` },
    { title: t.tuning.message, cell: (event) => event.message },
  ];
  return html`<div class="long-table"><${Table} label=${t.tuning.events} columns=${columns} rows=${events} rowKey=${(event) => event.id} /></div>`;
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
