// Live metrics of the server, read from `/metrics`.

import { html, useRef, useState } from "../html.js";
import { send } from "../api.js";
import { LineChart } from "../chart.js";
import { bytes, compact, duration, number } from "../format.js";
import { parseMetrics } from "../openmetrics.js";
import { t } from "../strings.js";
import { Table } from "../table.js";
import { Badge, EmptyState, ErrorAlert, Meter, Stat, Page, useInterval, useLoad, useModels, Loading } from "../ui.js";

const POLL_MS = 2000;
// Loaded models change rarely, and requests to the API are metered.
const MODELS_POLL_MS = 15_000;
const MAX_POINTS = 150;
// Minimum width of the chart, in seconds.
const SPAN = 30;
const MEMORY_USES = ["weights", "scratch", "kv_held", "kv_cached"];
const timeOfDay = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

export function LiveMetrics() {
  const previous = useRef(null);
  const [throughput, setThroughput] = useState(null);
  const [history, setHistory] = useState({ times: [], values: [] });
  const [metrics, error, reload] = useLoad(async () => {
    const text = await (await send("GET", "/metrics", { mount: "" })).text();
    const metrics = parseMetrics(text);
    record(metrics.sum("generated_tokens_total"), metrics.sum("prompt_tokens_total"));
    return metrics;
  }, []);
  const [models, , reloadModels] = useModels();
  useInterval(POLL_MS, reload);
  useInterval(MODELS_POLL_MS, reloadModels);

  /** Updates the throughput since the previous poll. */
  function record(generated, prompt) {
    const at = Date.now() / 1000;
    const last = previous.current;
    previous.current = { at, generated, prompt };
    // Counters restart from zero with the server.
    if (!last || generated < last.generated) return;
    const rate = (generated - last.generated) / (at - last.at);
    setThroughput((generated + prompt - last.generated - last.prompt) / (at - last.at));
    setHistory(({ times, values }) => ({ times: [...times, at].slice(-MAX_POINTS), values: [...values, rate].slice(-MAX_POINTS) }));
  }

  if (!metrics) return html`<${Page} title=${t.pages.live} about=${t.live.about}><${ErrorAlert} error=${error} retry=${reload} />${!error && html`<${Loading} />`}<//>`;
  const loaded = new Set((models ?? []).filter((model) => model.loaded).map((model) => model.id));
  const devices = Object.keys(metrics.by("memory_bytes", "device")).sort();
  const server = metrics.labels("server_info");
  return html`<${Page} title=${t.pages.live} about=${t.live.about}>
    <${ErrorAlert} error=${error} retry=${reload} />
    <p class="muted server">${[t.live.uptime(duration(metrics.get("uptime_seconds"))), server.cpu, t.live.kernels(server.instruction_set), t.live.threads(number(Number(server.threads))), t.live.version(server.version)].join(" · ")}</p>
    <div class="stats">
      <${Stat} label=${t.live.active} value=${number(metrics.sum("answers_running"))} />
      <${Stat} label=${t.live.queuedRequests} value=${number(metrics.sum("requests_queued"))} />
      <${Stat} label=${t.live.queuedImages} value=${number(metrics.sum("images_queued"))} />
      <${Stat} label=${t.live.transcriptions} value=${number(metrics.sum("transcriptions_running"))} />
      <${Stat} label=${t.live.queuedSpeech} value=${number(metrics.sum("speech_parts_queued"))} />
      <${Stat} label=${t.live.embeddingQueue} value=${compact(metrics.sum("text_tokens_queued"))} unit=${t.live.tokens} />
      <${Stat} label=${t.live.throughput} value=${compact(throughput)} unit=${t.live.perSecond} />
      <${Stat} label=${t.live.generatedTokens} value=${compact(metrics.sum("generated_tokens_total"))} unit=${t.live.tokens} hint=${t.live.sinceStart} />
    </div>
    ${history.times.length > 1 && html`<${LineChart} label=${t.live.chart} unit=${() => t.live.perSecond} span=${SPAN} format=${(time) => timeOfDay.format(time * 1000)}
      series=${[{ name: t.live.chart, color: "color-0", xs: history.times, values: history.values }]} />`}
    ${devices.map((device) => html`<${DeviceMemory} key=${device} device=${device} metrics=${metrics} />`)}
    <h2>${t.live.byModel}</h2>
    <${ByModel} metrics=${metrics} loaded=${loaded} />
  <//>`;
}

function DeviceMemory({ device, metrics }) {
  const value = (use) => metrics.get("memory_bytes", { device, use }) ?? 0;
  const [title, total] = [t.live.memory(t.devices[device] ?? device), value("total")];
  const used = MEMORY_USES.reduce((sum, use) => sum + value(use), 0);
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>
    <${MemoryRow} label=${t.live.used} value=${used} total=${total} />
    ${MEMORY_USES.map((use) => html`<${MemoryRow} key=${use} label=${t.live.memoryUse[use]} value=${value(use)} total=${total} />`)}
  </section>`;
}

const MemoryRow = ({ label, value, total }) => html`<div class="memory-row"><span>${label}</span>
  <${Meter} label=${label} value=${value} max=${total} /><span class="numeric">${t.live.of(bytes(value), bytes(total))}</span></div>`;

function ByModel({ metrics, loaded }) {
  const values = Object.fromEntries(["requests_queued", "answers_running", "prompt_tokens_total", "cached_prompt_tokens_total", "generated_tokens_total", "images_total", "audio_transcribed_seconds_total", "audio_spoken_seconds_total",
    "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"].map((name) => [name, metrics.by(name, "model")]));
  const names = [...new Set([...Object.values(values).flatMap(Object.keys), ...loaded])].sort();
  if (!names.length) return html`<${EmptyState} title=${t.live.noModels} />`;
  const column = (title, value, format = number) => ({ title, numeric: true, sort: value, cell: (model) => format(value(model)) });
  const count = (title, name) => column(title, (model) => values[name][model] ?? 0);
  const audio = (model) => (values.audio_transcribed_seconds_total[model] ?? 0) + (values.audio_spoken_seconds_total[model] ?? 0);
  const timeToFirstToken = (model) => {
    const requests = values.time_to_first_token_seconds_count[model];
    return requests ? Math.round((values.time_to_first_token_seconds_sum[model] / requests) * 1000) : null;
  };
  const columns = [
    { title: t.live.model, sort: (model) => model, cell: (model) => html`<strong class="nowrap">${model}</strong>${loaded.has(model) && html` <${Badge} kind="success">${t.live.loaded}<//>`}` },
    count(t.live.activeColumn, "answers_running"), count(t.live.queuedColumn, "requests_queued"), count(t.live.promptTokens, "prompt_tokens_total"),
    count(t.live.cachedTokens, "cached_prompt_tokens_total"), count(t.live.generatedTokens, "generated_tokens_total"), count(t.live.images, "images_total"),
    column(t.live.audio, audio, (value) => (value ? duration(value) : number(0))),
    column(t.live.timeToFirstToken, timeToFirstToken, (value) => (value === null ? "–" : t.live.milliseconds(number(value)))),
  ];
  return html`<${Table} label=${t.live.byModel} columns=${columns} rows=${names} rowKey=${(model) => model} />`;
}
