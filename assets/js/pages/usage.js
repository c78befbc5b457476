// What was used, by whom and of what: the figures that the API tells, drawn.

import { html, useMemo, useState } from "../html.js";
import { all, download, get } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, compact, duration, number, toTime } from "../format.js";
import { t } from "../strings.js";
import { Empty, Failure, Figure, Page, Select, Table, Text, useAction, useLoad, Waiting } from "../ui.js";

const HOUR = 3_600_000;
// Name, how far back, and how wide a bar is.
const WINDOWS = [["hour", HOUR, "1m"], ["day", 24 * HOUR, "1h"], ["week", 168 * HOUR, "1h"], ["month", 720 * HOUR, "1d"], ["custom", 0, ""]];
const WIDTHS = { "1m": 60_000, "1h": HOUR, "1d": 24 * HOUR };
// More bars than this are asked for in several pages; fewer are easier to read.
const BARS = 1000;
const GROUPS = [["", t.usage.noGroup], ["model", t.usage.byModel], ["api_key_id", t.usage.byKey], ["endpoint", t.usage.byEndpoint]];
const MEASURES = {
  requests: (figures) => figures.requests,
  tokens: (figures) => figures.tokens.total,
  images: (figures) => figures.image_generations,
};

/** The window that is asked for: `{start_time, end_time, bucket_width}`. */
function span(name, from, to, now = Date.now()) {
  const [, back, width] = WINDOWS.find(([one]) => one === name);
  if (name !== "custom") return { start_time: new Date(now - back).toISOString(), end_time: new Date(now).toISOString(), bucket_width: width };
  const [start, end] = [new Date(from), to ? new Date(to) : new Date(now)];
  const narrow = Object.entries(WIDTHS).find(([, width]) => (end - start) / width <= BARS);
  return { start_time: toTime(from), end_time: end.toISOString(), bucket_width: narrow?.[0] ?? "1d" };
}

/** Buckets as columns of a chart: times in seconds, and a row of numbers for each series. */
function columns(buckets, group, measure, title) {
  const times = buckets.map((bucket) => new Date(bucket.start_time) / 1000);
  const names = [...new Set(buckets.flatMap((bucket) => bucket.results.map((result) => (group ? (result[group] ?? t.usage.unassigned) : ""))))];
  const of = (name) => buckets.map((bucket) => {
    const found = bucket.results.find((result) => !group || (result[group] ?? t.usage.unassigned) === name);
    return found ? MEASURES[measure](found) : 0;
  });
  return { times, series: names.map((name) => ({ name: group ? title(name) : t.usage.metrics[measure], values: of(name) })) };
}

export function Usage({ project }) {
  const [window, setWindow] = useState("week");
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [group, setGroup] = useState("");
  const [measure, setMeasure] = useState("requests");
  const ready = window !== "custom" || from;
  const query = () => ({ ...span(window, from, to), group_by: group });
  const path = `/projects/${project.id}/usage`;
  const [usage, error, again] = useLoad(() => (ready ? get(path, query()) : null), [project.id, window, from, to, group]);
  const [keys] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const [save, saving, unsaved] = useAction(() => download(path, query(), { accept: "text/csv" }, `usage-${project.id}.csv`));
  const title = (name) => (group === "api_key_id" ? (keys?.find((key) => key.id === name)?.name ?? name) : name);
  const drawn = useMemo(() => usage && columns(usage.data, group, measure, title), [usage, group, measure, keys]);
  return html`<${Page} title=${t.pages.usage} about=${t.usage.about}
      actions=${html`<button type="button" disabled=${saving || !ready} onClick=${save}>${t.usage.csv}</button>`}>
    <div class="card row">
      <${Select} label=${t.usage.timeRange} value=${window} onInput=${setWindow} options=${WINDOWS.map(([name]) => [name, t.usage.timeRanges[name]])} />
      ${window === "custom" && html`<${Text} label=${t.from} type="datetime-local" value=${from} onInput=${setFrom} />
        <${Text} label=${t.to} type="datetime-local" value=${to} onInput=${setTo} />`}
      <${Select} label=${t.usage.group} value=${group} onInput=${setGroup} options=${GROUPS} />
      <${Select} label=${t.usage.metric} value=${measure} onInput=${setMeasure} options=${Object.keys(MEASURES).map((name) => [name, t.usage.metrics[name]])} />
    </div>
    <${Failure} error=${error ?? unsaved} again=${error && again} />
    ${!usage && ready && !error && html`<${Waiting} />`}
    ${usage && html`<${Figures} usage=${usage} />`}
    ${usage && usage.requests === 0 && html`<${Empty} title=${t.usage.empty}><p>${t.usage.emptyHint}</p><//>`}
    ${usage && usage.requests > 0 && html`
      <${Chart} label=${t.usage.chart(t.usage.metrics[measure])} ...${drawn} />
      ${group && html`<${Groups} groups=${usage.groups} group=${group} title=${title} />`}`}
  <//>`;
}

function Figures({ usage }) {
  const { storage, ...totals } = usage;
  const other = totals.requests - totals.requests_by_outcome.succeeded;
  return html`<div class="figures">
    <${Figure} label=${t.usage.metrics.requests} value=${number(totals.requests)} hint=${other ? t.usage.unsuccessful(number(other)) : undefined} />
    <${Figure} label=${t.usage.input} value=${compact(totals.tokens.input)} hint=${totals.tokens.cached ? t.usage.cached(compact(totals.tokens.cached)) : undefined} />
    <${Figure} label=${t.usage.output} value=${compact(totals.tokens.output)} />
    <${Figure} label=${t.usage.metrics.images} value=${number(totals.image_generations)} />
    <${Figure} label=${t.usage.audio} value=${duration(totals.audio_processing.seconds)} />
    <${Figure} label=${t.usage.storage} value=${bytes(storage.bytes)} />
  </div>`;
}

function Groups({ groups, group, title }) {
  const figures = [
    [t.usage.metrics.requests, (row) => number(row.requests)],
    [t.usage.input, (row) => number(row.tokens.input)],
    [t.usage.cachedTokens, (row) => number(row.tokens.cached)],
    [t.usage.output, (row) => number(row.tokens.output)],
    [t.usage.metrics.images, (row) => number(row.image_generations)],
  ];
  const columns = [{ title: GROUPS.find(([name]) => name === group)[1], cell: (row) => title(row[group] ?? t.usage.unassigned) },
    ...figures.map(([title, cell]) => ({ title, cell, right: true }))];
  return html`<${Table} label=${t.usage.group} columns=${columns} rows=${groups ?? []} keyed=${(row) => row[group] ?? ""} />`;
}
