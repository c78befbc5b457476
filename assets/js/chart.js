// Charts over time, drawn by uPlot.

import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef } from "./html.js";
import { compact } from "./format.js";
import { t } from "./strings.js";

const HEIGHT = 220;
// Told apart by those who see few colours, on light and on dark.
const COLOURS = ["#1b8a6b", "#c8691c", "#5b74d6", "#b0498f", "#7a8a1f", "#3c9bc0", "#a06a3f", "#8a63c9"];

/** `times`: seconds, or with `steps` numbers of steps; `series`: `{name, values}` each; `span`: seconds that are shown at least. */
export function Chart({ label, times, series, steps, span }) {
  const place = useRef();
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--dim", "--line"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const lines = series.map(({ name }, at) => ({
      label: name, stroke: COLOURS[at % COLOURS.length], width: 2, fill: series.length === 1 ? `${COLOURS[0]}22` : undefined,
      points: { show: times.length < 40 }, value: (_, value) => (value === null ? "–" : compact(value)),
    }));
    const options = {
      width: place.current.clientWidth, height: HEIGHT, axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map(compact) }],
      series: [{ label: steps ? t.tuning.step : t.time }, ...lines], scales: { x: { time: !steps, range: span && ((_, start, end) => [Math.min(start, end - span), end]) }, y: { range: (_, least, most) => [Math.min(0, least), Math.max(1, most * 1.05)] } },
      legend: { live: true }, cursor: { drag: { x: false, y: false } },
    };
    const chart = new uPlot(options, [times, ...series.map(({ values }) => values)], place.current);
    const fit = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    fit.observe(place.current);
    return () => {
      fit.disconnect();
      chart.destroy();
    };
  }, [times, series]);
  const total = ({ values }) => compact(values.reduce((sum, value) => sum + value, 0));
  return html`<figure class="chart" role="img" aria-label=${`${label}: ${series.map((one) => `${one.name} ${total(one)}`).join(", ")}`}>
    <div ref=${place}></div>
  </figure>`;
}
