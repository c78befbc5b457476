// Inline Markdown as vnodes: emphasis, code, links. One pass over the text, in linear time.

import { h } from "./html.js";

// Escape, code, emphasis, link or image, autolink, bare URL.
const TOKEN = /\\([!-/:-@[-`{-~])|(`+)|(\*{1,3}|_{1,3}|~~)|(!?\[)|<((?:https?:\/\/|mailto:)[^\s<>]*)>|((?<!\w)https?:\/\/[^\s<>"'`*|]+)/g;
const TAGS = { "**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del" };
const DESTINATION = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;
const SCHEMES = ["http:", "https:", "mailto:"];
// Longer labels and addresses are shown as text.
const MAX_LABEL = 300;
const MAX_DESTINATION = 1000;

/** The address of a link, or null unless it is absolute and its scheme is harmless. */
function safeUrl(text) {
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const anchor = (href, children) => h("a", { href, target: "_blank", rel: "noopener noreferrer" }, children);

/** The link that starts with the bracket at `start`: `{label, url, end}`, or null. */
function findLink(text, start) {
  let depth = 0;
  const limit = Math.min(text.length, start + MAX_LABEL);
  for (let at = start; at < limit; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "[") depth++;
    else if (text[at] === "]" && --depth === 0) {
      const destination = DESTINATION.exec(text.slice(at + 1, at + 1 + MAX_DESTINATION));
      return destination && { label: text.slice(start + 1, at), url: safeUrl(destination[1] ?? destination[2]), end: at + 1 + destination[0].length };
    }
  }
  return null;
}

/** Open emphasis, and the nodes inside of it. */
class Stack {
  frames = [{ marker: "", nodes: [] }];

  push(node) {
    this.frames.at(-1).nodes.push(node);
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
    for (const { marker, nodes } of this.frames.splice(index)) this.frames.at(-1).nodes = this.frames.at(-1).nodes.concat(marker, nodes);
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

/** Returns the text as a list of vnodes and strings. */
export function inline(text) {
  const stack = new Stack();
  const token = new RegExp(TOKEN);
  // Lengths of backtick runs that no later run closes.
  const unclosed = new Set();
  let at = 0;
  for (let match; (match = token.exec(text)); at = token.lastIndex) {
    const [whole, escaped, ticks, run, bracket, autolink, bare] = match;
    const { index } = match;
    let end = index + whole.length;
    if (index > at) stack.push(text.slice(at, index));
    if (escaped) stack.push(escaped);
    else if (ticks) {
      const close = unclosed.has(ticks.length) ? -1 : closingTicks(text, end, ticks.length);
      if (close < 0) unclosed.add(ticks.length);
      stack.push(close < 0 ? ticks : h("code", null, text.slice(end, close).replace(/^ (.*\S.*) $/s, "$1")));
      if (close >= 0) end = close + ticks.length;
    } else if (run) emphasis(stack, run, text[index - 1] ?? " ", text[end] ?? " ");
    else if (bracket) {
      const link = findLink(text, end - 1);
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

/** The position of the next run of exactly `length` backticks, or -1. */
function closingTicks(text, from, length) {
  const runs = /`+/g;
  runs.lastIndex = from;
  for (let match; (match = runs.exec(text)); ) if (match[0].length === length) return match.index;
  return -1;
}
