// Models, conversations, agents and fine-tuning.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { CHAT_MODEL, finders, goTo, IMAGE_MODEL, signIn, setUp, EMBEDDING_MODEL, openPage } from "./harness.mjs";

let server, browser, page, problems;
setUp(async (started) => {
  ({ server, browser } = started);
  ({ page, problems } = await openPage(browser, server.url));
  await signIn(page, server.url, server.key);
});

const { dialog, row, click } = finders(() => page);

test("models are listed, loaded and unloaded, and the catalog shows pull commands", async () => {
  await goTo(page, "models", "Models");
  await row(CHAT_MODEL).getByText("Chat", { exact: true }).waitFor();
  await row(CHAT_MODEL).getByText("8,192-token context").waitFor();
  await row(EMBEDDING_MODEL).getByText("384 dimensions").waitFor();
  await row(IMAGE_MODEL).getByText("64x64 pixels").waitFor();
  await row(EMBEDDING_MODEL).getByRole("button", { name: /^Load/ }).click();
  await row(EMBEDDING_MODEL).getByText("Loaded", { exact: true }).waitFor();
  assert.equal((await server.api("GET", `/models/${EMBEDDING_MODEL}`)).loaded, true);
  await row(EMBEDDING_MODEL).getByRole("button", { name: /^Unload/ }).click();
  await row(EMBEDDING_MODEL).getByText("Not loaded").waitFor();
  const { data: catalog } = await server.api("GET", "/catalog");
  for (const model of catalog.filter((one) => !one.installed)) await page.getByText(model.command).waitFor();
  assert.deepEqual(problems, []);
});

test("conversations are searched, viewed, edited and exported", async () => {
  await goTo(page, "conversations", "Conversations");
  await page.getByText("No conversations yet").waitFor();
  for (let at = 0; at < 25; at++) await server.api("POST", "/conversations", { messages: [{ role: "user", content: `Conversation number ${at}` }] });
  const { id } = await server.api("POST", "/conversations", { messages: [{ role: "user", content: "Where is the Dogger Bank?" }, { role: "assistant", content: "In the North Sea." }] });
  await page.reload();
  await row("Dogger Bank").waitFor();
  assert.equal(await page.getByText("Conversation number 0").count(), 0);
  await click("Show more");
  await page.getByText("Conversation number 0").waitFor();
  await page.getByRole("searchbox").fill("north sea");
  await page.getByRole("searchbox").press("Enter");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await page.getByRole("searchbox").fill("atlantis");
  await click("Search");
  await page.getByText("No matching conversations").waitFor();
  await page.getByRole("searchbox").fill("dogger");
  await click("Search");
  await page.getByRole("link", { name: "Where is the Dogger Bank?" }).click();
  await page.getByText("In the North Sea.").waitFor();

  await click("Edit");
  await page.getByLabel("Content of message 2").fill("In the North Sea, off England.");
  await click("Add message");
  await page.getByLabel("Content of message 3").fill("How deep is it?");
  // A concurrent change: nothing is overwritten, and the conflict is reported.
  await server.api("POST", `/conversations/${id}/messages`, { messages: [{ role: "user", content: "and?" }] });
  await click("Save changes");
  assert.match(await page.getByRole("alert").textContent(), /version[^]*req_/i);
  await click("Cancel");
  await page.reload();
  await page.getByText("and?").waitFor();
  await click("Edit");
  await click("Delete message 3");
  await page.getByLabel("Content of message 2").fill("In the North Sea, off England.");
  await click("Save changes");
  await page.getByText("Version 3").waitFor();
  await click("Edit metadata");
  await dialog().getByLabel("Metadata").fill("{ not json");
  await click("Save", dialog());
  assert.match(await dialog().getByRole("alert").textContent(), /not valid JSON/);
  await dialog().getByLabel("Metadata").fill('{"sea": "north"}');
  await click("Save", dialog());
  await page.getByText('{"sea":"north"}').waitFor();
  const stored = await server.api("GET", `/conversations/${id}`);
  assert.deepEqual(stored.messages.map((message) => message.content), ["Where is the Dogger Bank?", "In the North Sea, off England."]);

  const [file] = await Promise.all([page.waitForEvent("download"), click("Export JSON")]);
  const exported = JSON.parse(await readFile(await file.path(), "utf8"));
  assert.deepEqual([exported.id, exported.messages, exported.metadata], [id, stored.messages, { sea: "north" }]);
  await click("Delete");
  await click("Delete", dialog());
  await page.getByRole("heading", { level: 1, name: "Conversations" }).waitFor();
  await page.getByText("Conversation number 24").waitFor();
  assert.equal(await page.getByText("Dogger Bank").count(), 0);
  assert.deepEqual(problems, []);
});

test("agents are created and edited, and every version is kept", async () => {
  await goTo(page, "agents", "Agents");
  await page.getByText("No agents yet").waitFor();
  await click("Create agent");
  await dialog().getByLabel("Name", { exact: true }).fill("Pilot");
  await dialog().getByLabel("Model").selectOption({ label: CHAT_MODEL });
  await dialog().getByLabel("Instructions").fill("Guide ships.");
  await dialog().getByLabel("Tools").fill('[{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]');
  await dialog().getByLabel("Truncation").selectOption({ label: "Drop the oldest messages" });
  await dialog().getByLabel("Max messages").fill("12");
  await click("Create", dialog());
  await page.getByRole("heading", { level: 1, name: "Pilot" }).waitFor();
  const id = await page.evaluate(() => location.hash.split("/").at(-1));
  const agent = await server.api("GET", `/agents/${id}`);
  assert.deepEqual([agent.model, agent.instructions, agent.memory, agent.tools[0].function.name], [CHAT_MODEL, "Guide ships.", { truncation: "auto", last_messages: 12 }, "tide"]);

  await click("Edit");
  await dialog().getByLabel("Instructions").fill("Guide ships and boats.");
  await dialog().getByLabel("Tools").fill("");
  await click("Save", dialog());
  await page.getByText("Guide ships and boats.").waitFor();
  await page.getByRole("cell", { name: "2 Current" }).waitFor();
  await page.getByRole("button", { name: "View Version 1" }).click();
  await dialog().getByText("Guide ships.").waitFor();
  await click("Restore this version");
  await page.getByRole("cell", { name: "3 Current" }).waitFor();
  const restored = await server.api("GET", `/agents/${id}`);
  assert.deepEqual([restored.version, restored.instructions, restored.tools, restored.memory], [3, "Guide ships.", agent.tools, agent.memory]);
  await click("Delete");
  await click("Delete", dialog());
  await page.getByText("No agents yet").waitFor();
  assert.deepEqual(problems, []);
});

