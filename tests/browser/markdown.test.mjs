// Markdown: what it renders, what it leaves as text, and that its time is linear.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setUp, openPage } from "./harness.mjs";

let page, problems;
setUp(async ({ server, browser }) => {
  ({ page, problems } = await openPage(browser, server.url));
  await page.goto(server.url);
});

/** Renders a text on the page, which has its content security policy. Returns the elements as HTML, without attributes of style. */
const render = (text) => page.evaluate(async (text) => {
  const [{ Markdown }, { h, render }] = await Promise.all([import("/assets/js/markdown.js"), import("/assets/js/html.js")]);
  const root = document.createElement("div");
  document.body.append(root);
  render(h(Markdown, { text }), root);
  // Lets handlers of injected elements run.
  await new Promise((resolve) => setTimeout(resolve, 0));
  root.querySelectorAll(".code-block > button, .code-block > span").forEach((element) => element.remove());
  root.querySelectorAll("*").forEach((element) => ["class", "tabindex", "aria-label", "role", "rel", "target"].forEach((name) => element.removeAttribute(name)));
  const markup = root.firstChild.innerHTML;
  root.remove();
  return markup;
}, text);

const RENDERED = [
  ["a *b* **c** ***d*** ~~e~~ `f`", "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> <code>f</code></p>"],
  ["**a *b* c** and __d__ and _e_", "<p><strong>a <em>b</em> c</strong> and <strong>d</strong> and <em>e</em></p>"],
  ["snake_case_name, 2 * 3 * 4, a*b", "<p>snake_case_name, 2 * 3 * 4, a*b</p>"],
  ["**open and `open", "<p>**open and `open</p>"],
  ["`` a ` b ``", "<p><code>a ` b</code></p>"],
  ["\\*a\\* \\[b\\]", "<p>*a* [b]</p>"],
  ["# One\n## Two ##\ntext\n\nmore", "<h3>One</h3><h4>Two</h4><p>text</p><p>more</p>"],
  ["a\n---\nb", "<p>a</p><hr><p>b</p>"],
  ["- a\n- b\n  - c\n    - d\n- e", "<ul><li><span>a</span></li><li><span>b</span><ul><li><span>c</span><ul><li><span>d</span></li></ul></li></ul></li><li><span>e</span></li></ul>"],
  ["3. a\n4. b\n\n   more\n5. c", '<ol start="3"><li><p>a</p></li><li><p>b</p><p>more</p></li><li><p>c</p></li></ol>'],
  ["1. a\n   ```\n   code\n   ```\n2. b", '<ol start="1"><li><span>a</span><div><pre><code>code</code></pre></div></li><li><span>b</span></li></ol>'],
  ["- [ ] a\n- [x] b", "<ul><li><span>☐ a</span></li><li><span>☑ b</span></li></ul>"],
  ["Released in\n1999. It was", "<p>Released in\n1999. It was</p>"],
  ["```text\nlet a = `<b>`;\n\n  # no heading\n```\nafter", "<div><pre><code>let a = `&lt;b&gt;`;\n\n  # no heading</code></pre></div><p>after</p>"],
  ["````\n```\n````", "<div><pre><code>```</code></pre></div>"],
  ["```python\nstill streamed", "<div><pre><code>still streamed</code></pre></div>"],
  ["```python\nx = \"a # b\"  # <b>\n```", "<div><pre><code>x = <span>\"a # b\"</span>  <span># &lt;b&gt;</span></code></pre></div>"],
  ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  ["|a|b|\n|---|--:|\n|1|`x`|\n|2|", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>x</code></td></tr><tr><td>2</td><td></td></tr></tbody></table></div>"],
  ["[a *b*](https://a.example/x_(y) \"title\")", '<p><a href="https://a.example/x_(y)">a <em>b</em></a></p>'],
  ["see https://a.example/b_c_d. <https://b.example> <mailto:a@b.example>", '<p>see <a href="https://a.example/b_c_d">https://a.example/b_c_d</a>. <a href="https://b.example/">https://b.example</a> <a href="mailto:a@b.example">mailto:a@b.example</a></p>'],
  ["![a cat](https://a.example/cat.png)", '<p><a href="https://a.example/cat.png">a cat</a></p>'],
];

test("Markdown becomes elements", async () => {
  for (const [text, markup] of RENDERED) assert.equal(await render(text), markup, text);
});

test("raw HTML and addresses with other schemes stay text", async () => {
  const run = "window.hit=1";
  const texts = [
    `<img src=x onerror=${run}>`, `<script>${run}</script>`, `a <b onclick=${run}>b</b>`, `<a href="javascript:${run}">a</a>`, `<!-- a -->`, `&lt;b&gt;`,
    `[a](javascript:${run})`, `[a](JaVaScRiPt:${run})`, `[a](java\tscript:${run})`, `[a](<javascript:${run}>)`, `![a](javascript:${run})`, `<javascript:${run}>`, `[a](data:text/html,<script>${run}</script>)`,
    `[a](vbscript:x)`, `[a](//evil.example)`, `[a](/relative)`, `[a](#/keys)`, `[a](file:///etc/passwd)`, `[a](blob:x)`, `[a](\u0001javascript:${run})`, `[a](&#106;avascript:${run})`,
  ];
  for (const text of [...texts, ...texts.map((text) => `# ${text}`), ...texts.map((text) => `| a |\n|---|\n| ${text} |`), ...texts.map((text) => `- ${text}\n  > ${text}`)]) {
    const markup = await render(text);
    assert.doesNotMatch(markup, /<(a|img|script|b|iframe)\b/, text);
  }
  assert.equal(await render(texts[0]), `<p>&lt;img src=x onerror=${run}&gt;</p>`);
  assert.match(await render(`[a](https://a.example/?"onmouseover=${run})`), /^<p><a href="https:\/\/a\.example\/\?%22onmouseover=window\.hit=1">a<\/a><\/p>$/);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(problems, []);
});

test("links open in another tab that knows nothing of this one", async () => {
  const attributes = await page.evaluate(async () => {
    const [{ Markdown }, { h, render }] = await Promise.all([import("/assets/js/markdown.js"), import("/assets/js/html.js")]);
    const root = document.createElement("div");
    render(h(Markdown, { text: "[a](https://a.example)" }), root);
    return [root.querySelector("a").target, root.querySelector("a").rel];
  });
  assert.deepEqual(attributes, ["_blank", "noopener noreferrer"]);
});

test("hostile texts take linear time", async () => {
  const patterns = ["*a ", "**a ", "***", "_a_", "`", "``a", "[", "[a](", "![a](b", "<http:", "https://a.", "https://" + ".".repeat(100), "> ", "- ", "  - a\n", "> a\nb\n", "|", "a|b\n|-|-|\n", "```\n", "~~~ ", "# # #", "\\", "- - - x\n", "1. ", "```js\n\"", "```python\n\"\"\"", "```sh\n' ", "[a](" + " ".repeat(900), " ".repeat(500) + "|\n"];
  const texts = patterns.map((pattern) => pattern.repeat(Math.floor(150_000 / pattern.length)));
  texts.push("~".repeat(3000) + "`\n", "~~~" + "a".repeat(100_000) + "`", "|".repeat(2000) + "\n" + "|-".repeat(2000) + "\n" + "|\n".repeat(2000));
  for (const text of texts) {
    const milliseconds = await page.evaluate(async (text) => {
      const [{ Markdown }, { h, render }] = await Promise.all([import("/assets/js/markdown.js"), import("/assets/js/html.js")]);
      const started = performance.now();
      render(h(Markdown, { text }), document.createElement("div"));
      return performance.now() - started;
    }, text);
    assert.ok(milliseconds < 5_000, `${JSON.stringify(text.slice(0, 20))}: ${milliseconds.toFixed(0)} ms`);
  }
});
