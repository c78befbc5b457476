// Installed models, models that the project has trained, and the catalog of models to pull.

import { html, useState } from "../html.js";
import { apiPath, get, post } from "../api.js";
import { bytes, compact, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Table } from "../table.js";
import { Badge, CodeBlock, EmptyState, ErrorAlert, Page, RelativeTime, useAction, useInterval, useLoad, Loading } from "../ui.js";
import { DeleteModel, isTuned } from "./fine-tuning/tuned-models.js";

const POLL_MS = 15_000;
const STARTER = "starter";
// The page of the playground on which a model can be tried, by capability.
const TRIALS = { chat_completions: "chat/model", transcription: "transcription", speech: "speech" };

const loadCatalog = async () => (await get("/catalog")).data;
// Every chat model completes texts, too.
const isNamed = (name, model) => model.capabilities[name] && !(name === "completions" && model.capabilities.chat_completions);
const capabilities = (model) => Object.keys(t.models.capability).filter((name) => isNamed(name, model)).map((name) => t.models.capability[name]);

function limits({ context_window: context, embedding_dimensions: dimensions, image_sizes: sizes }) {
  const texts = [context && t.models.context(number(context)), dimensions && t.models.dimensions(number(dimensions)), sizes?.length && t.models.sizes(sizes[0])];
  return texts.filter(Boolean).map((text) => html`<div key=${text} class="nowrap">${text}</div>`);
}

const trialOf = (model) => TRIALS[Object.keys(TRIALS).find((name) => model.capabilities[name])];

/** The status of a model: `[badge kind, text]`. */
const status = ({ problem, loaded }) => (problem ? ["danger", t.models.error] : loaded ? ["success", t.models.loaded] : ["", t.models.notLoaded]);

/** The command that pulls a model, or the starter models, in the form that the server gives for a single model. */
export function PullCommand({ model = STARTER }) {
  const [catalog] = useLoad(loadCatalog, []);
  const command = catalog?.[0]?.command.replace(catalog[0].id, model) ?? `outpost models pull ${model}`;
  return html`<${CodeBlock} wrap text=${command} label=${t.models.pullCommand} />`;
}