test("files are uploaded, and jobs are started, watched and edited", async () => {
  await goTo(page, "tuning", "Fine-tuning");
  await page.getByText("No files yet").waitFor();
  const line = JSON.stringify({ messages: [{ role: "user", content: "Port?" }, { role: "assistant", content: "Red." }] });
  const upload = async (name, text) => {
    await click("Upload file");
    await dialog().getByLabel("File").setInputFiles({ name, mimeType: "application/jsonl", buffer: Buffer.from(text) });
    await click("Upload", dialog());
  };
  await upload("broken.jsonl", `${line}\nnot json\n`);
  assert.match(await dialog().getByRole("alert").textContent(), /line 2[^]*req_/i);
  await click("Cancel", dialog());
  await upload("lights.jsonl", `${line}\n`.repeat(12));
  await row("lights.jsonl").getByText("12", { exact: true }).waitFor();

  await click("Start job");
  await dialog().getByLabel("Name", { exact: true }).fill("lights");
  await dialog().getByLabel("Epochs").fill("2");
  await click("Start", dialog());
  await page.getByRole("heading", { level: 1, name: "lights" }).waitFor();
  await row("Created fine-tuning job").waitFor();
  // The server cannot train yet, and the job says so.
  await page.getByText("Failed", { exact: true }).waitFor();
  assert.match(await page.locator(".card .error").textContent(), /cannot train/);
  await click("Edit");
  await dialog().getByLabel("Name", { exact: true }).fill("harbour lights");
  await dialog().getByLabel("Metadata").fill('{"team": "pilots"}');
  await click("Save", dialog());
  await page.getByRole("heading", { level: 1, name: "harbour lights" }).waitFor();
  const id = await page.evaluate(() => location.hash.split("/").at(-1));
  const job = await server.api("GET", `/fine_tuning/jobs/${id}`);
  assert.deepEqual([job.name, job.metadata, job.hyperparameters.n_epochs], ["harbour lights", { team: "pilots" }, 2]);
  await goTo(page, "tuning", "Fine-tuning");
  await row("harbour lights").getByText("lights.jsonl").waitFor();
  await page.getByRole("button", { name: "Delete lights.jsonl" }).click();
  await click("Delete", dialog());
  await page.getByText("No files yet").waitFor();
  assert.deepEqual(problems, []);
});

test("the loss curve is drawn from events as they arrive", async () => {
  // The server cannot train yet, so the test mocks the responses of a running job.
  const id = `ftjob-${"0".repeat(32)}`;
  const events = [];
  const reply = (body) => ({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  await page.route(`**/fine_tuning/jobs/${id}`, (route) => route.fulfill(reply({ id, state: "running", model: CHAT_MODEL, training_file: "file-1", hyperparameters: {}, trained_tokens: null })));
  await page.route(`**/fine_tuning/jobs/${id}/events*`, (route) => route.fulfill(reply({ data: events, has_more: false })));
  const addStep = (at) => events.unshift({ id: `event-${at}`, level: "info", message: `Step ${at}`, created_at: new Date().toISOString(), data: { step: at, train_loss: 2 / at } });
  await goTo(page, `tuning/${id}`, "Job");
  await page.getByText("The loss curve appears when the job reports its first values.").waitFor();
  addStep(1);
  addStep(2);
  await page.locator("figure.chart path.line").waitFor();
  await row("Step 2").waitFor();
  addStep(3);
  await row("Step 3").waitFor();
  await page.unrouteAll();
  assert.deepEqual(problems, []);
});

test("an ID in the URL hash stays one segment of the API path", async () => {
  // What the hash contains, and the segment that is requested.
  const ids = [["..%2Fprojects%3Fx", "..%2Fprojects%3Fx"], ["%2E%2E", "-"], ["a%25b", "a%25b"]];
  const pages = [["conversations", "Conversation", "conversations"], ["agents", "Agents", "agents"], ["tuning", "Job", "fine_tuning/jobs"], ["playground/chat/conversation", "Playground", "conversations"]];
  for (const [name, heading, resource] of pages) {
    for (const [id, segment] of ids) {
      await goTo(page, "start", "Get started");
      const request = page.waitForRequest((one) => new URL(one.url()).pathname === `/v1/${resource}/${segment}`);
      await goTo(page, `${name}/${id}`, heading);
      await request;
      await page.getByRole("alert").waitFor();
    }
  }
  assert.deepEqual(problems, []);
});

test("an address that changes while the page is first drawn is followed", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  await signIn(page, server.url, server.key);
  await page.addInitScript(() => {
    const observer = new MutationObserver(() => {
      if (!document.querySelector("nav")) return;
      observer.disconnect();
      location.hash = "#/models";
    });
    observer.observe(document, { childList: true, subtree: true });
  });
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "Models" }).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});
