// Models, conversations, agents and fine-tuning, with a tiny model that trains in seconds.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { CHAT_MODEL, finders, goTo, IMAGE_MODEL, signIn, setUp, EMBEDDING_MODEL, openPage, TINY_MODEL, unfold, waitForJob } from "./harness.mjs";

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

const trainingLine = (user, assistant) => `${JSON.stringify({ messages: [{ role: "user", content: user }, { role: "assistant", content: assistant }] })}\n`;
const jobId = () => page.evaluate(() => location.hash.split("/").at(-1));
const figure = (label) => page.locator(".stat").filter({ has: page.getByText(label, { exact: true }) }).locator("strong").textContent();

/** Uploads a training file with the API and returns its ID. */
async function uploadFile(name, text) {
  const file = new FormData();
  file.append("purpose", "fine-tune");
  file.append("file", new Blob([text]), name);
  return (await server.api("POST", "/files", file)).id;
}

/** Starts a job with the API and returns its ID. */
async function startJob(training_file, hyperparameters, more) {
  const method = { type: "supervised", supervised: { hyperparameters } };
  return (await server.api("POST", "/fine_tuning/jobs", { model: TINY_MODEL, training_file, method, ...more })).id;
}

test("files are uploaded, and a job is started, trains and is edited", async () => {
  await goTo(page, "tuning", "Fine-tuning");
  await page.getByText("No files yet").waitFor();
  const upload = async (name, text) => {
    await click("Upload file");
    await dialog().getByLabel("File").setInputFiles({ name, mimeType: "application/jsonl", buffer: Buffer.from(text) });
    await click("Upload", dialog());
  };
  const line = trainingLine("Port?", "Red.");
  await upload("broken.jsonl", `${line}not json\n`);
  assert.match(await dialog().getByRole("alert").textContent(), /line 2[^]*req_/i);
  await click("Cancel", dialog());
  await upload("lights.jsonl", line.repeat(12));
  await row("lights.jsonl").getByText("12", { exact: true }).waitFor();

  await click("Start job");
  await dialog().getByLabel("Name", { exact: true }).fill("lights");
  await dialog().getByRole("option", { name: TINY_MODEL }).waitFor({ state: "attached" });
  assert.deepEqual(await dialog().getByLabel("Model", { exact: true }).locator("option").allTextContents(), [CHAT_MODEL, TINY_MODEL], "only chat models");
  await dialog().getByLabel("Model", { exact: true }).selectOption(TINY_MODEL);
  await dialog().getByLabel("Validation file").selectOption({ index: 1 });
  await dialog().getByLabel("Model name suffix").fill("harbour");
  await dialog().getByLabel("Seed").fill("7");
  await dialog().getByText("Advanced").click();
  await dialog().getByLabel("Epochs").fill("2");
  await dialog().getByLabel("Target modules").fill("q_proj, v_proj");
  await dialog().getByLabel("Packing").selectOption({ label: "No" });
  await click("Start", dialog());
  await page.getByRole("heading", { level: 1, name: "lights" }).waitFor();
  await row("Created fine-tuning job").waitFor();
  await page.getByText("Succeeded", { exact: true }).waitFor();
  const id = await jobId();
  const job = await server.api("GET", `/fine_tuning/jobs/${id}`);
  const { n_epochs, target_modules, packing, lora_rank } = job.hyperparameters;
  assert.deepEqual([job.seed, job.suffix, n_epochs, target_modules, packing], [7, "harbour", 2, ["q_proj", "v_proj"], false]);
  assert.ok(Number.isInteger(lora_rank), "the server chose what was left empty");
  await page.getByText("q_proj, v_proj").waitFor();
  await page.getByText(`Step ${job.progress.steps} of ${job.progress.steps}`).waitFor();
  assert.equal(await figure("Epoch"), "2.0");
  assert.match(await page.getByRole("img", { name: /^Loss/ }).getAttribute("aria-label"), /^Loss: Training loss [\d.]+, Validation loss [\d.]+$/);
  await page.getByText("Values by step").click();
  await page.getByRole("region", { name: "Values by step" }).locator("tbody tr").nth(job.progress.steps - 1).waitFor();
  await page.getByRole("region", { name: "Checkpoints" }).locator("code").getByText(`:ckpt-step-${job.progress.steps}`).waitFor();
  assert.equal(await page.getByRole("region", { name: "Events" }).getByText(/^Step \d/).count(), 0, "steps are not in the list of events");

  await click("Edit");
  await dialog().getByLabel("Name", { exact: true }).fill("harbour lights");
  await dialog().getByLabel("Metadata").fill('{"team": "pilots"}');
  await click("Save", dialog());
  await page.getByRole("heading", { level: 1, name: "harbour lights" }).waitFor();
  const edited = await server.api("GET", `/fine_tuning/jobs/${id}`);
  assert.deepEqual([edited.name, edited.metadata], ["harbour lights", { team: "pilots" }]);
  await goTo(page, "tuning", "Fine-tuning");
  await row("harbour lights").getByText("lights.jsonl").waitFor();
  await row("harbour lights").getByText(`${job.progress.steps} of ${job.progress.steps}`).waitFor();
  await page.getByRole("button", { name: "Delete lights.jsonl" }).click();
  await click("Delete", dialog());
  await page.getByText("No files yet").waitFor();
  assert.deepEqual(problems, []);
});

