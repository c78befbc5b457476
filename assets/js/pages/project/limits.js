// A project's limits, and its quotas with their use.

import { html, useState } from "../../html.js";
import { apiPath, get, patch } from "../../api.js";
import { bytes, exactSize, number, SIZE_UNITS, splitSize } from "../../format.js";
import { session } from "../../session.js";
import { t } from "../../strings.js";
import { Table } from "../../table.js";
import { ErrorAlert, Loading, Meter, useAction, useLoad } from "../../ui.js";

const LIMITS = ["requests_per_minute", "burst_limit", "tokens_per_minute", "audio_seconds_per_minute", "token_budget"];
const QUOTAS = ["api_keys", "conversations", "responses", "agents", "files", "fine_tuning_jobs", "storage_bytes"];
const STORAGE = "storage_bytes";

export function LimitsAndQuotas({ project }) {
  const path = apiPath`/projects/${project.id}/rate-limits`;
  const [limits, error, reload] = useLoad(() => get(path), [project.id]);
  if (!limits) return html`<${ErrorAlert} error=${error} retry=${reload} />${!error && html`<${Loading} />`}`;
  const update = async (body) => {
    await patch(path, body);
    await reload();
  };
  return html`<${LimitsForm} ...${{ limits, update, readOnly: Boolean(project.archived_at) }} />
    <${QuotasForm} ...${{ limits, update, readOnly: Boolean(project.archived_at) || !session.hasScope("admin") }} />`;
}

/** The state of a form of optional numbers: the edited texts by name, and an action that saves them. An empty text is null. `saves` counts the saves. */
function useNumbers(update) {
  const [edited, setEdited] = useState({});
  const [saves, setSaves] = useState(0);
  const [save, busy, error] = useAction(async () => {
    await update(Object.fromEntries(Object.entries(edited).map(([name, text]) => [name, text.trim() === "" ? null : Number(text)])));
    setEdited({});
    setSaves((saves) => saves + 1);
  });
  const submit = (event) => {
    event.preventDefault();
    save();
  };
  return { edited, saves, set: (name) => (text) => setEdited((edited) => ({ ...edited, [name]: text })), submit, busy, error, changed: Object.keys(edited).length > 0 };
}

const NumberInput = ({ label, value, onInput, placeholder }) => html`<input type="number" min="1" aria-label=${label} value=${value ?? ""} placeholder=${placeholder} onInput=${(event) => onInput(event.target.value)} />`;

const SaveBar = ({ form, children }) => html`<${ErrorAlert} error=${form.error} />
  <div class="save-bar"><button class="primary" disabled=${form.busy || !form.changed}>${t.save}</button><span class="muted">${children}</span></div>`;

