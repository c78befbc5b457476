// T22: what strangers put into names, labels, messages and file names stays text, on every page that shows it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CHAT, go, signIn, stage, visit } from "./harness.mjs";

const RUN = "window.hit=(window.hit||0)+1";
const HEADS = ["", "\">", "'>", "</title>", "</textarea>", "</style>", "-->", "]]>", "${", "{{"];
const BODIES = [
  `<script>${RUN}</script>`, `<img src=x onerror=${RUN}>`, `<svg onload=${RUN}>`, `<body onpageshow=${RUN}>`, `<iframe src="javascript:parent.${RUN}"></iframe>`, `<details open ontoggle=${RUN}>`,
  `<input autofocus onfocus=${RUN}>`, `<video><source onerror=${RUN}></video>`, `<a href="javascript:${RUN}">x</a>`, `<math><mtext></mtext><mglyph><svg><style><img src=x onerror=${RUN}></style></svg></mglyph></math>`,
  `<object data="javascript:${RUN}"></object>`, `<form action="javascript:${RUN}"><button autofocus>x</button></form>`, `<marquee onstart=${RUN}>`, `<style>@import "data:text/css,*{color:red}"</style>`, `<link rel=stylesheet href="data:text/css,*{color:red}">`,
  `<base href="https://evil.example/">`, `<meta http-equiv=refresh content="0;url=javascript:${RUN}">`, `\u2028${RUN}//`, `javascript:${RUN}`, `constructor.constructor('${RUN}')()`,
];
const PAYLOADS = HEADS.flatMap((head) => BODIES.map((body) => head + body));
// In a JSON path, in a header, and where a name becomes a file's.
const plain = (text) => text.replaceAll("\u2028", " ");

let server, browser;
stage((found) => ({ server, browser } = found));

/** Every row of a list is shown. */
async function all(page) {
  await page.locator("tbody tr").first().waitFor();
  for (;;) {
    const more = page.getByRole("button", { name: "Show more" });
    if (!(await more.count())) return;
    const rows = await page.locator("tbody tr").count();
    await more.first().click();
    await page.waitForFunction((rows) => document.querySelectorAll("tbody tr").length > rows, rows);
  }
}

test("200 payloads in every name, label, message and file name run nowhere", async () => {
  assert.equal(PAYLOADS.length, 200);
  const { api } = server;
  const { project_id: project } = await api("GET", "/me");
  const line = JSON.stringify({ messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] });
  const ids = [];
  // In parts, so that not all wait for the disk one by one.
  const put = async (payload) => {
    const metadata = { [payload]: payload };
    const file = new FormData();
    file.append("purpose", "fine-tune");
    file.append("file", new Blob([`${line}\n`.repeat(10)]), plain(payload).slice(0, 200));
    const [made, key, agent, talk, uploaded] = await Promise.all([
      api("POST", "/projects", { name: payload, environment: payload.slice(0, 60), metadata }),
      api("POST", "/api-keys", { name: payload, project_id: project }),
      api("POST", "/agents", { name: payload, instructions: payload, tools: [{ type: "function", function: { name: "t", description: payload } }], metadata }),
      api("POST", "/conversations", { messages: [{ role: "user", content: payload }, { role: "assistant", content: [{ type: "text", text: payload }] }], metadata }),
      api("POST", "/files", file),
    ]);
    await api("PUT", `/api-keys/${key.id}`, { reason: payload });
    const job = await api("POST", "/fine_tuning/jobs", { model: CHAT, training_file: uploaded.id, name: payload, metadata });
    ids.push({ project: made.id, key: key.id, agent: agent.id, talk: talk.id, job: job.id });
  };
  for (let at = 0; at < PAYLOADS.length; at += 8) await Promise.all(PAYLOADS.slice(at, at + 8).map(put));
  const messages = PAYLOADS.flatMap((content) => [{ role: "user", name: plain(content).slice(0, 60), content }, { role: "assistant", content: null, refusal: content }]);
  const { id: long } = await api("POST", "/conversations", { messages });

  const { context, page, wrong } = await visit(browser, server.url);
  await context.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => (window.hit = `${window.hit ?? ""} refused ${event.blockedURI} ${event.sourceFile}`)));
  await signIn(page, server.url, server.key);
  const quiet = async (where) => {
    assert.equal(await page.evaluate(() => window.hit), undefined, where);
    assert.deepEqual(wrong, [], where);
    assert.equal(page.url().startsWith(server.url), true, where);
    const strange = await page.locator("main").locator("script, iframe, object, embed, base, meta, link, style, video, marquee, math, svg").count();
    assert.equal(strange, 0, where);
  };
  for (const [name, heading] of [["keys", "API keys"], ["conversations", "Conversations"], ["agents", "Agents"], ["projects", "Projects"], ["audit", "Audit log"]]) {
    await go(page, name, heading);
    await all(page);
    await quiet(name);
  }
  await go(page, "tuning", "Fine-tuning");
  await page.locator("tbody tr").first().waitFor();
  for (let more = 0; more < 18; more++) await page.getByRole("button", { name: "Show more" }).first().click();
  await quiet("tuning");
  await go(page, `conversations/${long}`, "Conversation");
  await page.locator(".said").nth(399).waitFor();
  assert.ok((await page.locator(".said .words").first().textContent()) === PAYLOADS[0], "it is shown as it is");
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByLabel("Content of message 1", { exact: true }).waitFor();
  await quiet("a long conversation");
  // Each on the page of its own, and in the pickers of the playground.
  for (const [at, { agent, talk, job, project }] of ids.entries()) {
    for (const [name, ready] of [[`agents/${agent}`, "pre.json"], [`conversations/${talk}`, ".said"], [`tuning/${job}`, "dl"]]) {
      await page.evaluate((name) => (location.hash = `#/${name}`), name);
      await page.locator(ready).first().waitFor();
      await page.waitForFunction((id) => document.querySelector("main header").textContent.includes(id), name.split("/")[1]);
    }
    if (at % 20 === 0) {
      await page.getByLabel("Project", { exact: true }).selectOption(project);
      await page.getByLabel("Project", { exact: true }).selectOption((await api("GET", "/me")).project_id);
    }
    await quiet(`the pages of payload ${at}: ${PAYLOADS[at]}`);
  }
  await go(page, `playground/chat/conversation/${long}`, "Playground");
  await page.locator(".said").first().waitFor();
  await page.getByRole("button", { name: "View code" }).click();
  await quiet("the playground");
  await context.close();
});

test("payloads in the address, in what is typed and in what is refused run nowhere", async () => {
  const { context, page, wrong } = await visit(browser, server.url);
  await page.goto(server.url);
  for (const payload of PAYLOADS.slice(0, 40)) {
    await page.getByLabel("API key").fill(plain(payload));
    await page.keyboard.press("Enter");
    await page.getByRole("alert").waitFor();
  }
  await signIn(page, server.url, server.key);
  for (const payload of PAYLOADS) {
    await page.evaluate((payload) => (location.hash = `#/${payload}`), payload);
    await page.evaluate((payload) => (location.hash = `#/conversations/${encodeURIComponent(payload)}`), payload);
    await page.getByRole("heading", { level: 1 }).waitFor();
  }
  await page.evaluate(() => (location.hash = "#/%zz"));
  await page.getByText("Page not found").waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(wrong, []);
  await context.close();
});
