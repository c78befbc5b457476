// Runs modules of the dashboard in Node, with as much of a document as preact needs.

import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const ASSETS = fileURLToPath(new URL("../../assets", import.meta.url));
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** A node in a linked list of siblings, so that inserting takes constant time, as in a browser. */
class Node {
  parentNode = null;
  previousSibling = null;
  nextSibling = null;

  remove() {
    this.parentNode?.removeChild(this);
  }
}

class Text extends Node {
  nodeType = 3;

  constructor(data) {
    super();
    this.data = data;
  }

  get markup() {
    return this.data.replace(/[&<>]/g, (one) => ESCAPES[one]);
  }
}

class Element extends Node {
  nodeType = 1;
  namespaceURI = "http://www.w3.org/1999/xhtml";
  firstChild = null;
  lastChild = null;
  attributes = new Map();

  constructor(name) {
    super();
    this.localName = name;
  }

  get childNodes() {
    const nodes = [];
    for (let node = this.firstChild; node; node = node.nextSibling) nodes.push(node);
    return nodes;
  }

  insertBefore(node, before) {
    const next = before === node ? node.nextSibling : before;
    node.remove();
    const previous = next ? next.previousSibling : this.lastChild;
    Object.assign(node, { parentNode: this, previousSibling: previous, nextSibling: next ?? null });
    if (previous) previous.nextSibling = node;
    else this.firstChild = node;
    if (next) next.previousSibling = node;
    else this.lastChild = node;
    return node;
  }

  removeChild(node) {
    const { previousSibling, nextSibling } = node;
    if (previousSibling) previousSibling.nextSibling = nextSibling;
    else this.firstChild = nextSibling;
    if (nextSibling) nextSibling.previousSibling = previousSibling;
    else this.lastChild = previousSibling;
    Object.assign(node, { parentNode: null, previousSibling: null, nextSibling: null });
  }

  setAttribute(name, value) {
    this.attributes.set(name, String(value));
  }

  removeAttribute(name) {
    this.attributes.delete(name);
  }

  addEventListener() {}

  /** The elements with a name, in order. */
  all(name) {
    return this.childNodes.filter((node) => node.nodeType === 1).flatMap((node) => [...(node.localName === name ? [node] : []), ...node.all(name)]);
  }

  get markup() {
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${value.replaceAll('"', "&quot;")}"`).join("");
    return `<${this.localName}${attributes}>${this.childNodes.map((node) => node.markup).join("")}</${this.localName}>`;
  }
}

export const newElement = (name = "div") => new Element(name);

/** Returns a function that imports a module below `js`. `assets`: the folder of the dashboard's files. */
export function moduleLoader(assets = ASSETS) {
  globalThis.sessionStorage ??= { getItem: () => null };
  globalThis.document ??= { createElement: newElement, createElementNS: (_, name) => newElement(name), createTextNode: (data) => new Text(data) };
  // Node takes the files for modules only if a package says so.
  const folder = mkdtempSync(join(tmpdir(), "outpost-modules-"));
  process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
  cpSync(assets, folder, { recursive: true });
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
  return (name) => import(pathToFileURL(join(folder, "js", name)));
}