function LimitsForm({ limits, update, readOnly }) {
  const { effective, ceiling, tokens_this_month: used } = limits;
  // Names of the maximum limits have a prefix, because one form holds both.
  const form = useNumbers((edited) => {
    const own = Object.entries(edited).filter(([name]) => LIMITS.includes(name));
    const maximum = Object.entries(edited).filter(([name]) => !LIMITS.includes(name)).map(([name, value]) => [name.replace("maximum_", ""), value]);
    return update({ ...Object.fromEntries(own), ceiling: maximum.length ? Object.fromEntries(maximum) : undefined });
  });
  const input = (name, label, value) => html`<${NumberInput} label=${label} value=${form.edited[name] ?? value} onInput=${form.set(name)} placeholder=${t.limits.noLimit} />`;
  const shown = (value) => (value ? number(value) : html`<span class="muted">${t.limits.noLimit}</span>`);
  const monthUsage = html`<div>${t.limits.monthUsage(number(used), effective.token_budget && number(effective.token_budget))}</div>
    ${effective.token_budget && html`<${Meter} label=${t.limits.tokensThisMonth} value=${used} max=${effective.token_budget} />`}`;
  const columns = [
    { title: t.limits.limit, cell: (name) => html`<strong>${t.limits[name]}</strong><br /><span class="muted">${t.limits.hints[name]}</span>${name === "token_budget" && monthUsage}` },
    { title: t.limits.projectLimit, cell: (name) => (readOnly ? shown(limits[name]) : input(name, t.limits[name], limits[name])) },
    { title: t.limits.maximum, cell: (name) => (readOnly || !session.hasScope("admin") ? shown(ceiling[name]) : input(`maximum_${name}`, t.limits.maximumOf(t.limits[name]), ceiling[name])) },
    { title: t.limits.inEffect, cell: (name) => html`<span class="nowrap">${effective[name] ? t.limits.perUnit[name](number(effective[name])) : shown(null)}</span>` },
  ];
  return html`<form onSubmit=${form.submit} aria-label=${t.limits.title}>
    <h2>${t.limits.title}</h2>
    <p class="muted">${t.limits.about}</p>
    <${Table} label=${t.limits.title} columns=${columns} rows=${LIMITS} rowKey=${(name) => name} />
    ${!readOnly && html`<${SaveBar} form=${form}>${t.limits.emptyHint}<//>`}
  </form>`;
}

function QuotasForm({ limits: { quotas, holds }, update, readOnly }) {
  const form = useNumbers((quotas) => update({ quotas }));
  const format = (name, value) => (name === STORAGE ? bytes(value) : number(value));
  const quota = (name) => {
    if (readOnly) return name === STORAGE && quotas[name] ? exactSize(quotas[name]) : format(name, quotas[name]);
    const field = { label: t.limits.quotaOf(t.limits.quota[name]), value: form.edited[name] ?? quotas[name], onInput: form.set(name) };
    return name === STORAGE ? html`<${SizeInput} key=${`${quotas[name]} ${form.saves}`} ...${field} />` : html`<${NumberInput} ...${field} placeholder=${t.limits.defaultQuota} />`;
  };
  const columns = [
    { title: t.limits.resource, cell: (name) => html`<strong>${t.limits.quota[name]}</strong>` },
    { title: t.limits.used, numeric: true, sort: (name) => holds[name] / (quotas[name] || 1), cell: (name) => format(name, holds[name]) },
    { title: t.limits.share, cell: (name) => quotas[name] && html`<${Meter} label=${t.limits.usedOf(t.limits.quota[name])} value=${holds[name]} max=${quotas[name]} />` },
    { title: t.limits.quotaColumn, numeric: readOnly, cell: quota },
  ];
  return html`<form onSubmit=${form.submit} aria-label=${t.limits.quotaTitle}>
    <h2>${t.limits.quotaTitle}</h2>
    <p class="muted">${t.limits.quotaAbout}</p>
    <${Table} label=${t.limits.quotaTitle} columns=${columns} rows=${QUOTAS} rowKey=${(name) => name} />
    ${!readOnly && html`<${SaveBar} form=${form}>${t.limits.quotaHint}<//>`}
  </form>`;
}

/** A size in bytes as a number and a unit. */
function SizeInput({ label, value, onInput }) {
  const [initial, initialUnit] = value ? splitSize(value) : ["", "GB"];
  const [text, setText] = useState(String(initial));
  const [unit, setUnit] = useState(initialUnit);
  const change = (text, unit) => {
    setText(text);
    setUnit(unit);
    onInput(text.trim() === "" ? "" : String(Math.round(Number(text) * SIZE_UNITS[unit])));
  };
  return html`<span class="size-input">
    <input type="number" min="0" step="any" aria-label=${label} value=${text} placeholder=${t.limits.defaultQuota} onInput=${(event) => change(event.target.value, unit)} />
    <select aria-label=${t.limits.unitOf(label)} value=${unit} onInput=${(event) => change(text, event.target.value)}>${Object.keys(SIZE_UNITS).map((name) => html`<option key=${name} value=${name} selected=${name === unit}>${name}</option>`)}</select>
  </span>`;
}
