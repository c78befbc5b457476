// The time of rendering the output of models, in Node without a browser: it grows linearly with any text, a text that grows is not
// built again with each update, and the result does not depend on how the text arrived.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { moduleLoader, newElement } from "./module-tests.mjs";

// Another folder than this one's can be tested, such as that of an earlier version.
const load = moduleLoader(process.env.DASHBOARD_ASSETS);
const [{ Markdown }, { h, render }, { options }, { colored }, { events }, { streamReply }] = await Promise.all(["markdown.js", "html.js", "../vendor/preact.js", "syntax.js", "sse.js", "pages/playground/chat-request.js"].map(load));

/** Shows a text in an element, or updates the text that it shows. */
const show = (text, root = newElement(), growing = false) => {
  render(h(Markdown, { text, growing }), root);
  return root;
};

/** Shows a text in parts, as it arrives. `size` returns the length of the next part. */
function stream(text, size) {
  const root = newElement();
  for (let end = size(); end < text.length; end += size()) show(text.slice(0, end), root, true);
  show(text, root, true);
  return show(text, root);
}

/** The number of nodes that preact gets from `run`. */
function builtBy(run) {
  let count = 0;
  options.vnode = () => count++;
  run();
  options.vnode = undefined;
  return count;
}

const repeated = (pattern) => (length) => pattern.repeat(Math.ceil(length / pattern.length)).slice(0, length);
const enclosed = (start, pattern, end) => (length) => start + repeated(pattern)(length) + end;
/** Runs of growing length: `a`, `aa`, `aaa`. */
function growing(character, separator) {
  return (length) => {
    let text = "";
    for (let run = 1; text.length < length; run++) text += character.repeat(run) + separator;
    return text;
  };
}
const manyHosts = (length) => Array.from({ length }, (_, at) => String.fromCharCode(0x4e00 + ((at * 7919) % 20_000))).join("");
const staircase = (length, levels) => Array.from({ length: Math.ceil(length / levels) }, (_, at) => `${"  ".repeat(at % levels)}- a`).join("\n");
/** Code without colored parts that are longer than colors reach. */
const code = (pattern) => (length) => ["js", "python", "json", "sh", "rust"].map((language) => `~~~${language}\n${repeated(pattern)(length / 5)}\n~~~\n`).join("\n");

// Texts by length. Each took much longer than others of its length in some version of this or another renderer.
const TEXTS = {
  "a code span of spaces": enclosed("`", " a", "`"),
  "a code span of spaces that ends with one": enclosed("`", " a", " `"),
  "a code span of nothing else": enclosed("`", " ", "`"),
  "a code span of lines": enclosed("`", " a\n", "`"),
  "a code span with two backticks": enclosed("``", " a", "``"),
  "a code span in a heading": enclosed("# `", " a", "`"),
  "a code span in a quotation": enclosed("> `", " a", "`"),
  "a code span in a list": enclosed("- `", " a", "`"),
  "a code span in a cell": enclosed("a|b\n-|-\n`", " a", "`|"),
  "unclosed backticks of many lengths": growing("`", "a"),
  "unclosed backticks of many lengths, then one": (length) => `${growing("`", " ")(length)}\`x`,
  "a heading with spaces before a line separator": enclosed("# ", " ", "\u2028x"),
  "a heading with tabs before a carriage return": enclosed("# ", "\t", "\rx"),
  "a heading of number signs": enclosed("# a ", "# ", "x"),
  "a rule of spaces": enclosed("---", " ", "x"),
  "a rule that is none": enclosed("", "- ", "x"),
  "a host of many characters": (length) => `https://${manyHosts(length)}`,
  "a host of many characters in brackets": (length) => `<https://${manyHosts(length)}>`,
  "a host of many labels": enclosed("https://", "é.", "x"),
  "a path of dots": enclosed("https://a/", "../", ""),
  "an address that ends with brackets": enclosed("https://a", ")", ""),
  "an address that ends with dots": enclosed("https://", ".", ""),
  "a table of spaces": enclosed("a|b\n-|-\n", " ", "|x"),
  "a rule of a table": enclosed("a|b\n", ":-:|", "x"),
  "a wide table": (length) => `${"|".repeat(length / 4)}\n${"|-".repeat(length / 4)}\n${repeated("|\n")(length / 4)}`,
  "short rows in tables": (length) => repeated(`${"|".repeat(100)}\n${"|-".repeat(100)}\n${"|\n".repeat(100)}`)(length),
  "lists in lists": (length) => staircase(length, 40),
  "lists in lists without end": (length) => staircase(length, length),
  "a long item": enclosed("- a\n", "  - b\n\n    c\n\n", ""),
  "lines that continue an item": enclosed("- a\n", "b\n", ""),
  "an item of tabs": enclosed("-", "\t", "x"),
  "emphasis in emphasis": enclosed("_a", "~~a *b~~", ""),
  "links in links": (length) => repeated(`${"[".repeat(30)}a${"](https://a.b)".repeat(18)}`)(length),
  "brackets before a destination": (length) => "[".repeat(length / 2) + repeated("](https://a.example)")(length / 2),
  "a destination of spaces": repeated(`[a](${" ".repeat(900)}`),
  "a destination and spaces": repeated(`[a](b${" ".repeat(900)}`),
  "a destination of brackets": repeated(`[a](${"()".repeat(400)}(`),
  "code without an end": enclosed("```\n", "a\n", ""),
  "words after a fence": enclosed("```", "a ", "`"),
  "spaces after a fence": enclosed("~~~", " ", "`"),
  "a long fence that is none": repeated(`${"~".repeat(3000)}\`\n`),
  "fences of many lengths": growing("`", "\n"),
  "tildes of many lengths": growing("~", "\n"),
  "strings without an end": code("\\\""),
  "strings without an end, in other quotes": code("\\'"),
  "templates without an end": code("\\`"),
  "comments without an end": code("/*"),
  "numbers": code("1.1e1_"),
  "a line of spaces": enclosed("a", " ", "b"),
};
for (const pattern of ["`", "`a", "``a", "```\n", "~~~ ", "*", "*a", "a*", "*a **a *a ", "*a _b ", "**a *b ", "***a", "*a*", "_", "_a", "a_", "~~", "~~a", "_a*b~~c**d__e", "[", "]", "[a", "[]", "[\\[", "![", "](", "[a](", "[a](<b", "[a](b \"", "[a]((((",
  "<", "</", "<!--", "<a b=\"", "<http:", "<http://", "&", "&amp", "&#", "\\", "\\`", "\\[", "http://", "https://a.", "https://a ", "|", "a|b\n", "a|b\n|-|-|\n", "\\|", ">", "> ", "> a\n", "> a\nb\n", ">>>>>>>> a\n", "- ", "- a\n", "- a\n\n\n", "- a\n* b\n", "+ - * ", "- - - x\n", "- > ", "- # ", "- ```\n", "1. a\n", "# ", "#",
  "a\n---\n", "```\na\n```\n", " ", "\t", "\t\n", "\n", "\r", "\r\n", "a\r\n", "- a\r\n", "a\n\n", "\u00a0", "\u200b", "\u200d", "\u2028", "a\u200b*\u200c_\ufeff", "\u0301", "\ud83d", "\0"]) TEXTS[JSON.stringify(pattern)] = repeated(pattern);

