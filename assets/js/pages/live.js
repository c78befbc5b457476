// What the server does right now: the figures that monitoring systems read, read by people.

import { html, useRef, useState } from "../html.js";
import { send } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, compact, number } from "../format.js";
import { figures } from "../openmetrics.js";
import { t } from "../strings.js";
import { Badge, Empty, Failure, Figure, Page, Table, useEvery, useLoad, useModels, Waiting } from "../ui.js";

const LOOK = 2000;
// Which models are loaded changes seldom, and is asked of the API, where requests are metered.
const MODELS = 15_000;
const KEPT = 150;
// Seconds that the chart shows at least.
const SPAN = 30;
const USES = ["weights", "scratch", "kv_held", "kv_cached"];

export function Live() {
  const before = useRef(null);
  const [speed, setSpeed] = useState(null);
  const [history, setHistory] = useState({ times: [], values: [] });
  const [now, error, again] = useLoad(async () => {
    const text = await (await send("GET", "/metrics", { mount: "" })).text();
    const found = figures(text);
    remember(found.sum("generated_tokens_total"), found.sum("prompt_tokens_total"));
    return found;
  }, []);
  const [models, , look] = useModels();
  useEvery(LOOK, again);
  useEvery(MODELS, look);

  /** The speed since the last look. */
  function remember(generated, prompt) {
    const at = Date.now() / 1000;
    const last = before.current;
    before.current = { at, generated, prompt };
    // A server that was started anew counts from zero.
    if (!last || generated < last.generated) return;
    const speed = (generated - last.generated) / (at - last.at);
    setSpeed((generated + prompt - last.generated - last.prompt) / (at - last.at));
    setHistory(({ times, values }) => ({ times: [...times, at].slice(-KEPT), values: [...values, speed].slice(-KEPT) }));
  }

  if (!now) return html`<${Page} title=${t.pages.live} about=${t.live.about}><${Failure} error=${error} again=${again} />${!error && html`<${Waiting} />`}<//>`;
  const loaded = new Set((models ?? []).filter((model) => model.loaded).map((model) => model.id));
  const total = now.one("memory_bytes", { use: "total" });
  const memory = USES.map((use) => [use, now.one("memory_bytes", { use }) ?? 0]);
  const used = memory.reduce((sum, [, value]) => sum + value, 0);
  return html`<${Page} title=${t.pages.live} about=${t.live.about}>
    <${Failure} error=${error} again=${again} />
    <div class="figures">
      <${Figure} label=${t.live.active} value=${number(now.sum("answers_running"))} />
      <${Figure} label=${t.live.queuedRequests} value=${number(now.sum("requests_queued"))} />
      <${Figure} label=${t.live.queuedImages} value=${number(now.sum("images_queued"))} />
      <${Figure} label=${t.live.queuedTextTokens} value=${compact(now.sum("text_tokens_queued"))} />
      <${Figure} label=${t.live.throughput} value=${compact(speed)} hint=${t.live.perSecond} />
      <${Figure} label=${t.live.generatedTokens} value=${compact(now.sum("generated_tokens_total"))} hint=${t.live.sinceStart} />
    </div>
    ${history.times.length > 1 && html`<${Chart} label=${t.live.chart} span=${SPAN} times=${history.times} series=${[{ name: t.live.chart, values: history.values }]} />`}
    <section class="card" aria-label=${t.live.memory}><h2>${t.live.memory}</h2>
      <${Share} label=${t.live.used} value=${used} total=${total} />
      ${memory.map(([use, value]) => html`<${Share} key=${use} label=${t.live.memoryUse[use]} value=${value} total=${total} />`)}
    </section>
    <h2>${t.live.byModel}</h2>
    <${ByModel} now=${now} loaded=${loaded} />
  <//>`;
}

const Share = ({ label, value, total }) => html`<div class="share"><span>${label}</span>
  <meter min="0" max=${total || 1} value=${value} aria-label=${label}></meter><span class="right">${t.live.of(bytes(value), bytes(total))}</span></div>`;

function ByModel({ now, loaded }) {
  const by = Object.fromEntries(["requests_queued", "answers_running", "prompt_tokens_total", "cached_prompt_tokens_total", "generated_tokens_total", "images_total",
    "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"].map((name) => [name, now.by(name, "model")]));
  const names = [...new Set([...Object.values(by).flatMap(Object.keys), ...loaded])].sort();
  if (!names.length) return html`<${Empty} title=${t.live.noModels} />`;
  const count = (name) => (model) => number(by[name][model] ?? 0);
  const first = (model) => {
    const asked = by.time_to_first_token_seconds_count[model];
    return asked ? `${Math.round((by.time_to_first_token_seconds_sum[model] / asked) * 1000)} ms` : "–";
  };
  const columns = [
    { title: t.live.model, cell: (model) => html`<strong>${model}</strong> ${loaded.has(model) && html`<${Badge} kind="good">${t.live.loaded}<//>`}` },
    { title: t.live.active, right: true, cell: count("answers_running") },
    { title: t.live.queuedRequests, right: true, cell: count("requests_queued") },
    { title: t.live.promptTokens, right: true, cell: count("prompt_tokens_total") },
    { title: t.live.cachedTokens, right: true, cell: count("cached_prompt_tokens_total") },
    { title: t.live.generatedTokens, right: true, cell: count("generated_tokens_total") },
    { title: t.live.images, right: true, cell: count("images_total") },
    { title: t.live.timeToFirstToken, right: true, cell: first },
  ];
  return html`<${Table} label=${t.live.byModel} columns=${columns} rows=${names} keyed=${(model) => model} />`;
}
