// Charts as SVG: stacked bars for buckets of time, and lines for values over time or over steps.

import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { compact, decimal, number, sum } from "./format.js";
import { t } from "./strings.js";

const HEIGHT = 240;
const MARGIN = { top: 12, right: 12, bottom: 26, left: 52 };
const PLOT_HEIGHT = HEIGHT - MARGIN.top - MARGIN.bottom;
// Pixels between two labels, and the largest width of a bar.
const LABEL_SPACE = 92;
const MAX_BAR = 56;
const INITIAL_WIDTH = 800;

/** About four round values from zero to at least `max`. `fine`: they may be as small as the values are. */
function ticksUpTo(max, fine) {
  const top = Math.max(max, fine ? 1e-6 : 1);
  const power = 10 ** Math.floor(Math.log10(top / 4));
  const smallest = fine ? 0 : max > 4 ? 1 : 0.5;
  const step = Math.max(smallest, (fine ? [1, 2, 2.5, 5, 10] : [1, 2, 5, 10]).map((factor) => factor * power).find((step) => step >= top / 4));
  return Array.from({ length: Math.ceil(top / step) + 1 }, (_, index) => index * step);
}

/** The width of an element in pixels, as it changes. */
function useWidth(element) {
  const [width, setWidth] = useState(INITIAL_WIDTH);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ target }]) => setWidth(target.clientWidth));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/**
 * Axes, the plot as a child, the legend, and the values at the pointer. `count`: the number of points. `at` gives the index at an x position, `tooltip` the text for it.
 * `fine`: the values are fractions; otherwise they are shown in short.
 */
function Plot({ label, unit, max, count, labels, legend, at, x, tooltip, width, container, fine = false, children }) {
  const show = fine ? decimal : compact;
  const [pointed, setHovered] = useState(null);
  // New data may have fewer points.
  const hovered = pointed !== null && pointed < count ? pointed : null;
  const ticks = ticksUpTo(max, fine);
  const y = (value) => MARGIN.top + PLOT_HEIGHT * (1 - value / ticks.at(-1));
  const move = (event) => setHovered(at(event.clientX - container.current.getBoundingClientRect().left));
  const left = hovered !== null && x(hovered);
  return html`<figure class="chart">
    <div class="plot-area" ref=${container} onPointerMove=${move} onPointerLeave=${() => setHovered(null)}>
      <svg class="plot" role="img" aria-label=${`${label}: ${legend.map(({ name, total }) => `${name} ${show(total)}`).join(", ")}`} width=${width} height=${HEIGHT}>
        ${ticks.map((tick) => html`<g key=${tick}><line class="grid-line" x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(tick)} y2=${y(tick)} />
          <text class="axis" x=${MARGIN.left - 8} y=${y(tick) + 4} text-anchor="end">${show(tick)}</text></g>`)}
        ${labels.map(([position, text, anchor = "middle"]) => html`<text class="axis" key=${position} x=${position} y=${HEIGHT - 6} text-anchor=${anchor}>${text}</text>`)}
        ${hovered !== null && html`<line class="cursor" x1=${left} x2=${left} y1=${MARGIN.top} y2=${MARGIN.top + PLOT_HEIGHT} />`}
        ${children(y)}
      </svg>
      ${hovered !== null && html`<div class=${`tooltip ${left > width / 2 ? "before" : ""}`} style=${{ left: `${left}px` }}>${tooltip(hovered)}</div>`}
    </div>
    <figcaption><ul class="legend">${legend.map(({ name, color, total }, index) => html`<li key=${index}><span class=${`swatch ${color}`}></span>${name} <strong>${show(total)}</strong> ${unit(total)}</li>`)}</ul></figcaption>
  </figure>`;
}

const TooltipRow = ({ color, name, value, unit, show = number }) => html`<div class="tooltip-row"><span class=${`swatch ${color}`}></span><span>${name}</span><strong>${show(value)} ${unit(value)}</strong></div>`;

/**
 * Stacked bars. `unit(value)`: the unit of a value. `buckets`: `{title, label, number, running}`, the name of each bucket, its short form for the axis, its number since a
 * round time, and whether it has not ended. `steps`: how many buckets may lie between two labels, ascending.
 * `series`: `{name, values, color}`, at most nine; `color` is a class.
 */