const SIZE = 10_000;
// Linear time with a margin, and a duration below which only the machine makes a difference.
const [GROWTH, MAX_GROWTH, MIN_MS] = [8, 16, 25];
// Another program may take the processor in one of the attempts.
const ATTEMPTS = 3;

/** Whether `run` takes linear time for texts of the two lengths `size` and `GROWTH * size`. */
async function isLinear(size, textOf, run) {
  const time = async (text) => {
    const started = performance.now();
    await run(text);
    return performance.now() - started;
  };
  const [short, long] = [textOf(size), textOf(size * GROWTH)];
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const limit = MAX_GROWTH * Math.max(MIN_MS, await time(short));
    const taken = await time(long);
    if (taken <= limit) return true;
    // Not by chance.
    if (taken > 4 * limit) return false;
  }
  return false;
}

test("the time of rendering grows linearly with any text", async () => {
  assert.ok(Object.keys(TEXTS).length > 100);
  show(TEXTS["links in links"](SIZE));
  for (const [name, textOf] of Object.entries(TEXTS)) assert.ok(await isLinear(SIZE, textOf, (text) => show(text)), name);
});

test("a small text does not become many elements", () => {
  for (const [name, text] of Object.entries(TEXTS)) {
    const long = text(SIZE);
    // An item of one line has a node for the item, its text, and its paragraph; code has a heading and a button.
    const count = builtBy(() => show(long));
    assert.ok(count < 4 * long.length, `${name}: ${count} nodes for ${long.length} characters`);
  }
});

// What models often write.
const ORDINARY = {
  paragraphs: "Some *text* with `code` and a [link](https://a.example).\nIt goes on.\n\n",
  headings: "## A heading\n\nA paragraph.\n\n---\n\n",
  "a list": "- an item with **bold** text\n",
  "a loose list": "1. an item\n\n",
  "lists in a list": "- an item\n  - with a `nested` one\n    - and more\n",
  "a table": "| a | `b` | **c** |\n",
  quotations: "> a *b*\n>\n> - c\n\n",
  "a quotation": "> a *b*\n>\n> - c\n",
  code: "```js\nlet a = \"b\";\n```\n\nThis was *code*.\n",
};

test("a text that grows is not built again with each update", () => {
  for (const [name, pattern] of Object.entries(ORDINARY)) {
    const text = (name === "a table" ? "| a | b | c |\n|---|:-:|--:|\n" : "") + repeated(pattern)(20_000);
    const [once, streamed] = [builtBy(() => show(text)), builtBy(() => stream(text, () => 100))];
    assert.ok(streamed < 8 * once, `${name}: ${streamed} nodes in 200 updates, ${once} at once`);
  }
});

