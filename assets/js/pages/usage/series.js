// Usage reports as the series of a chart.

import { sum } from "../../format.js";
import { t } from "../../strings.js";

// More groups would have no colors of their own.
const MAX_SERIES = 8;

/** Outcomes of requests, and the class of their color; the successful one first. */
export const OUTCOMES = [["succeeded", "good"], ["refused", "warn"], ["limited", "info"], ["failed", "bad"], ["abandoned", "other"]];

/** The parts of a report by which a metric is split if no group is selected: `[name, color, value(result)]`. */
const SPLITS = {
  requests: OUTCOMES.map(([name, color]) => [t.usage.outcomes[name], color, (result) => result.requests_by_outcome[name]]),
  tokens: [
    [t.usage.uncachedInput, "color-0", (result) => result.tokens.input - result.tokens.cached],
    [t.usage.cachedInput, "color-3", (result) => result.tokens.cached],
    [t.usage.output, "color-1", (result) => result.tokens.output],
  ],
  images: [[t.usage.metrics.images, "color-0", (result) => result.image_generations]],
  audio: [
    [t.usage.audioInput, "color-0", (result) => result.audio_processing.input_seconds],
    [t.usage.audioOutput, "color-1", (result) => result.audio_processing.output_seconds],
  ],
};

/** The total of each metric in a report or a result. */
export const METRICS = {
  requests: { total: (result) => result.requests },
  tokens: { total: (result) => result.tokens.total },
  images: { total: (result) => result.image_generations },
  audio: { total: (result) => result.audio_processing.seconds },
};


/** The series of `BarChart`: by the group of the report, the largest first, or by the parts of the metric. `nameOf`: the name of a group's value. */
export function chartSeries({ data, group }, metric, nameOf) {
  if (!group) {
    const split = SPLITS[metric].map(([name, color, value]) => ({ name, color, values: data.map(({ results }) => sum(results.map(value))) }));
    return split.filter(({ values }, index) => index === 0 || sum(values) > 0);
  }
  const { total } = METRICS[metric];
  const ids = [...new Set(data.flatMap(({ results }) => results.map((result) => result[group] ?? null)))];
  const series = ids.map((id) => ({ name: nameOf(id), values: data.map(({ results }) => sum(results.filter((result) => (result[group] ?? null) === id).map(total))) }))
    .filter(({ values }) => sum(values) > 0).sort((a, b) => sum(b.values) - sum(a.values));
  const rest = series.slice(MAX_SERIES);
  const shown = series.slice(0, MAX_SERIES).map((one, index) => ({ ...one, color: `color-${index}` }));
  return rest.length ? [...shown, { name: t.usage.others(rest.length), color: "other", values: data.map((_, index) => sum(rest.map(({ values }) => values[index]))) }] : shown;
}
