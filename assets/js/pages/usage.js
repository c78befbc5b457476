// Usage of a project: totals, a chart, and a table by group.

import { html, useMemo, useState } from "../html.js";
import { all, apiPath, download, get } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, compact, duration, number, toTime } from "../format.js";
import { t } from "../strings.js";
import { EmptyState, ErrorAlert, Stat, Page, SelectField, Table, TextField, useAction, useLoad, Loading } from "../ui.js";

const HOUR = 3_600_000;
// Name, length and bucket width.
const TIME_RANGES = [["hour", HOUR, "1m"], ["day", 24 * HOUR, "1h"], ["week", 168 * HOUR, "1h"], ["month", 720 * HOUR, "1d"], ["custom", 0, ""]];
const BUCKET_WIDTHS = { "1m": 60_000, "1h": HOUR, "1d": 24 * HOUR };
// More buckets would need several pages and be harder to read.
const MAX_BUCKETS = 1000;
const GROUPS = [["", t.usage.noGroup], ["model", t.usage.byModel], ["api_key_id", t.usage.byKey], ["endpoint", t.usage.byEndpoint]];
const METRICS = {
  requests: (result) => result.requests,
  tokens: (result) => result.tokens.total,
  images: (result) => result.image_generations,
};

/** The query of a time range: `{start_time, end_time, bucket_width}`. */
function timeRange(name, from, to, now = Date.now()) {
  const [, length, width] = TIME_RANGES.find(([range]) => range === name);
  if (name !== "custom") return { start_time: new Date(now - length).toISOString(), end_time: new Date(now).toISOString(), bucket_width: width };
  const [start, end] = [new Date(from), to ? new Date(to) : new Date(now)];
  const narrowest = Object.entries(BUCKET_WIDTHS).find(([, width]) => (end - start) / width <= MAX_BUCKETS);
  return { start_time: toTime(from), end_time: end.toISOString(), bucket_width: narrowest?.[0] ?? "1d" };
}

/** Buckets as props of `Chart`: times in Unix seconds, and one series per group. */
function chartData(buckets, group, metric, title) {
  const times = buckets.map((bucket) => new Date(bucket.start_time) / 1000);
  const names = [...new Set(buckets.flatMap((bucket) => bucket.results.map((result) => (group ? (result[group] ?? t.usage.unassigned) : ""))))];
  const valuesOf = (name) => buckets.map((bucket) => {
    const found = bucket.results.find((result) => !group || (result[group] ?? t.usage.unassigned) === name);
    return found ? METRICS[metric](found) : 0;
  });
  return { times, series: names.map((name) => ({ name: group ? title(name) : t.usage.metrics[metric], values: valuesOf(name) })) };
}

export function Usage({ project }) {
  const [range, setRange] = useState("week");
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [group, setGroup] = useState("");
  const [metric, setMetric] = useState("requests");
  const ready = range !== "custom" || from;
  const query = () => ({ ...timeRange(range, from, to), group_by: group });
  const path = apiPath`/projects/${project.id}/usage`;
  const [usage, error, reload] = useLoad(() => (ready ? get(path, query()) : null), [project.id, range, from, to, group]);
  const [keys] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const [exportCsv, exporting, exportError] = useAction(() => download(path, query(), { accept: "text/csv" }, `usage-${project.id}.csv`));
  const title = (name) => (group === "api_key_id" ? (keys?.find((key) => key.id === name)?.name ?? name) : name);
  const chart = useMemo(() => usage && chartData(usage.data, group, metric, title), [usage, group, metric, keys]);
  return html`<${Page} title=${t.pages.usage} about=${t.usage.about}
      actions=${html`<button type="button" disabled=${exporting || !ready} onClick=${exportCsv}>${t.usage.csv}</button>`}>
    <div class="card filters">
      <${SelectField} label=${t.usage.timeRange} value=${range} onInput=${setRange} options=${TIME_RANGES.map(([name]) => [name, t.usage.timeRanges[name]])} />
      ${range === "custom" && html`<${TextField} label=${t.from} type="datetime-local" value=${from} onInput=${setFrom} />
        <${TextField} label=${t.to} type="datetime-local" value=${to} onInput=${setTo} />`}
      <${SelectField} label=${t.usage.group} value=${group} onInput=${setGroup} options=${GROUPS} />
      <${SelectField} label=${t.usage.metric} value=${metric} onInput=${setMetric} options=${Object.keys(METRICS).map((name) => [name, t.usage.metrics[name]])} />
    </div>
    <${ErrorAlert} error=${error ?? exportError} retry=${error && reload} />
    ${!usage && ready && !error && html`<${Loading} />`}
    ${usage && html`<${Totals} usage=${usage} />`}
    ${usage && usage.requests === 0 && html`<${EmptyState} title=${t.usage.empty}><p>${t.usage.emptyHint}</p><//>`}
    ${usage && usage.requests > 0 && html`
      <${Chart} label=${t.usage.chart(t.usage.metrics[metric])} ...${chart} />
      ${group && html`<${Groups} groups=${usage.groups} group=${group} title=${title} />`}`}
  <//>`;
}

function Totals({ usage }) {
  const { storage, ...totals } = usage;
  const unsuccessful = totals.requests - totals.requests_by_outcome.succeeded;
  return html`<div class="stats">
    <${Stat} label=${t.usage.metrics.requests} value=${number(totals.requests)} hint=${unsuccessful ? t.usage.unsuccessful(number(unsuccessful)) : undefined} />
    <${Stat} label=${t.usage.input} value=${compact(totals.tokens.input)} hint=${totals.tokens.cached ? t.usage.cached(compact(totals.tokens.cached)) : undefined} />
    <${Stat} label=${t.usage.output} value=${compact(totals.tokens.output)} />
    <${Stat} label=${t.usage.metrics.images} value=${number(totals.image_generations)} />
    <${Stat} label=${t.usage.audio} value=${duration(totals.audio_processing.seconds)} />
    <${Stat} label=${t.usage.storage} value=${bytes(storage.bytes)} />
  </div>`;
}

function Groups({ groups, group, title }) {
  const metrics = [
    [t.usage.metrics.requests, (row) => number(row.requests)],
    [t.usage.input, (row) => number(row.tokens.input)],
    [t.usage.cachedTokens, (row) => number(row.tokens.cached)],
    [t.usage.output, (row) => number(row.tokens.output)],
    [t.usage.metrics.images, (row) => number(row.image_generations)],
  ];
  const columns = [{ title: GROUPS.find(([name]) => name === group)[1], cell: (row) => title(row[group] ?? t.usage.unassigned) },
    ...metrics.map(([title, cell]) => ({ title, cell, numeric: true }))];
  return html`<${Table} label=${t.usage.group} columns=${columns} rows=${groups ?? []} rowKey=${(row) => row[group] ?? ""} />`;
}
