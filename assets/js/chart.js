// Line charts, drawn by uPlot.

import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef } from "./html.js";
import { compact } from "./format.js";
import { t } from "./strings.js";

const HEIGHT = 220;
// Distinguishable with color blindness, on light and dark backgrounds.
const COLORS = ["#1b8a6b", "#c8691c", "#5b74d6", "#b0498f", "#7a8a1f", "#3c9bc0", "#a06a3f", "#8a63c9"];

/** `times`: x values, in Unix seconds or, with `steps`, step numbers. `series`: a list of `{name, values}`. `span`: the minimum width of the x axis, in seconds. */
export function Chart({ label, times, series, steps, span }) {
  const container = useRef();
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const [textColor, gridColor] = ["--text-muted", "--border"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: textColor, grid: { stroke: gridColor, width: 1 }, ticks: { stroke: gridColor, width: 1 }, font: "12px system-ui, sans-serif" };
    const lineSeries = series.map(({ name }, at) => ({
      label: name, stroke: COLORS[at % COLORS.length], width: 2, fill: series.length === 1 ? `${COLORS[0]}22` : undefined,
      points: { show: times.length < 40 }, value: (_, value) => (value === null ? "–" : compact(value)),
    }));
    const options = {
      width: container.current.clientWidth, height: HEIGHT, axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map(compact) }],
      series: [{ label: steps ? t.tuning.step : t.time }, ...lineSeries], scales: { x: { time: !steps, range: span && ((_, start, end) => [Math.min(start, end - span), end]) }, y: { range: (_, min, max) => [Math.min(0, min), Math.max(1, max * 1.05)] } },
      legend: { live: true }, cursor: { drag: { x: false, y: false } },
    };
    const chart = new uPlot(options, [times, ...series.map(({ values }) => values)], container.current);
    const resizer = new ResizeObserver(() => chart.setSize({ width: container.current.clientWidth, height: HEIGHT }));
    resizer.observe(container.current);
    return () => {
      resizer.disconnect();
      chart.destroy();
    };
  }, [times, series]);
  const total = ({ values }) => compact(values.reduce((sum, value) => sum + value, 0));
  return html`<figure class="chart" role="img" aria-label=${`${label}: ${series.map((one) => `${one.name} ${total(one)}`).join(", ")}`}>
    <div ref=${container}></div>
  </figure>`;
}
