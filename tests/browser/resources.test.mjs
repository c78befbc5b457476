// Models, conversations, agents, fine-tuning.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { CHAT, finders, go, PICTURES, signIn, stage, VECTORS, visit } from "./harness.mjs";

let server, browser, page, wrong;
stage(async (found) => {
  ({ server, browser } = found);
  ({ page, wrong } = await visit(browser, server.url));
  await signIn(page, server.url, server.key);
});

const { dialog, row, press } = finders(() => page);

test("models are listed, loaded and unloaded, and the catalog says how to get more", async () => {
  await go(page, "models", "Models");
  await row(CHAT).getByText("Chat", { exact: true }).waitFor();
  await row(CHAT).getByText("8,192 tokens of context").waitFor();
  await row(VECTORS).getByText("384 dimensions").waitFor();
  await row(PICTURES).getByText("64x64 pixels").waitFor();
  await row(VECTORS).getByRole("button", { name: /^Load/ }).click();
  await row(VECTORS).getByText("Loaded", { exact: true }).waitFor();
  assert.equal((await server.api("GET", `/models/${VECTORS}`)).loaded, true);
  await row(VECTORS).getByRole("button", { name: /^Unload/ }).click();
  await row(VECTORS).getByText("Not loaded").waitFor();
  const { data: offers } = await server.api("GET", "/catalog");
  for (const offer of offers.filter((one) => !one.installed)) await page.getByText(offer.command).waitFor();
  assert.deepEqual(wrong, []);
});

test("conversations are found, read, edited and exported", async () => {
  await go(page, "conversations", "Conversations");
  await page.getByText("No conversations yet").waitFor();
  for (let at = 0; at < 25; at++) await server.api("POST", "/conversations", { messages: [{ role: "user", content: `Talk number ${at}` }] });
  const { id } = await server.api("POST", "/conversations", { messages: [{ role: "user", content: "Where is the Dogger Bank?" }, { role: "assistant", content: "In the North Sea." }] });
  await page.reload();
  await row("Dogger Bank").waitFor();
  assert.equal(await page.getByText("Talk number 0").count(), 0);
  await press("Show more");
  await page.getByText("Talk number 0").waitFor();
  await page.getByRole("searchbox").fill("north sea");
  await page.getByRole("searchbox").press("Enter");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await page.getByRole("searchbox").fill("atlantis");
  await press("Search");
  await page.getByText("No matching conversations").waitFor();
  await page.getByRole("searchbox").fill("dogger");
  await press("Search");
  await page.getByRole("link", { name: "Where is the Dogger Bank?" }).click();
  await page.getByText("In the North Sea.").waitFor();

  await press("Edit");
  await page.getByLabel("Content of message 2").fill("In the North Sea, off England.");
  await press("Add message");
  await page.getByLabel("Content of message 3").fill("How deep is it?");
  // Somebody writes in between: nothing is overwritten, and it is said.
  await server.api("POST", `/conversations/${id}/messages`, { messages: [{ role: "user", content: "and?" }] });
  await press("Save changes");
  assert.match(await page.getByRole("alert").textContent(), /version[^]*req_/i);
  await press("Cancel");
  await page.reload();
  await page.getByText("and?").waitFor();
  await press("Edit");
  await press("Delete message 3");
  await page.getByLabel("Content of message 2").fill("In the North Sea, off England.");
  await press("Save changes");
  await page.getByText("Version 3").waitFor();
  await press("Edit metadata");
  await dialog().getByLabel("Metadata").fill("{ not json");
  await press("Save", dialog());
  assert.match(await dialog().getByRole("alert").textContent(), /not valid JSON/);
  await dialog().getByLabel("Metadata").fill('{"sea": "north"}');
  await press("Save", dialog());
  await page.getByText('{"sea":"north"}').waitFor();
  const stored = await server.api("GET", `/conversations/${id}`);
  assert.deepEqual(stored.messages.map((message) => message.content), ["Where is the Dogger Bank?", "In the North Sea, off England."]);

  const [file] = await Promise.all([page.waitForEvent("download"), press("Export JSON")]);
  const kept = JSON.parse(await readFile(await file.path(), "utf8"));
  assert.deepEqual([kept.id, kept.messages, kept.metadata], [id, stored.messages, { sea: "north" }]);
  await press("Delete");
  await press("Delete", dialog());
  await page.getByRole("heading", { level: 1, name: "Conversations" }).waitFor();
  await page.getByText("Talk number 24").waitFor();
  assert.equal(await page.getByText("Dogger Bank").count(), 0);
  assert.deepEqual(wrong, []);
});

