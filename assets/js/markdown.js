// Markdown as vnodes. Text is never parsed as HTML, so the output of a model cannot add elements or scripts to the page.

import { Fragment, h, html, useMemo, useRef } from "./html.js";
import { Builder, readBlocks } from "./markdown-blocks.js";

// Longer texts are shown as they are.
const MAX_LENGTH = 200_000;
// A group of this many blocks is compared as a whole.
const GROUP = 100;

const withoutTabs = (line) => line.replaceAll("\t", "    ");

function grouped(nodes, firstKey) {
  const groups = [];
  for (let at = 0; at < nodes.length; at += GROUP) groups.push(h(Fragment, { key: firstKey + groups.length }, nodes.slice(at, at + GROUP)));
  return groups;
}

/** A text that may grow, as a response does while it is streamed. Blocks that no further text can change are built once. */
class GrowingText {
  static count = 0;
  key = GrowingText.count++;
  text = "";
  /** The position in the text up to which blocks are finished. */
  finished = 0;
  /** The finished blocks: full groups, and the others. */
  groups = [];
  nodes = [];
  /** Parts of the blocks that are not finished. */
  known = new Map();

  /** Returns the nodes of `text`, which starts with the previous text. `growing`: it is not complete. */
  update(text, growing) {
    this.text = text;
    if (text.length > MAX_LENGTH) return h("p", null, text);
    const rawLines = text.slice(this.finished).split("\n");
    const last = rawLines.length - 1;
    const lines = rawLines.map((line, at) => withoutTabs(at < last && line.endsWith("\r") ? line.slice(0, -1) : line));
    const built = new Map();
    const [finishedBlocks, open] = [{ known: this.known, built }, { known: this.known, built, growing }].map((options) => new Builder(options));
    let finishedLines = 0;
    const openNodes = [];
    for (const { end, build } of readBlocks(lines)) {
      // Where a block ends depends on two further lines, such as the first two of a table. The last line is not complete.
      if (end + 1 < last) {
        this.nodes.push(build(finishedBlocks));
        finishedLines = end;
      } else openNodes.push(build(open));
    }
    for (let at = 0; at < finishedLines; at++) this.finished += rawLines[at].length + 1;
    this.known = growing ? built : new Map();
    return this.group(openNodes);
  }

  /** All nodes in groups. Those of full groups are the same each time. */
  group(openNodes) {
    const full = Math.floor(this.nodes.length / GROUP);
    const groups = grouped([...this.nodes, ...openNodes], this.groups.length);
    this.groups.push(...groups.slice(0, full));
    this.nodes = this.nodes.slice(full * GROUP);
    return [...this.groups, ...groups.slice(full)];
  }
}

/** Renders a text. Addresses with schemes other than http, https and mailto stay text, and images become links. `growing`: more of it follows. */
export function Markdown({ text, growing = false }) {
  const shown = useRef(null);
  const nodes = useMemo(() => {
    if (!shown.current || !text.startsWith(shown.current.text)) shown.current = new GrowingText();
    return shown.current.update(text, growing);
  }, [text, growing]);
  // Another text gets new elements: comparing its nodes with those of this one could take long.
  return html`<div class="markdown" key=${shown.current.key}>${nodes}</div>`;
}