test("an error of the API is shown at the field that it names", async () => {
  await uploadFile("lights.jsonl", trainingLine("Port?", "Red.").repeat(10));
  await goTo(page, "start", "Get started");
  await goTo(page, "tuning", "Fine-tuning");
  await page.getByRole("region", { name: "Files" }).getByText("lights.jsonl").first().waitFor();
  await click("Start job");
  const field = (label) => dialog().getByLabel(label, { exact: true });
  /** Starts a job that the server refuses, and returns the message at a field. */
  const refusalAt = async (label) => {
    await click("Start", dialog());
    await page.waitForFunction(() => document.activeElement.getAttribute("aria-invalid") === "true");
    assert.equal(await field(label).evaluate((element) => element === document.activeElement), true, label);
    assert.equal(await dialog().getByRole("alert").count(), 0);
    return dialog().locator(`#${await field(label).getAttribute("aria-describedby")}`).textContent();
  };
  await dialog().getByRole("option", { name: TINY_MODEL }).waitFor({ state: "attached" });
  await field("Method").selectOption({ label: "Preferences (DPO)" });
  assert.match(await refusalAt("Training file"), /has no preferences|have no preferences/);
  await field("Method").selectOption({ label: "Supervised" });
  await dialog().getByText("Advanced").click();
  assert.equal(await field("Beta").count(), 0, "only preferences have it");
  await field("Batch size").fill("1000");
  // The part with the field opens again.
  await dialog().getByText("Advanced").click();
  assert.match(await refusalAt("Batch size"), /1 to 256/);
  await field("Batch size").fill("");
  await field("Target modules").fill("not a module");
  assert.match(await refusalAt("Target modules"), /names of modules/);
  await field("Target modules").fill("");
  await field("Seed").fill("-1");
  assert.match(await refusalAt("Seed"), /must be 0 to/);
  await click("Cancel", dialog());
  assert.deepEqual(problems, []);
});

test("a job is watched, paused, resumed and cancelled while it trains", async () => {
  const file = await uploadFile("long.jsonl", trainingLine("Which light is on the port side?", "The red one.".repeat(8)).repeat(200));
  const id = await startJob(file, { n_epochs: 50, batch_size: 8 }, { name: "a long watch", validation_file: await uploadFile("check.jsonl", trainingLine("Port?", "Red.")) });
  await goTo(page, `tuning/${id}`, "a long watch");
  await page.locator("figure.chart path.line").first().waitFor();
  const first = await page.locator("progress").evaluate((bar) => bar.value);
  await page.waitForFunction((first) => document.querySelector("progress").value > first, first);
  assert.equal(await figure("Time left") === "–", false);
  for (const label of ["Epoch", "Training loss", "Token accuracy", "Training speed"]) assert.match(await figure(label), /\d/, label);
  await page.getByText("Running", { exact: true }).waitFor();
  await click("Pause");
  await page.getByText("Paused", { exact: true }).waitFor();
  await row("The job was paused.").waitFor();
  assert.equal((await server.api("GET", `/fine_tuning/jobs/${id}`)).state, "paused");
  // A page that is left no longer asks.
  await goTo(page, "tuning", "Fine-tuning");
  await row("a long watch").getByText("Paused").waitFor();
  await page.goBack();
  await click("Resume");
  await page.getByText("Running", { exact: true }).waitFor();
  await row("The job was resumed.").waitFor();
  await row(/goes on after step/).waitFor();
  await click("Cancel job");
  await click("Keep job", dialog());
  assert.equal(await dialog().count(), 0);
  await click("Cancel job");
  await dialog().waitFor();
  // The events are read once more, and then the checkpoints.
  const isLast = async (response) => response.url().includes("/checkpoints") && (await row("The job was cancelled.").count()) > 0;
  await Promise.all([page.waitForResponse(isLast), click("Cancel job", dialog())]);
  await page.getByText("Cancelled", { exact: true }).waitFor();
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  await page.waitForTimeout(5000);
  page.removeAllListeners("request");
  assert.deepEqual(requests.filter((url) => url.includes(id)), [], "a job that has ended is not polled");
  assert.deepEqual(problems, []);
});

