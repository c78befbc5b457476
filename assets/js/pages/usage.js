// Usage of a project: totals, a chart, and a table by group.

import { html, useMemo, useState } from "../html.js";
import { all, apiPath, download, get } from "../api.js";
import { BarChart } from "../chart.js";
import { bytes, compact, duration, number } from "../format.js";
import { t } from "../strings.js";
import { Table } from "../table.js";
import { TimeRangeFields, useTimeRange } from "../time-range.js";
import { EmptyState, ErrorAlert, Filters, Stat, Page, SelectField, useAction, useLoad, Loading } from "../ui.js";
import { bucketsOf, labelSteps, queryOf } from "./usage/buckets.js";
import { chartSeries, METRICS, OUTCOMES } from "./usage/series.js";

const TIME_RANGES = ["hour", "day", "week", "month", "custom"];
const GROUPS = ["model", "api_key_id", "endpoint"];

/** `nested`: shown in a tab of the project's page. */
export function Usage({ project, nested }) {
  const [range, setRange] = useTimeRange("day");
  const [group, setGroup] = useState("");
  const [metric, setMetric] = useState("requests");
  const ready = range.name !== "custom" || range.from;
  const query = () => ({ ...queryOf(range), group_by: group });
  const path = apiPath`/projects/${project.id}/usage`;
  // The report keeps its group, because the selected one changes before the next report arrives.
  const [usage, error, reload] = useLoad(async () => (ready ? { ...(await get(path, query())), group } : null), [project.id, range, group]);
  const [keys] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const [exportCsv, exporting, exportError] = useAction(() => download(path, query(), { accept: "text/csv" }, `usage-${project.id}.csv`));
  const nameOf = (value) => (value === null || value === undefined ? t.usage.unassigned : (keys?.find((key) => key.id === value)?.name ?? value));
  const chart = useMemo(() => usage && { buckets: bucketsOf(usage), steps: labelSteps(usage), series: chartSeries(usage, metric, nameOf) }, [usage, metric, keys]);
  const shown = usage && METRICS[metric].total(usage) > 0;
  return html`<${Page} title=${t.pages.usage} about=${t.usage.about} nested=${nested}
      actions=${html`<button type="button" disabled=${exporting || !ready} onClick=${exportCsv}>${t.usage.csv}</button>`}>
    <${Filters} count=${[range.name !== "day", group, metric !== "requests"].filter(Boolean).length}>
      <${TimeRangeFields} ...${{ range, setRange, names: TIME_RANGES }} />
      <${SelectField} label=${t.usage.metric} value=${metric} onInput=${setMetric} options=${Object.keys(METRICS).map((name) => [name, t.usage.metrics[name]])} />
      <${SelectField} label=${t.usage.group} value=${group} onInput=${setGroup} options=${[["", t.usage.splits[metric]], ...GROUPS.map((name) => [name, t.usage.groups[name]])]} />
    <//>
    <${ErrorAlert} error=${error ?? exportError} retry=${error && reload} />
    ${!usage && ready && !error && html`<${Loading} />`}
    ${usage && html`<${Totals} usage=${usage} />`}
    ${usage && !shown && html`<${EmptyState} title=${t.usage.empty(t.usage.metrics[metric])}><p>${t.usage.emptyHint}</p><//>`}
    ${shown && html`<${BarChart} label=${t.usage.chart(t.usage.metrics[metric])} unit=${t.usage.units[metric]} ...${chart} />`}
    ${usage?.group && usage.requests > 0 && html`<${Groups} ...${{ usage, nameOf }} />`}
  <//>`;
}

/** The totals. Figures of features that were not used are left out. */
function Totals({ usage }) {
  const { storage, tokens, requests, requests_by_outcome: outcomes, image_generations: images, audio_processing: audio } = usage;
  const unsuccessful = OUTCOMES.slice(1).filter(([name]) => outcomes[name]);
  return html`<div class="stats">
    <${Stat} label=${t.usage.metrics.requests} value=${number(requests)} unit=${t.usage.units.requests(requests)} hint=${requests > 0 && (unsuccessful.length === 0 ? t.usage.allSucceeded : undefined)}>
      ${unsuccessful.map(([name, color]) => html`<span key=${name} class="muted"><span class=${`swatch ${color}`}></span>${number(outcomes[name])} ${t.usage.outcomes[name].toLowerCase()}</span>`)}
    <//>
    <${Stat} label=${t.usage.input} value=${compact(tokens.input)} unit=${t.usage.units.tokens(tokens.input)} hint=${tokens.cached > 0 && t.usage.cached(compact(tokens.cached))} />
    <${Stat} label=${t.usage.output} value=${compact(tokens.output)} unit=${t.usage.units.tokens(tokens.output)} />
    ${images > 0 && html`<${Stat} label=${t.usage.metrics.images} value=${number(images)} unit=${t.usage.units.images(images)} />`}
    ${audio.input_seconds > 0 && html`<${Stat} label=${t.usage.audioInput} value=${duration(audio.input_seconds)} />`}
    ${audio.output_seconds > 0 && html`<${Stat} label=${t.usage.audioOutput} value=${duration(audio.output_seconds)} />`}
    <${Stat} label=${t.usage.storage} value=${bytes(storage.bytes)} hint=${t.usage.storageHint} />
  </div>`;
}

function Groups({ usage: { groups, group }, nameOf }) {
  const hasImages = groups.some((row) => row.image_generations);
  const seconds = (title, value) => (groups.some(value) ? [{ title, numeric: true, sort: value, cell: (row) => duration(value(row)) }] : []);
  const count = (title, value) => ({ title, numeric: true, sort: value, cell: (row) => number(value(row)) });
  const columns = [
    { title: t.usage.groups[group], sort: (row) => nameOf(row[group]), cell: (row) => nameOf(row[group]) },
    count(t.usage.metrics.requests, (row) => row.requests),
    count(t.usage.unsuccessful, (row) => row.requests - row.requests_by_outcome.succeeded),
    count(t.usage.input, (row) => row.tokens.input), count(t.usage.cachedTokens, (row) => row.tokens.cached), count(t.usage.output, (row) => row.tokens.output),
    ...(hasImages ? [count(t.usage.metrics.images, (row) => row.image_generations)] : []),
    ...seconds(t.usage.audioInput, (row) => row.audio_processing.input_seconds), ...seconds(t.usage.audioOutput, (row) => row.audio_processing.output_seconds),
  ];
  return html`<${Table} label=${t.usage.group} columns=${columns} rows=${groups} rowKey=${(row) => row[group] ?? ""} />`;
}
