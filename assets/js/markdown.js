// Markdown as vnodes. Text is never parsed as HTML, so the output of a model cannot add elements or scripts to the page.

import { h, html, useMemo } from "./html.js";
import { inline } from "./markdown-inline.js";
import { CodeBlock } from "./ui.js";
import { t } from "./strings.js";

// Linear: a run of fence characters and the spaces after it match in one way.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~)) *(?! )([^\s`]*)(?:\s[^`]*)?$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const TABLE_RULE = /^\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;
const TASK = /^\[([ xX])\] +/;
// Deeper lists and quotations, and longer texts, are shown as they are.
const MAX_DEPTH = 8;
const MAX_LENGTH = 200_000;
// Further rows are text. Short rows are filled up to the width of the head, so a small text could make millions of cells.
const MAX_CELLS = 10_000;
// A message is part of a page, whose own headings have levels 1 and 2.
const HEADING_OFFSET = 2;

const isBlank = (line) => !line.trim();
const indentOf = (line) => line.length - line.trimStart().length;
/** The index of the first line from `from` on for which `test` holds, or the number of lines. */
function findLine(lines, from, test) {
  let at = from;
  while (at < lines.length && !test(lines[at])) at++;
  return at;
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);

/** Reads the lines from `at` on and returns `[vnode, next line]`, or null if they start a paragraph. */
function specialBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + HEADING_OFFSET)}`, null, inline((heading[2] ?? "").trim().replace(/(^| )#+$/, ""))), at + 1];
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (depth >= MAX_DEPTH) return null;
  if (QUOTE.test(line)) {
    const end = findLine(lines, at, (line) => !QUOTE.test(line));
    return [h("blockquote", null, blocks(lines.slice(at, end).map((line) => line.replace(QUOTE, "")), depth + 1)), end];
  }
  if (ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test((lines[at + 1] ?? "").trim())) return table(lines, at);
  return null;
}

/** A code block; without a closing fence it extends to the end, as while it is streamed. */
function codeFence(lines, at, [whole, fence, language]) {
  const indent = indentOf(whole);
  const closes = (line) => indentOf(line) < 4 && line.trim().length >= fence.length && line.trim() === fence[0].repeat(line.trim().length);
  const end = findLine(lines, at + 1, closes);
  const body = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))));
  return [html`<${CodeBlock} text=${body.join("\n")} language=${language} label=${t.chat.codeBlock(language)} />`, end + 1];
}

const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  const alignments = cellsOf(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  let end = at + 2;
  const maxEnd = Math.min(lines.length, at + Math.max(2, Math.floor(MAX_CELLS / alignments.length)));
  while (end < maxEnd && lines[end].includes("|") && !startsBlock(lines[end])) end++;
  const row = (line, tag) => {
    const cells = cellsOf(line);
    return h("tr", null, alignments.map((alignment, index) => h(tag, { class: alignment }, inline(cells[index] ?? ""))));
  };
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  return [html`<div class="table" tabindex="0" role="region" aria-label=${t.chat.table}><table><thead>${row(lines[at], "th")}</thead><tbody>${body}</tbody></table></div>`, end];
}

function list(lines, at, depth) {
  const [, margin, first] = ITEM.exec(lines[at]);
  const kind = first.at(-1);
  const items = [];
  let content = 0;
  let loose = false;
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (isBlank(line)) {
      items.at(-1)?.push("");
      continue;
    }
    const item = ITEM.exec(line);
    const previousBlank = end > at && isBlank(lines[end - 1]);
    if (item && item[2].at(-1) === kind && indentOf(line) <= margin.length + 1 && !RULE.test(line)) {
      loose ||= previousBlank;
      content = Math.min(item[0].length, margin.length + item[2].length + 4);
      items.push([line.slice(Math.max(item[0].length, item[1].length + item[2].length))]);
    } else if (indentOf(line) >= content || (item && indentOf(line) > margin.length) || (!previousBlank && !item && !startsBlock(line))) {
      // A paragraph inside of the item, a nested list, or a line that continues the text.
      loose ||= previousBlank && !item;
      items.at(-1).push(line.slice(Math.min(content, indentOf(line))));
    } else break;
  }
  const children = items.map((item) => {
    const task = TASK.exec(item[0]);
    if (task) item[0] = `${task[1] === " " ? "☐" : "☑"} ${item[0].slice(task[0].length)}`;
    return h("li", null, blocks(item, depth + 1, !loose));
  });
  const number = Number.parseInt(first, 10);
  return [Number.isNaN(number) ? h("ul", null, children) : h("ol", { start: number }, children), end];
}

/** `tight`: paragraphs are shown without margins, as in the items of a list. */
function blocks(lines, depth = 0, tight = false) {
  const nodes = [];
  let paragraph = [];
  const flush = () => {
    const text = paragraph.join("\n");
    if (text) nodes.push(tight ? h("span", { class: "multiline" }, inline(text)) : h("p", null, inline(text)));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    // Only a list that starts with 1 may interrupt a paragraph: “1999.” may start a line by chance.
    const item = paragraph.length && ITEM.exec(line);
    const block = isBlank(line) || (item && /^\d/.test(item[2]) && Number.parseInt(item[2], 10) !== 1) ? null : specialBlock(lines, at, depth);
    if (block || isBlank(line)) flush();
    if (block) {
      nodes.push(block[0]);
      at = block[1];
      continue;
    }
    if (!isBlank(line)) paragraph.push(line.trim());
    at++;
  }
  flush();
  return nodes;
}

/** Renders a text. Addresses with schemes other than http, https and mailto stay text, and images become links. */
export function Markdown({ text }) {
  const nodes = useMemo(() => (text.length > MAX_LENGTH ? h("p", null, text) : blocks(text.replaceAll("\t", "    ").split(/\r?\n/))), [text]);
  return html`<div class="markdown">${nodes}</div>`;
}