test("preferences are trained with DPO", async () => {
  const pair = { input: { messages: [{ role: "user", content: "Port?" }] }, preferred_output: [{ role: "assistant", content: "Red." }], non_preferred_output: [{ role: "assistant", content: "Blue." }] };
  await uploadFile("pairs.jsonl", `${JSON.stringify(pair)}\n`.repeat(10));
  await goTo(page, "start", "Get started");
  await goTo(page, "tuning", "Fine-tuning");
  await row("pairs.jsonl").getByText("Preferences").waitFor();
  await click("Start job");
  await dialog().getByLabel("Method").selectOption({ label: "Preferences (DPO)" });
  await dialog().getByRole("option", { name: TINY_MODEL }).waitFor({ state: "attached" });
  await dialog().getByLabel("Model", { exact: true }).selectOption(TINY_MODEL);
  await dialog().getByRole("option", { name: /pairs/ }).first().waitFor({ state: "attached" });
  await dialog().getByLabel("Training file").selectOption({ label: "pairs.jsonl · Preferences · 10 examples" });
  await dialog().getByText("Advanced").click();
  await dialog().getByLabel("Beta").fill("0.2");
  await dialog().getByLabel("Epochs").fill("1");
  await click("Start", dialog());
  await page.getByText("Succeeded", { exact: true }).waitFor();
  assert.match(await figure("Preference accuracy"), /%$/);
  const { method } = await server.api("GET", `/fine_tuning/jobs/${await jobId()}`);
  assert.deepEqual([method.type, method.dpo.hyperparameters.beta], ["dpo", 0.2]);
  assert.deepEqual(problems, []);
});

test("a trained model answers next to its base model, and is deleted", async () => {
  const file = await uploadFile("answers.jsonl", trainingLine("Port?", "Red.").repeat(20));
  const id = await startJob(file, { n_epochs: 10, batch_size: 2, learning_rate_multiplier: 50 }, { name: "answers", suffix: "red", seed: 7 });
  const job = await waitForJob(server.api, id);
  assert.equal(job.state, "succeeded", JSON.stringify(job.error));
  await goTo(page, `tuning/${id}`, "answers");
  await page.getByRole("link", { name: "Compare with base model" }).click();
  await page.getByRole("heading", { level: 1, name: "Playground" }).waitFor();
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Max tokens").fill("16");
  const bodies = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && bodies.push(request.postDataJSON()));
  const ask = async (text, count) => {
    await page.getByLabel("Message").fill(text);
    await page.getByLabel("Message").press("Enter");
    await page.getByText(/\d+ output tokens/).nth(count - 1).waitFor();
  };
  await ask("Port?", 2);
  const answers = page.locator(".answer");
  const texts = await answers.locator(".content").allTextContents();
  assert.equal(texts[1], "Red.", "it has learned the answer");
  assert.notEqual(texts[0], "Red.");
  assert.match(await answers.nth(0).locator(".role").textContent(), new RegExp(`^Base model ${TINY_MODEL}$`));
  assert.equal(await answers.nth(1).locator(".role").textContent(), `Fine-tuned ${job.fine_tuned_model}`);
  const [left, right] = [await answers.nth(0).boundingBox(), await answers.nth(1).boundingBox()];
  assert.ok(left.x + left.width <= right.x && left.y === right.y, "side by side");
  await ask("Port?", 4);
  page.removeAllListeners("request");
  assert.deepEqual(bodies.map((body) => body.model).sort(), [job.fine_tuned_model, job.fine_tuned_model, TINY_MODEL, TINY_MODEL].sort());
  const [first, second] = bodies;
  assert.deepEqual({ ...first, model: "" }, { ...second, model: "" }, "the same settings");
  const tuned = bodies.filter((body) => body.model === job.fine_tuned_model)[1];
  assert.deepEqual(tuned.messages.map(({ content }) => content), ["Port?", "Red.", "Port?"], "each model sees its own answers");
  await page.setViewportSize({ width: 390, height: 844 });
  const [above, below] = [await answers.nth(0).boundingBox(), await answers.nth(1).boundingBox()];
  assert.ok(above.y + above.height <= below.y && above.x === below.x, "stacked");
  await unfold(page, "Settings");
  await page.getByLabel("Compare with").selectOption({ label: "None" });
  await page.waitForFunction(() => document.querySelector(".chat:not(.comparison)"));
  await page.setViewportSize({ width: 1280, height: 800 });

  const [{ fine_tuned_model_checkpoint: checkpoint }, oldest] = (await server.api("GET", `/fine_tuning/jobs/${id}/checkpoints`)).data;
  await goTo(page, "models", "Models");
  await page.getByRole("button", { name: `Delete ${oldest.fine_tuned_model_checkpoint}`, exact: true }).click();
  await click("Delete", dialog());
  await row(oldest.fine_tuned_model_checkpoint).waitFor({ state: "detached" });
  assert.equal(await page.getByRole("button", { name: `Delete ${TINY_MODEL}` }).count(), 0, "only trained models can be deleted");
  await goTo(page, `tuning/${id}`, "answers");
  await page.getByRole("region", { name: "Checkpoints" }).locator("code").getByText(checkpoint, { exact: true }).waitFor();
  await click("Delete model");
  await click("Delete", dialog());
  await page.getByText("deleted", { exact: true }).waitFor();
  await page.getByRole("region", { name: "Checkpoints" }).locator("code").getByText(checkpoint, { exact: true }).waitFor({ state: "detached" });
  assert.equal(await page.getByRole("link", { name: "Compare with base model" }).count(), 0);
  await assert.rejects(server.api("GET", `/models/${encodeURIComponent(job.fine_tuned_model)}`), /not_found/);
  assert.deepEqual(problems, []);
});