test("a long paragraph is shown as it is while it grows, and as Markdown when it is complete", () => {
  for (const [text, tag] of [[repeated("*a* ")(40_000), "em"], [`- a\n- ${repeated("`a` ")(40_000)}`, "code"], [`\`${" a".repeat(80_000)}\``, "code"]]) {
    const root = show(text, undefined, true);
    assert.equal(root.all(tag).length, 0);
    assert.equal(show(text, root).markup, show(text).markup);
    assert.ok(root.all(tag).length > 0);
    // A further block completes the paragraph.
    assert.ok(show(`${text}\n\nb\n\nc\n`, undefined, true).all(tag).length > 0);
  }
});

test("a text becomes the same elements in any parts", () => {
  const docs = new URL("../../docs/", import.meta.url);
  const texts = readdirSync(docs).filter((name) => name.endsWith(".md")).map((name) => readFileSync(new URL(name, docs), "utf8").slice(0, 20_000));
  texts.push(texts.join("\n\n").replaceAll("\n", "\r\n").slice(0, 50_000), ...Object.values(ORDINARY).map((pattern) => pattern.repeat(4)), ...Object.values(TEXTS).map((text) => text(200)));
  texts.push("- a\n*\n\nb", "- a\n**b**", "a\n|b|c|\n|-|-|\n|d|e|", "- a\n\n- b\n\n\nc", "> a\n\n> b\nc", "```\na\n``` b\n```\nc", "a\n# ", "1. a\n2. b\n\n   c\n3. d", "***\n* * *\n* a", "a\r\n\r\nb\r\n- c\r");
  // A generator of its own, so that each run tests the same.
  let state = 1;
  const size = () => 1 + ((state = (state * 1_103_515_245 + 12_345) % 2 ** 31) % 60);
  for (const text of texts) assert.equal(stream(text, size).markup, show(text).markup, text.slice(0, 200));
});

test("another text gets elements of its own", () => {
  const root = show(repeated("`a` ")(1000));
  const before = root.all("p")[0];
  show(repeated("*a* ")(1000), root);
  assert.notEqual(root.all("p")[0], before);
  assert.equal(root.markup, show(repeated("*a* ")(1000)).markup);
});

test("the colors of code with unclosed strings are those of what follows the quote", () => {
  const describe = (nodes) => [nodes].flat().filter(Boolean).map((node) => (typeof node === "string" ? node : [node.props.class, node.props.children]));
  assert.deepEqual(describe(colored("a = \"b \\\" 1 'c'\nd = \"e\"", "js")), ["a = \"b \\\" ", ["number", "1"], " ", ["string", "'c'"], "\nd = ", ["string", "\"e\""]]);
  assert.deepEqual(describe(colored("`a 1", "js")), [["string", "`a 1"]]);
  assert.deepEqual(describe(colored("x = \"\"\"a\n1", "python")), ["x = ", ["string", "\"\"\"a\n1"]]);
  assert.deepEqual(describe(colored("echo 'a\nb' \"c\\\"d\" # e", "sh")), ["echo ", ["string", "'a\nb'"], " ", ["string", "\"c\\\"d\""], " ", ["comment", "# e"]]);
  assert.deepEqual(describe(colored("don't 1", "json")), ["don't ", ["number", "1"]]);
});

test("events are the same in any pieces, and the time of a long one is linear", async () => {
  const read = async (text, size) => {
    const bytes = new TextEncoder().encode(text);
    let at = 0;
    const found = [];
    const pull = (controller) => (at < bytes.length ? controller.enqueue(bytes.slice(at, (at += size))) : controller.close());
    for await (const event of events(new ReadableStream({ pull }))) found.push(event);
    return found;
  };
  const text = ": comment\n\ndata: a\n\nevent: b\ndata: c\ndata: é\n\n\n\ndata: not complete";
  for (let size = 1; size < 30; size++) assert.deepEqual(await read(text, size), [{ name: "message", data: "a" }, { name: "b", data: "c\né" }]);
  assert.ok(await isLinear(500_000, (length) => `data: ${"a".repeat(length)}\n\n`, (long) => read(long, 1000)), "a long event");
});

test("tool calls are those of the stream in its order, with any indexes", async (context) => {
  const part = (index, name, text) => ({ choices: [{ delta: { tool_calls: [{ index, id: name && `call_${name}`, function: { name, arguments: text } }] } }] });
  const chunks = [part(1_000_000, "a", "{"), part(3, "b", ""), part(1_000_000, undefined, "}"), part(3, undefined, "[]")];
  const body = [...chunks.map((chunk) => JSON.stringify(chunk)), "[DONE]"].map((data) => `data: ${data}\n\n`).join("");
  context.mock.method(globalThis, "fetch", async () => new Response(body));
  const { tool_calls: calls } = await streamReply({}, undefined, () => {});
  assert.deepEqual(calls, [["a", "{}"], ["b", "[]"]].map(([name, text]) => ({ id: `call_${name}`, type: "function", function: { name, arguments: text } })));
});