test("agents are made and edited, and every version stays", async () => {
  await go(page, "agents", "Agents");
  await page.getByText("No agents yet").waitFor();
  await press("Create agent");
  await dialog().getByLabel("Name", { exact: true }).fill("Pilot");
  await dialog().getByLabel("Model").selectOption({ label: CHAT });
  await dialog().getByLabel("Instructions").fill("Guide ships.");
  await dialog().getByLabel("Tools").fill('[{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]');
  await dialog().getByLabel("Truncation").selectOption({ label: "Drop the oldest messages" });
  await dialog().getByLabel("Max messages").fill("12");
  await press("Create", dialog());
  await page.getByRole("heading", { level: 1, name: "Pilot" }).waitFor();
  const id = await page.evaluate(() => location.hash.split("/").at(-1));
  const agent = await server.api("GET", `/agents/${id}`);
  assert.deepEqual([agent.model, agent.instructions, agent.memory, agent.tools[0].function.name], [CHAT, "Guide ships.", { truncation: "auto", last_messages: 12 }, "tide"]);

  await press("Edit");
  await dialog().getByLabel("Instructions").fill("Guide ships and boats.");
  await dialog().getByLabel("Tools").fill("");
  await press("Save", dialog());
  await page.getByText("Guide ships and boats.").waitFor();
  await page.getByRole("cell", { name: "2 Current" }).waitFor();
  await page.getByRole("button", { name: "View Version 1" }).click();
  await dialog().getByText("Guide ships.").waitFor();
  await press("Restore this version");
  await page.getByRole("cell", { name: "3 Current" }).waitFor();
  const back = await server.api("GET", `/agents/${id}`);
  assert.deepEqual([back.version, back.instructions, back.tools, back.memory], [3, "Guide ships.", agent.tools, agent.memory]);
  await press("Delete");
  await press("Delete", dialog());
  await page.getByText("No agents yet").waitFor();
  assert.deepEqual(wrong, []);
});

test("files are uploaded, jobs started, watched and labelled", async () => {
  await go(page, "tuning", "Fine-tuning");
  await page.getByText("No files yet").waitFor();
  const line = JSON.stringify({ messages: [{ role: "user", content: "Port?" }, { role: "assistant", content: "Red." }] });
  const upload = async (name, text) => {
    await press("Upload file");
    await dialog().getByLabel("File").setInputFiles({ name, mimeType: "application/jsonl", buffer: Buffer.from(text) });
    await press("Upload", dialog());
  };
  await upload("broken.jsonl", `${line}\nnot json\n`);
  assert.match(await dialog().getByRole("alert").textContent(), /line 2[^]*req_/i);
  await press("Cancel", dialog());
  await upload("lights.jsonl", `${line}\n`.repeat(12));
  await row("lights.jsonl").getByText("12", { exact: true }).waitFor();

  await press("Start job");
  await dialog().getByLabel("Name", { exact: true }).fill("lights");
  await dialog().getByLabel("Epochs").fill("2");
  await press("Start", dialog());
  await page.getByRole("heading", { level: 1, name: "lights" }).waitFor();
  await row("Created fine-tuning job").waitFor();
  // What this server cannot do yet is said, not hidden.
  await page.getByText("Failed", { exact: true }).waitFor();
  assert.match(await page.locator(".card .wrong").textContent(), /cannot train/);
  await press("Edit");
  await dialog().getByLabel("Name", { exact: true }).fill("harbour lights");
  await dialog().getByLabel("Metadata").fill('{"team": "pilots"}');
  await press("Save", dialog());
  await page.getByRole("heading", { level: 1, name: "harbour lights" }).waitFor();
  const id = await page.evaluate(() => location.hash.split("/").at(-1));
  const job = await server.api("GET", `/fine_tuning/jobs/${id}`);
  assert.deepEqual([job.name, job.metadata, job.hyperparameters.n_epochs], ["harbour lights", { team: "pilots" }, 2]);
  await go(page, "tuning", "Fine-tuning");
  await row("harbour lights").getByText("lights.jsonl").waitFor();
  await page.getByRole("button", { name: "Delete lights.jsonl" }).click();
  await press("Delete", dialog());
  await page.getByText("No files yet").waitFor();
  assert.deepEqual(wrong, []);
});

test("the loss is drawn from the events that tell it, as they come", async () => {
  // No job of this server trains yet: what one would tell stands in for it.
  const id = `ftjob-${"0".repeat(32)}`;
  const events = [];
  const told = (body) => ({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  await page.route(`**/fine_tuning/jobs/${id}`, (route) => route.fulfill(told({ id, state: "running", model: CHAT, training_file: "file-1", hyperparameters: {}, trained_tokens: null })));
  await page.route(`**/fine_tuning/jobs/${id}/events*`, (route) => route.fulfill(told({ data: events, has_more: false })));
  const step = (at) => events.unshift({ id: `event-${at}`, level: "info", message: `Step ${at}`, created_at: new Date().toISOString(), data: { step: at, train_loss: 2 / at } });
  await go(page, `tuning/${id}`, "Job");
  await page.getByText("The loss curve appears when the job reports its first values.").waitFor();
  step(1);
  step(2);
  await page.locator("figure.chart canvas").waitFor();
  await row("Step 2").waitFor();
  step(3);
  await row("Step 3").waitFor();
  await page.unrouteAll();
  assert.deepEqual(wrong, []);
});
