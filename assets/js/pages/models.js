// Models: what is on the disk, what is loaded, what could be pulled.

import { html, useState } from "../html.js";
import { get, post } from "../api.js";
import { bytes, compact, number } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, Code, Empty, Failure, Page, Table, useAction, useEvery, useLoad, Waiting } from "../ui.js";

const LOOK = 15_000;

const can = (model) => Object.entries(model.capabilities).filter(([, able]) => able).map(([name]) => t.models.capability[name]).filter(Boolean);

function limits({ context_window: context, embedding_dimensions: dimensions, image_sizes: sizes }) {
  return [context && t.models.context(number(context)), dimensions && t.models.dimensions(number(dimensions)), sizes?.length && t.models.sizes(sizes.join(", "))].filter(Boolean).join(", ");
}

export function Models() {
  const [models, error, again] = useLoad(async () => (await get("/models", { include_limits: true })).data, []);
  const [offered, unknown] = useLoad(async () => (await get("/catalog")).data, []);
  const [busy, setBusy] = useState(null);
  const [act, , failed] = useAction(async (model, what) => {
    setBusy(model.id);
    try {
      await post(`/models/${encodeURIComponent(model.id)}/${what}`, {});
      await again();
    } finally {
      setBusy(null);
    }
  });
  useEvery(LOOK, again);
  const columns = [
    { title: t.name, cell: (model) => html`<strong>${model.id}</strong><br /><span class="dim">${model.owned_by}${model.license ? ` · ${model.license}` : ""}</span>
      ${model.problem && html`<p class="wrong">${model.problem}</p>`}` },
    { title: t.models.capabilities, cell: (model) => html`<span class="badges">${can(model).map((one) => html`<${Badge}>${one}<//>`)}</span>` },
    { title: t.models.limits, cell: (model) => model.limits && limits(model.limits) },
    { title: t.models.format, cell: (model) => html`${model.architecture}<br /><span class="dim">${model.format}${model.quantization ? ` ${model.quantization}` : ""}</span>` },
    { title: t.models.parameters, right: true, cell: (model) => compact(model.parameters) },
    { title: t.models.size, right: true, cell: (model) => bytes(model.bytes) },
    { title: t.status, cell: (model) => html`<${Badge} kind=${model.problem ? "bad" : model.loaded ? "good" : ""}>${model.problem ? t.models.error : model.loaded ? t.models.loaded : t.models.notLoaded}<//>` },
    { title: html`<span class="hidden">${t.actions}</span>`, cell: (model) => session.may("admin") && !model.problem && html`<button type="button" class="plain"
      disabled=${busy === model.id} onClick=${() => act(model, model.loaded ? "unload" : "load")}>
      ${busy === model.id ? (model.loaded ? t.models.unloading : t.models.loading) : model.loaded ? t.models.unload : t.models.load}<span class="hidden"> ${model.id}</span></button>` },
  ];
  const missing = (offered ?? []).filter((one) => !one.installed);
  return html`<${Page} title=${t.pages.models} about=${t.models.about}>
    <${Failure} error=${failed ?? error} again=${error && again} />
    ${!models && !error && html`<${Waiting} />`}
    ${models?.length === 0 && html`<${Empty} title=${t.models.empty}><p>${t.models.emptyHint}</p><${Code} text="outpost models pull starter" label=${t.models.pullCommand} /><//>`}
    ${models?.length > 0 && html`<${Table} label=${t.pages.models} columns=${columns} rows=${models} keyed=${(model) => model.id} />`}
    <h2>${t.models.catalog}</h2>
    <${Failure} error=${unknown} />
    ${offered && missing.length === 0 && html`<p class="dim">${t.models.allInstalled}</p>`}
    <div class="grid">${missing.map((one) => html`<div class="card" key=${one.id}>
      <h3>${one.id}</h3><p class="dim">${one.description}</p>
      <p class="badges"><${Badge}>${bytes(one.bytes)}<//>${one.license && html`<${Badge}>${one.license}<//>`}</p>
      <${Code} text=${one.command} label=${t.models.pullCommand} />
    </div>`)}</div>
  <//>`;
}
