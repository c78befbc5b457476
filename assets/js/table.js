// Tables that sort by a column, and become cards on small screens.

import { html, useState } from "./html.js";
import { Icon } from "./icons.js";
import { t } from "./strings.js";
import { ErrorAlert, Loading } from "./ui.js";

const isMissing = (value) => value === null || value === undefined || value === "";

/** Orders values of one type; texts without regard to case, missing values last in both directions. */
function compare(a, b, descending) {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  const [left, right] = [a, b].map((value) => (typeof value === "string" ? value.toLowerCase() : value));
  return (left < right ? -1 : left > right ? 1 : 0) * (descending ? -1 : 1);
}

/**
 * `columns`: `{title, cell(row), numeric, sort(row)}`. A column with `sort`, which returns a text or a number, can be sorted: numbers
 * start with the largest. A column with the title `t.actions` holds buttons.
 */
export function Table({ label, columns, rows, rowKey, sortable = true }) {
  const [order, setOrder] = useState(null);
  const column = sortable && order ? columns[order.index] : null;
  const sorted = column?.sort ? [...rows].sort((a, b) => compare(column.sort(a), column.sort(b), order.descending)) : rows;
  const sortBy = (index) => setOrder(order?.index === index ? { index, descending: !order.descending } : { index, descending: Boolean(columns[index].numeric) });
  const direction = (index) => (column && order.index === index ? (order.descending ? "descending" : "ascending") : undefined);
  const header = ({ title, sort }, index) => {
    if (title === t.actions) return html`<span class="visually-hidden">${title}</span>`;
    if (!sort || !sortable) return title;
    return html`<button type="button" class="sort" onClick=${() => sortBy(index)}>${title}<${Icon} name=${direction(index) === "ascending" ? "up" : "down"} /></button>`;
  };
  return html`<div class="table" role="region" aria-label=${label} tabindex="0">
    <table class="stacked">
      <thead><tr data-label=${t.sortBy}>${columns.map((one, index) => html`<th scope="col" class=${`${one.numeric ? "numeric" : ""} ${one.sort && sortable ? "sortable" : ""}`}
        aria-sort=${direction(index)}>${header(one, index)}</th>`)}</tr></thead>
      <tbody>${sorted.map((row) => html`<tr key=${rowKey(row)}>
        ${columns.map((one) => html`<td class=${`${one.numeric ? "numeric" : ""} ${one.title === t.actions ? "row-actions" : ""}`} data-label=${one.title === t.actions ? undefined : one.title}><div>${one.cell(row)}</div></td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** The table of a `usePagedList`, with its loading, error and empty states. It can be sorted when all rows are loaded. */
export const PagedTable = ({ list, empty, moreLabel = t.showMore, ...table }) => html`
  <${ErrorAlert} error=${list.error} retry=${list.retry} />
  ${list.loading && html`<${Loading} />`}
  ${list.empty && empty}
  ${list.rows.length > 0 && html`<${Table} ...${table} sortable=${!list.hasMore} rows=${list.rows} rowKey=${(row) => row.id} />`}
  ${list.hasMore && html`<button type="button" disabled=${list.loadingMore} onClick=${list.loadMore}>${moreLabel}</button>`}`;