export function BarChart({ label, unit, buckets, steps, series }) {
  const container = useRef();
  const width = useWidth(container);
  const space = Math.max(1, width - MARGIN.left - MARGIN.right) / buckets.length;
  const barWidth = Math.max(1, Math.min(MAX_BAR, space * 0.72));
  const x = (index) => MARGIN.left + (index + 0.5) * space;
  const totals = buckets.map((_, index) => sum(series.map(({ values }) => values[index])));
  const every = steps.find((step) => step * space >= LABEL_SPACE) ?? buckets.length;
  // The last label must not leave the chart.
  const labelAt = (position, text) => (position > width - LABEL_SPACE / 2 ? [width - 2, text, "end"] : [position, text]);
  const labels = buckets.flatMap((bucket, index) => (bucket.number % every === 0 ? [labelAt(x(index), bucket.label)] : []));
  // One path per series keeps charts with a thousand buckets fast. The running bucket has paths of its own.
  const bars = (y, running) => {
    const below = buckets.map(() => 0);
    return series.map(({ values, color }, number) => {
      const path = values.map((value, index) => {
        const bottom = below[index];
        below[index] += value;
        if (!value || Boolean(buckets[index].running) !== running) return "";
        return `M${x(index) - barWidth / 2} ${y(bottom)}H${x(index) + barWidth / 2}V${y(bottom + value)}H${x(index) - barWidth / 2}z`;
      }).join("");
      return path && html`<path key=${`${number} ${running}`} class=${`bar ${color} ${running ? "running" : ""}`} d=${path} />`;
    });
  };
  const tooltip = (index) => html`<p>${buckets[index].title}${buckets[index].running && html` · <em>${t.chart.running}</em>`}</p>
    ${series.filter(({ values }) => values[index]).map(({ name, values, color }, row) => html`<${TooltipRow} key=${row} ...${{ name, color, unit, value: values[index] }} />`)}
    ${series.length !== 1 && html`<${TooltipRow} name=${t.chart.total} color="none" unit=${unit} value=${totals[index]} />`}`;
  const at = (position) => {
    const index = Math.floor((position - MARGIN.left) / space);
    return index >= 0 && index < buckets.length ? index : null;
  };
  const legend = series.map(({ name, values, color }) => ({ name, color, total: sum(values) }));
  return html`<${Plot} ...${{ label, unit, labels, legend, at, x, tooltip, width, container, count: buckets.length, max: Math.max(...totals) }}>
    ${(y) => html`<g>${bars(y, false)}${bars(y, true)}${buckets.map((bucket, index) => bucket.running && html`<text class="axis running" key=${index} text-anchor="middle"
      x=${Math.min(x(index), width - MARGIN.right - 28)} y=${y(totals[index]) - 4}>${t.chart.running}</text>`)}</g>`}
  <//>`;
}

/**
 * Lines; a single one has a filled area. `unit(value)`: the unit of a value. `series`: `{name, color, xs, values}`, where `xs` are ascending numbers with one value each.
 * `format`: the text of an x value, `span`: the smallest width of the x axis, `whole`: the x values are whole numbers, `fine`: the values are fractions.
 */
export function LineChart({ label, unit, series, format, span = 0, whole = false, fine = false }) {
  const container = useRef();
  const width = useWidth(container);
  const xs = [...new Set(series.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const [first, last] = [Math.min(xs[0], xs.at(-1) - span), xs.at(-1)];
  const position = (value) => MARGIN.left + ((value - first) / (last - first || 1)) * (width - MARGIN.left - MARGIN.right);
  const x = (index) => position(xs[index]);
  const count = Math.max(2, Math.floor(width / (LABEL_SPACE * 1.5)));
  const anchor = (index) => (index === 0 ? "start" : index === count - 1 ? "end" : "middle");
  const labels = Array.from({ length: count }, (_, index) => [first + ((last - first) * index) / (count - 1), anchor(index)])
    .map(([value, anchor]) => [whole && value !== last ? Math.floor(value) : value, anchor]).filter(([value], index, all) => value !== all[index + 1]?.[0])
    .map(([value, anchor]) => [position(value), format(value), anchor]);
  const at = (pixel) => xs.reduce((best, _, index) => (Math.abs(x(index) - pixel) < Math.abs(x(best) - pixel) ? index : best), 0);
  const show = fine ? decimal : number;
  const round = (value) => (fine ? value : Math.round(value * 1000) / 1000);
  const tooltip = (index) => html`<p>${format(xs[index])}</p>${series.map(({ name, color, xs: own, values }) => {
    const found = own.indexOf(xs[index]);
    return found >= 0 && html`<${TooltipRow} key=${name} ...${{ name, color, unit, show, value: round(values[found]) }} />`;
  })}`;
  const legend = series.map(({ name, color, values }) => ({ name, color, total: values.at(-1) }));
  const max = series.reduce((max, { values }) => values.reduce((a, b) => Math.max(a, b), max), 0);
  return html`<${Plot} ...${{ label, unit, labels, legend, at, x, tooltip, width, container, fine, max, count: xs.length }}>
    ${(y) => series.map(({ name, color, xs, values }) => {
      const line = xs.map((value, index) => `${position(value)} ${y(values[index])}`).join("L");
      return html`<g key=${name} class=${color}>${series.length === 1 && html`<path class="area" d=${`M${position(xs[0])} ${y(0)}L${line}L${position(xs.at(-1))} ${y(0)}z`} />`}<path class="line" d=${`M${line}`} />
        ${xs.length < 40 && xs.map((value, index) => html`<circle key=${index} cx=${position(value)} cy=${y(values[index])} r="2.5" />`)}</g>`;
    })}
  <//>`;
}
