// Cross-site scripting: text in names, labels, messages and file names stays text on every page that shows it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { goTo, signIn, setUp, openPage, TINY_MODEL } from "./harness.mjs";

const RUN = "window.hit=(window.hit||0)+1";
const HEADS = ["", "\">", "'>", "</title>", "</textarea>", "</style>", "-->", "]]>", "${", "{{"];
const BODIES = [
  `<script>${RUN}</script>`, `<img src=x onerror=${RUN}>`, `<svg onload=${RUN}>`, `<body onpageshow=${RUN}>`, `<iframe src="javascript:parent.${RUN}"></iframe>`, `<details open ontoggle=${RUN}>`,
  `<input autofocus onfocus=${RUN}>`, `<video><source onerror=${RUN}></video>`, `<a href="javascript:${RUN}">x</a>`, `<math><mtext></mtext><mglyph><svg><style><img src=x onerror=${RUN}></style></svg></mglyph></math>`,
  `<object data="javascript:${RUN}"></object>`, `<form action="javascript:${RUN}"><button autofocus>x</button></form>`, `<marquee onstart=${RUN}>`, `<style>@import "data:text/css,*{color:red}"</style>`, `<link rel=stylesheet href="data:text/css,*{color:red}">`,
  `<base href="https://evil.example/">`, `<meta http-equiv=refresh content="0;url=javascript:${RUN}">`, `\u2028${RUN}//`, `javascript:${RUN}`, `constructor.constructor('${RUN}')()`,
];
const PAYLOADS = HEADS.flatMap((head) => BODIES.map((body) => head + body));
// Without line separators, which headers, file names and message names do not allow.
const singleLine = (text) => text.replaceAll("\u2028", " ");

let server, browser;
setUp((found) => ({ server, browser } = found));

/** Clicks “Show more” until every row is shown. */
async function showAll(page) {
  await page.locator("tbody tr").first().waitFor();
  for (;;) {
    const more = page.getByRole("button", { name: "Show more" });
    if (!(await more.count())) return;
    const rows = await page.locator("tbody tr").count();
    await more.first().click();
    await page.waitForFunction((rows) => document.querySelectorAll("tbody tr").length > rows, rows);
  }
}

