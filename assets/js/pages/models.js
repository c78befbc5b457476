// Installed models, and the catalog of models to pull.

import { html, useState } from "../html.js";
import { apiPath, get, post } from "../api.js";
import { bytes, compact, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, CodeBlock, EmptyState, ErrorAlert, Page, Table, useAction, useInterval, useLoad, Loading } from "../ui.js";

const POLL_MS = 15_000;

const capabilities = (model) => Object.entries(model.capabilities).filter(([, supported]) => supported).map(([name]) => t.models.capability[name]).filter(Boolean);

function limits({ context_window: context, embedding_dimensions: dimensions, image_sizes: sizes }) {
  return [context && t.models.context(number(context)), dimensions && t.models.dimensions(number(dimensions)), sizes?.length && t.models.sizes(sizes[0])].filter(Boolean).join(", ");
}

export function Models() {
  const [models, error, reload] = useLoad(async () => (await get("/models", { include_limits: true })).data, []);
  const [catalog, catalogError] = useLoad(async () => (await get("/catalog")).data, []);
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
  useInterval(POLL_MS, reload);
  const columns = [
    { title: t.name, cell: (model) => html`<strong>${model.id}</strong><br /><span class="muted">${model.owned_by}${model.license ? ` · ${model.license}` : ""}</span>
      ${model.problem && html`<p class="error">${model.problem}</p>`}` },
    { title: t.models.capabilities, cell: (model) => html`<span class="badges">${capabilities(model).map((name) => html`<${Badge}>${name}<//>`)}</span>` },
    { title: t.models.limits, cell: (model) => model.limits && limits(model.limits) },
    { title: t.models.format, cell: (model) => html`${model.architecture}<br /><span class="muted">${model.format}${model.quantization ? ` ${model.quantization}` : ""}</span>` },
    { title: t.models.parameters, numeric: true, cell: (model) => compact(model.parameters) },
    { title: t.models.size, numeric: true, cell: (model) => bytes(model.bytes) },
    { title: t.status, cell: (model) => html`<${Badge} kind=${model.problem ? "danger" : model.loaded ? "success" : ""}>${model.problem ? t.models.error : model.loaded ? t.models.loaded : t.models.notLoaded}<//>` },
    { title: html`<span class="visually-hidden">${t.actions}</span>`, cell: (model) => session.hasScope("admin") && !model.problem && html`<button type="button" class="text-button"
      disabled=${busy === model.id} onClick=${() => run(model, model.loaded ? "unload" : "load")}>
      ${busy === model.id ? (model.loaded ? t.models.unloading : t.models.loading) : model.loaded ? t.models.unload : t.models.load}<span class="visually-hidden"> ${model.id}</span></button>` },
  ];
  const missing = (catalog ?? []).filter((one) => !one.installed);
  return html`<${Page} title=${t.pages.models} about=${t.models.about}>
    <${ErrorAlert} error=${runError ?? error} retry=${error && reload} />
    ${!models && !error && html`<${Loading} />`}
    ${models?.length === 0 && html`<${EmptyState} title=${t.models.empty}><p>${t.models.emptyHint}</p><${CodeBlock} text="outpost models pull starter" label=${t.models.pullCommand} /><//>`}
    ${models?.length > 0 && html`<${Table} label=${t.pages.models} columns=${columns} rows=${models} rowKey=${(model) => model.id} />`}
    <h2>${t.models.catalog}</h2>
    <${ErrorAlert} error=${catalogError} />
    ${catalog && missing.length === 0 && html`<p class="muted">${t.models.allInstalled}</p>`}
    <div class="grid">${missing.map((one) => html`<div class="card" key=${one.id}>
      <h3>${one.id}</h3><p class="muted">${one.description}</p>
      <p class="badges"><${Badge}>${bytes(one.bytes)}<//>${one.license && html`<${Badge}>${one.license}<//>`}</p>
      <${CodeBlock} text=${one.command} label=${t.models.pullCommand} />
    </div>`)}</div>
  <//>`;
}
