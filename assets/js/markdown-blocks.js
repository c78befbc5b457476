// Blocks of Markdown: headings, lists, tables, quotations, code and paragraphs. Where a block ends is found before it is built, because
// a text that grows has many ends but few blocks to build. Each line is read a bounded number of times.

import { h, html } from "./html.js";
import { inline } from "./markdown-inline.js";
import { CodeBlock } from "./ui.js";
import { t } from "./strings.js";

// Linear: a run of characters that are followed by a lookahead matches in one way.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~)) *(?! )([^\s`]*)(?:\s[^`]*)?$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(?![ \t])(.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const TABLE_RULE = /^\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;
const TASK = /^\[([ xX])\] +/;
// Deeper lists and quotations are shown as they are.
const MAX_DEPTH = 8;
// Wider tables and further rows are text. Short rows are filled up to the width of the head, so a small text could make millions of
// cells: a table may also have only a few more cells than characters.
const MAX_COLUMNS = 200;
const MAX_CELLS = 10_000;
const SPARE_CELLS = 100;
// A message is part of a page, whose own headings have levels 1 and 2.
const HEADING_OFFSET = 2;
// A longer paragraph that still grows is shown as it is, because every update would build it again.
const MAX_GROWING = 10_000;

const isBlank = (line) => !line.trim();
const isText = (line) => !isBlank(line);
const indentOf = (line) => line.length - line.trimStart().length;
/** The index of the first line from `from` on for which `test` holds, or the number of lines. */
function findLine(lines, from, test) {
  let at = from;
  while (at < lines.length && !test(lines[at])) at++;
  return at;
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);

/**
 * How blocks are built. `depth`: the number of containers around them. `tight`: paragraphs are shown without margins, as in the
 * items of a list. `growing`: the text is not complete. `known`: the parts of the text before it grew; `built` collects those of now.
 */
export class Builder {
  constructor({ depth = 0, tight = false, growing = false, known, built }) {
    Object.assign(this, { depth, tight, growing, known, built });
  }

  /** The builder of the blocks inside of a block. */
  inner(tight) {
    return new Builder({ ...this, depth: this.depth + 1, tight });
  }

  isPlain(text) {
    return this.growing && text.length > MAX_GROWING;
  }

  inline(text) {
    return this.isPlain(text) ? text : inline(text);
  }

  /** A part of a block, which is built unless it is known. Preact does not compare a node with itself. */
  part(kind, text, build) {
    const key = `${kind} ${this.depth} ${this.tight} ${this.isPlain(text)} ${text}`;
    const node = this.known.get(key) ?? build();
    this.built.set(key, node);
    return node;
  }

  /** The blocks inside of a block. */
  blocks(lines) {
    return Array.from(readBlocks(lines, this.depth), ({ start, end, build }) => this.part("block", lines.slice(start, end).join("\n"), () => build(this)));
  }
}

/** Yields the blocks of a text as `{start, end, build}`: their lines, and a function that returns the node and takes a builder. */
export function* readBlocks(lines, depth = 0) {
  for (let start = findLine(lines, 0, isText); start < lines.length; ) {
    const { end, build } = (readerOf(lines, start, depth) ?? paragraph)(lines, start, depth);
    yield { start, end, build };
    start = findLine(lines, end, isText);
  }
}

/** The function that reads the block at line `at`, or null if the line belongs to a paragraph. */
function readerOf(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return codeFence;
  if (HEADING.test(line)) return heading;
  if (RULE.test(line)) return rule;
  if (depth >= MAX_DEPTH) return null;
  if (QUOTE.test(line)) return quotation;
  if (ITEM.test(line)) return list;
  return line.includes("|") && isTableRule(lines[at + 1] ?? "") ? table : null;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end++;
  const build = (builder) => {
    const nodes = builder.inline(lines.slice(at, end).map((line) => line.trim()).join("\n"));
    return builder.tight ? h("span", { class: "multiline" }, nodes) : h("p", null, nodes);
  };
  return { end, build };
}

/** Whether a block interrupts a paragraph. Of lists, only one that starts with 1 may: “1999.” may start a line by chance. */
function interrupts(lines, at, depth) {
  const number = Number.parseInt(ITEM.exec(lines[at])?.[2], 10);
  return (Number.isNaN(number) || number === 1) && readerOf(lines, at, depth) !== null;
}

function heading(lines, at) {
  const [, marks, text = ""] = HEADING.exec(lines[at]);
  const build = (builder) => h(`h${Math.min(6, marks.length + HEADING_OFFSET)}`, null, builder.inline(text.trim().replace(/(^| )#+$/, "")));
  return { end: at + 1, build };
}

const rule = (_, at) => ({ end: at + 1, build: () => h("hr") });

function quotation(lines, at) {
  const end = findLine(lines, at, (line) => !QUOTE.test(line));
  return { end, build: (builder) => h("blockquote", null, builder.inner(false).blocks(lines.slice(at, end).map((line) => line.replace(QUOTE, "")))) };
}

/** A code block; without a closing fence it extends to the end, as while it is streamed. */
function codeFence(lines, at) {
  const [whole, fence, language] = FENCE.exec(lines[at]);
  const indent = indentOf(whole);
  const closes = (line) => line.includes(fence) && indentOf(line) < 4 && line.trim() === fence[0].repeat(line.trim().length);
  const close = findLine(lines, at + 1, closes);
  const build = () => {
    const inside = lines.slice(at + 1, close);
    const body = indent ? inside.map((line) => line.slice(Math.min(indent, indentOf(line)))) : inside;
    return html`<${CodeBlock} text=${body.join("\n")} language=${language} label=${t.chat.codeBlock(language)} />`;
  };
  return { end: Math.min(close + 1, lines.length), build };
}

const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
const isTableRule = (line) => TABLE_RULE.test(line.trim()) && cellsOf(line).length <= MAX_COLUMNS;

function table(lines, at) {
  const alignments = cellsOf(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const end = tableEnd(lines, at, alignments.length);
  const build = (builder) => {
    const row = (tag, line) => builder.part(`${tag} ${alignments}`, line, () => {
      const cells = cellsOf(line);
      return h("tr", null, alignments.map((alignment, index) => h(tag, { class: alignment }, builder.inline(cells[index] ?? ""))));
    });
    const body = lines.slice(at + 2, end).map((line) => row("td", line));
    return html`<div class="table" tabindex="0" role="region" aria-label=${t.chat.table}><table><thead>${row("th", lines[at])}</thead><tbody>${body}</tbody></table></div>`;
  };
  return { end, build };
}

function tableEnd(lines, at, columns) {
  const maxEnd = Math.min(lines.length, at + Math.floor(MAX_CELLS / columns));
  let spare = lines[at].length + lines[at + 1].length + SPARE_CELLS - columns;
  let end = at + 2;
  for (; end < maxEnd && lines[end].includes("|") && !startsBlock(lines[end]); end++) {
    spare += lines[end].length - columns;
    if (spare < 0) break;
  }
  return end;
}

function list(lines, at) {
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
  const number = Number.parseInt(first, 10);
  const build = (builder) => {
    const inner = builder.inner(!loose);
    const children = items.map((item) => inner.part("item", item.join("\n"), () => listItem(item, inner)));
    return Number.isNaN(number) ? h("ul", null, children) : h("ol", { start: number }, children);
  };
  return { end, build };
}

function listItem(lines, builder) {
  const task = TASK.exec(lines[0]);
  const first = task ? `${task[1] === " " ? "☐" : "☑"} ${lines[0].slice(task[0].length)}` : lines[0];
  return h("li", null, builder.blocks([first, ...lines.slice(1)]));
}