test("200 payloads in names, labels, messages and file names do not run", async () => {
  assert.equal(PAYLOADS.length, 200);
  const { api } = server;
  const { project_id: project } = await api("GET", "/me");
  const line = JSON.stringify({ messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] });
  const ids = [];
  const createAll = async (payload) => {
    const metadata = { [payload]: payload };
    const file = new FormData();
    file.append("purpose", "fine-tune");
    file.append("file", new Blob([`${line}\n`.repeat(10)]), singleLine(payload).slice(0, 200));
    const [created, key, agent, conversation, uploaded] = await Promise.all([
      api("POST", "/projects", { name: payload, environment: payload.slice(0, 60), metadata }),
      api("POST", "/api-keys", { name: payload, project_id: project }),
      api("POST", "/agents", { name: payload, instructions: payload, tools: [{ type: "function", function: { name: "t", description: payload } }], metadata }),
      api("POST", "/conversations", { messages: [{ role: "user", content: payload }, { role: "assistant", content: [{ type: "text", text: payload }] }], metadata }),
      api("POST", "/files", file),
    ]);
    await api("PUT", `/api-keys/${key.id}`, { reason: payload });
    const job = await api("POST", "/fine_tuning/jobs", { model: TINY_MODEL, training_file: uploaded.id, name: payload, suffix: singleLine(payload).slice(0, 64), metadata, hyperparameters: { n_epochs: 1, batch_size: 10 } });
    ids.push({ project: created.id, key: key.id, agent: agent.id, conversation: conversation.id, job: job.id });
  };
  // Several at a time, because each request waits for the disk.
  for (let at = 0; at < PAYLOADS.length; at += 8) await Promise.all(PAYLOADS.slice(at, at + 8).map(createAll));
  const messages = PAYLOADS.flatMap((content) => [{ role: "user", name: singleLine(content).slice(0, 60), content }, { role: "assistant", content: null, refusal: content }]);
  const { id: longConversation } = await api("POST", "/conversations", { messages });

  const { context, page, problems } = await openPage(browser, server.url);
  await context.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => (window.hit = `${window.hit ?? ""} refused ${event.blockedURI} ${event.sourceFile}`)));
  await signIn(page, server.url, server.key);
  const assertNothingRan = async (where) => {
    assert.equal(await page.evaluate(() => window.hit), undefined, where);
    assert.deepEqual(problems, [], where);
    assert.equal(page.url().startsWith(server.url), true, where);
    const injected = await page.locator("main").locator("script, iframe, object, embed, base, meta, link, style, video, marquee, math, svg:not(.icon):not(.plot)").count();
    assert.equal(injected, 0, where);
  };
  for (const [name, heading] of [["keys", "API keys"], ["conversations", "Conversations"], ["agents", "Agents"], ["projects", "Projects"], ["audit", "Audit log"]]) {
    await goTo(page, name, heading);
    await showAll(page);
    await assertNothingRan(name);
  }
  await goTo(page, "tuning", "Fine-tuning");
  await page.locator("table").nth(1).waitFor();
  await showAll(page);
  await assertNothingRan("tuning");
  await goTo(page, "models", "Models");
  await page.getByRole("region", { name: "Trained models" }).locator("tbody tr").first().waitFor();
  await assertNothingRan("models");
  await goTo(page, `conversations/${longConversation}`, "Conversation");
  await page.locator(".message").nth(399).waitFor();
  assert.ok((await page.locator(".message .content").first().textContent()) === PAYLOADS[0], "the payload is shown unchanged");
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByLabel("Content of message 1", { exact: true }).waitFor();
  await assertNothingRan("a long conversation");
  // Each resource on its own page, and in the selects.
  for (const [at, { agent, conversation, job, project }] of ids.entries()) {
    for (const [name, ready] of [[`agents/${agent}`, "pre.json"], [`conversations/${conversation}`, ".message"], [`tuning/${job}`, "dl"]]) {
      await page.evaluate((name) => (location.hash = `#/${name}`), name);
      await page.locator(ready).first().waitFor();
      await page.waitForFunction((id) => document.querySelector("main header").textContent.includes(id), name.split("/")[1]);
    }
    if (at % 20 === 0) {
      await page.getByLabel("Project", { exact: true }).selectOption(project);
      await page.getByLabel("Project", { exact: true }).selectOption((await api("GET", "/me")).project_id);
    }
    await assertNothingRan(`the pages of payload ${at}: ${PAYLOADS[at]}`);
  }
  await goTo(page, `playground/chat/conversation/${longConversation}`, "Playground");
  await page.locator(".message").first().waitFor();
  await page.getByRole("button", { name: "View code" }).click();
  await page.getByRole("dialog").waitFor();
  await assertNothingRan("the playground");
  await context.close();
});

test("payloads in the address, in inputs and in error messages do not run", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  await page.goto(server.url);
  for (const payload of PAYLOADS.slice(0, 40)) {
    await page.getByLabel("API key").fill(singleLine(payload));
    // The alert of the previous attempt disappears when the next one starts.
    await Promise.all([page.waitForResponse((response) => response.url().endsWith("/v1/me")), page.keyboard.press("Enter")]);
    await page.getByRole("alert").waitFor();
  }
  await signIn(page, server.url, server.key);
  for (const payload of PAYLOADS) {
    await page.evaluate((payload) => (location.hash = `#/${payload}`), payload);
    await page.evaluate((payload) => (location.hash = `#/conversations/${encodeURIComponent(payload)}`), payload);
    await page.waitForFunction((payload) => document.querySelector("main header code")?.textContent === payload, payload);
  }
  await page.evaluate(() => (location.hash = "#/%zz"));
  await page.getByText("Page not found").waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(problems, []);
  await context.close();
});