export function Models() {
  const [models, error, reload] = useLoad(async () => (await get("/models", { include_limits: true })).data, []);
  const [busy, setBusy] = useState(null);
  const [run, , runError] = useAction(async (model, action) => {
    setBusy(model.id);
    try {
      await post(apiPath`/models/${model.id}/${action}`, {});
      await reload();
    } finally {
      setBusy(null);
    }
  });
  const [removed, setRemoved] = useState(null);
  // Loaded only here, because few visits of the dashboard install models.
  const [installer] = useLoad(async () => session.hasScope("admin") && import("./models/install.js"), []);
  const close = (changed) => {
    setRemoved(null);
    if (changed) reload();
  };
  useInterval(POLL_MS, reload);
  const actionOf = (model) => html`<button type="button" class="text-button" disabled=${busy === model.id} onClick=${() => run(model, model.loaded ? "unload" : "load")}>
    ${busy === model.id ? (model.loaded ? t.models.unloading : t.models.loading) : model.loaded ? t.models.unload : t.models.load}<span class="visually-hidden"> ${model.id}</span></button>`;
  const size = { title: t.models.size, numeric: true, sort: (model) => model.bytes, cell: (model) => html`${bytes(model.bytes)}<br /><span class="muted">${t.models.parameters(compact(model.parameters))}</span>` };
  const state = { title: t.status, sort: (model) => status(model)[1], cell: (model) => html`<${Badge} kind=${status(model)[0]}>${status(model)[1]}<//>${model.pinned && html` <${Badge}>${t.models.pinned}<//>`}` };
  const actions = { title: t.actions, cell: (model) => html`<div class="actions">
    ${trialOf(model) && session.hasScope("inference") && html`<a class="button text-button" href=${`#/playground/${trialOf(model)}/${encodeURIComponent(model.id)}`}>${t.models.try}<span class="visually-hidden"> ${model.id}</span></a>`}
    ${!model.problem && !(model.pinned && model.loaded) && session.hasScope("admin") && actionOf(model)}
    ${isTuned(model) && session.hasScope("project") && html`<button type="button" class="text-button error" onClick=${() => setRemoved(model)}>${t.delete}<span class="visually-hidden"> ${model.id}</span></button>`}</div>` };
  const columns = [
    { title: t.name, sort: (model) => model.id, cell: (model) => html`<strong class="nowrap">${model.id}</strong><br /><span class="muted nowrap">${model.owned_by}${model.license ? ` · ${model.license}` : ""}</span>
      ${model.alias_of && html`<p class="muted">${t.models.aliasOf(model.alias_of)}</p>`}
      ${model.problem && html`<p class="error">${model.problem}</p>`}` },
    { title: t.models.capabilities, sort: (model) => capabilities(model).join(), cell: (model) => html`<span class="badges">${capabilities(model).map((name) => html`<${Badge}>${name}<//>`)}</span>` },
    { title: t.models.limits, cell: (model) => model.limits && limits(model.limits) },
    { title: t.models.format, sort: (model) => model.architecture, cell: (model) => html`${model.architecture}<br /><span class="muted">${model.format}${model.quantization ? ` ${model.quantization}` : ""}</span>` },
    size, state, actions,
  ];
  const tunedColumns = [
    { title: t.name, sort: (model) => model.id, cell: (model) => html`<strong class="long-id">${model.id}</strong>${model.problem && html`<p class="error">${model.problem}</p>`}` },
    { title: t.models.baseModel, sort: (model) => model.base_model, cell: (model) => model.base_model },
    { title: t.created, sort: (model) => model.created, cell: (model) => html`<${RelativeTime} value=${model.created} />` }, size, state, actions,
  ];
  const [tuned, installed] = [models?.filter(isTuned), models?.filter((model) => !isTuned(model))];
  return html`<${Page} title=${t.pages.models} about=${t.models.about} actions=${installer && html`<${installer.InstallModel} onInstalled=${reload} />`}>
    <${ErrorAlert} error=${runError ?? error} retry=${error && reload} />
    ${!models && !error && html`<${Loading} />`}
    ${installed?.length === 0 && html`<${EmptyState} title=${t.models.empty}><p>${t.models.emptyHint}</p><${PullCommand} /><//>`}
    ${installed?.length > 0 && html`<${Table} label=${t.pages.models} columns=${columns} rows=${installed} rowKey=${(model) => model.id} />`}
    ${tuned?.length > 0 && html`<h2>${t.models.tuned}</h2><p class="muted">${t.models.tunedAbout}</p><${Table} label=${t.models.tuned} columns=${tunedColumns} rows=${tuned} rowKey=${(model) => model.id} />`}
    <${Catalog} />
    ${removed && html`<${DeleteModel} id=${removed.id} close=${close} />`}
  <//>`;
}

function Catalog() {
  const [catalog, error] = useLoad(loadCatalog, []);
  const missing = (catalog ?? []).filter((one) => !one.installed);
  const columns = [
    { title: t.name, sort: (one) => one.id, cell: (one) => html`<strong class="nowrap">${one.id}</strong><br /><span class="muted">${one.description}</span>` },
    { title: t.models.license, sort: (one) => one.license, cell: (one) => html`<span class="nowrap">${one.license}</span>` },
    { title: t.models.size, numeric: true, sort: (one) => one.bytes, cell: (one) => bytes(one.bytes) },
    { title: t.models.pullCommand, cell: (one) => html`<${CodeBlock} wrap text=${one.command} label=${t.models.pullCommand} />` },
  ];
  return html`<h2>${t.models.catalog}</h2>
    <${ErrorAlert} error=${error} />
    ${catalog && missing.length === 0 && html`<p class="muted">${t.models.allInstalled}</p>`}
    ${missing.length > 0 && html`<p class="muted">${t.models.catalogAbout}</p><${Table} label=${t.models.catalog} columns=${columns} rows=${missing} rowKey=${(one) => one.id} />`}`;
}