test("a failed job shows its error, and one that was repeated after a restart its newest values", async () => {
  const file = await uploadFile("short.jsonl", trainingLine("Port?", "Red.").repeat(10));
  const failed = await startJob(file, { max_length: 8 }, { name: "too short" });
  await waitForJob(server.api, failed);
  await goTo(page, `tuning/${failed}`, "too short");
  await page.locator(".card .error").getByText("invalid_training_file").waitFor();
  await row("Error").waitFor();

  const id = `ftjob-${"0".repeat(32)}`;
  const events = [];
  const reply = (body) => ({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  const job = { id, state: "running", model: TINY_MODEL, training_file: "file-1", hyperparameters: {}, method: { type: "supervised" }, seed: 1, progress: null, trained_tokens: null };
  const asked = [];
  await page.route(`**/fine_tuning/jobs/${id}`, (route) => route.fulfill(reply(job)));
  await page.route(`**/fine_tuning/jobs/${id}/checkpoints*`, (route) => route.fulfill(reply({ data: [], has_more: false })));
  await page.route(`**/fine_tuning/jobs/${id}/events*`, (route) => {
    const query = new URL(route.request().url()).searchParams;
    asked.push(query.get("cursor"));
    const from = Number(query.get("cursor") ?? 0);
    const to = from + Number(query.get("limit"));
    return route.fulfill(reply({ data: events.slice(from, to), has_more: to < events.length, next_cursor: String(to) }));
  });
  const add = (data) => events.unshift({ id: `event-${events.length}`, type: "metrics", level: "info", message: "Step", created_at: 1_800_000_000, data });
  await goTo(page, `tuning/${id}`, "Job");
  await page.getByText("The loss curve appears when the job reports its first values.").waitFor();
  for (let at = 1; at <= 250; at++) add({ step: at, train_loss: 2 / at });
  add({ step: 250, full_valid_loss: 1.5 });
  // The server restarts with the state that was saved after step 100.
  add({ step: 101, train_loss: 0.75 });
  await page.locator("figure.chart path.line").waitFor();
  await page.getByText("Values by step").click();
  const values = page.getByRole("region", { name: "Values by step" }).locator("tbody tr");
  await page.waitForFunction(() => document.querySelectorAll(".disclosure tbody tr").length === 101);
  assert.match(await values.last().textContent(), /1010\.75/);
  const before = asked.length;
  add({ step: 102, train_loss: 0.7 });
  await page.waitForFunction(() => document.querySelectorAll(".disclosure tbody tr").length === 102);
  assert.ok(asked.slice(before).every((cursor) => cursor === null), "only newer events are requested");
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
