// Inline Markdown as vnodes: emphasis, code, links. One pass over the text, in linear time: no expression can match the same characters
// in many ways, and what closes a bracket or a run of backticks is found once for the whole text.

import { h } from "./html.js";

// Escape, code, emphasis, link or image, autolink, bare URL.
const TOKEN = /\\([!-/:-@[-`{-~])|(`+)|(\*{1,3}|_{1,3}|~~)|(!?\[)|<((?:https?:\/\/|mailto:)[^\s<>]*)>|((?<!\w)https?:\/\/[^\s<>"'`*|]+)/g;
const TAGS = { "**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del" };
const DESTINATION = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;
const SCHEMES = ["http:", "https:", "mailto:"];
// Longer labels and destinations are shown as text.
const MAX_LABEL = 300;
const MAX_DESTINATION = 1000;
// No such host exists, and encoding one takes quadratic time.
const LONG_HOST = /^https?:[/\\]*[^/\\?#]{300}/i;

/** The address of a link, or null unless it is absolute and its scheme is harmless. */
function safeUrl(text) {
  if (LONG_HOST.test(text)) return null;
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const anchor = (href, children) => h("a", { href, target: "_blank", rel: "noopener noreferrer" }, children);

/** The position of the closing bracket of each opening one. */
function bracketPairs(text) {
  const pairs = new Map();
  const open = [];
  for (const { index, 0: found } of text.matchAll(/\\[^]|[[\]]/g)) {
    if (found === "[") open.push(index);
    else if (found === "]" && open.length) pairs.set(open.pop(), index);
  }
  return pairs;
}

/** The runs of backticks by their length, each with their positions in order. */
function backtickRuns(text) {
  const runs = new Map();
  for (const { index, 0: { length } } of text.matchAll(/`+/g)) {
    if (!runs.has(length)) runs.set(length, { positions: [], next: 0 });
    runs.get(length).positions.push(index);
  }
  return runs;
}

/** Finds what closes code and labels in a text that is read from start to end. */
class Closings {
  constructor(text) {
    this.text = text;
  }

  /** The position of the next run of exactly `length` backticks, or undefined. */
  code(from, length) {
    this.runs ??= backtickRuns(this.text);
    const run = this.runs.get(length);
    while (run?.positions[run.next] < from) run.next++;
    return run?.positions[run.next];
  }

  /** The link that starts with the bracket at `start`: `{label, url, end}`, or null. */
  link(start) {
    this.brackets ??= bracketPairs(this.text);
    const close = this.brackets.get(start);
    if (close === undefined || close >= start + MAX_LABEL || this.text[close + 1] !== "(") return null;
    const destination = DESTINATION.exec(this.text.slice(close + 1, close + 1 + MAX_DESTINATION));
    return destination && { label: this.text.slice(start + 1, close), url: safeUrl(destination[1] ?? destination[2]), end: close + 1 + destination[0].length };
  }
}

/** Open emphasis, and the nodes inside of it. */
class Stack {
  frames = [{ marker: "", nodes: [] }];

  push(node) {
    const { nodes } = this.frames.at(-1);
    if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
    else nodes.push(node);
  }

  open(marker) {
    if (this.frames.some((frame) => frame.marker === marker)) return false;
    this.frames.push({ marker, nodes: [] });
    return true;
  }

  /** Closes the emphasis that starts `run`, and returns the length of its marker, or 0 if none is open. */
  close(run) {
    const exact = this.frames.findLastIndex((frame) => frame.marker === run);
    const index = exact > 0 ? exact : this.frames.findLastIndex((frame) => frame.marker && run.startsWith(frame.marker));
    if (index < 1) return 0;
    this.flatten(index + 1);
    const { marker, nodes } = this.frames.pop();
    this.push(h(TAGS[marker], null, nodes));
    return marker.length;
  }

  /** Turns unclosed emphasis from frame `index` on back into text. */
  flatten(index) {
    for (const { marker, nodes } of this.frames.splice(index)) {
      this.push(marker);
      for (const node of nodes) this.push(node);
    }
  }
}

function emphasis(stack, run, before, after) {
  const word = (character) => /\w/.test(character);
  const opens = /\S/.test(after) && (run[0] !== "_" || !word(before));
  const closes = /\S/.test(before) && (run[0] !== "_" || !word(after));
  for (let rest = run; rest; ) {
    const closed = closes && stack.close(rest);
    const marker = rest.slice(0, 2);
    if (closed) rest = rest.slice(closed);
    else if (opens && stack.open(marker)) rest = rest.slice(marker.length);
    else return stack.push(rest);
  }
}

/** Code without the space at each end that separates it from its backticks. */
function codeSpan(text) {
  const padded = text.length > 2 && text.startsWith(" ") && text.endsWith(" ") && text.trim();
  return h("code", null, padded ? text.slice(1, -1) : text);
}

/** Returns the text as a list of vnodes and strings. */
export function inline(text) {
  const stack = new Stack();
  const token = new RegExp(TOKEN);
  const closings = new Closings(text);
  let at = 0;
  for (let match; (match = token.exec(text)); at = token.lastIndex) {
    const [whole, escaped, ticks, run, bracket, autolink, bare] = match;
    const { index } = match;
    let end = index + whole.length;
    if (index > at) stack.push(text.slice(at, index));
    if (escaped) stack.push(escaped);
    else if (ticks) {
      const close = closings.code(end, ticks.length);
      stack.push(close === undefined ? ticks : codeSpan(text.slice(end, close)));
      if (close !== undefined) end = close + ticks.length;
    } else if (run) emphasis(stack, run, text[index - 1] ?? " ", text[end] ?? " ");
    else if (bracket) {
      const link = closings.link(end - 1);
      if (link?.url) {
        stack.push(anchor(link.url, bracket === "[" ? inline(link.label) : link.label || link.url));
        end = link.end;
      } else stack.push(bracket);
    } else if (autolink) {
      const url = safeUrl(autolink);
      stack.push(url ? anchor(url, autolink) : whole);
    } else {
      // A sentence may end after the address.
      let length = bare.length;
      while (".,:;!?)]_~".includes(bare[length - 1])) length--;
      const address = bare.slice(0, length);
      const url = safeUrl(address);
      stack.push(url ? anchor(url, address) : address);
      end = index + address.length;
    }
    token.lastIndex = end;
  }
  if (at < text.length) stack.push(text.slice(at));
  stack.flatten(1);
  return stack.frames[0].nodes;
}
