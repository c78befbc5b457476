// The playground: every kind of model asked as a user asks it, and the request taken along.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { CHAT, finders, go, PICTURES, signIn, stage, VECTORS, visit } from "./harness.mjs";

let server, browser, page, wrong;
stage(async (found) => {
  ({ server, browser } = found);
  let context;
  ({ context, page, wrong } = await visit(browser, server.url));
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.url });
  await signIn(page, server.url, server.key);
});

const { dialog, press } = finders(() => page);
const said = (role) => page.locator(`.said.${role} .words`);
const set = (fields) => Object.entries(fields).reduce((before, [label, value]) => before.then(() => page.getByLabel(label, { exact: true }).fill(value)), Promise.resolve());

async function say(text) {
  await page.getByLabel("Message").fill(text);
  await page.getByLabel("Message").press("Enter");
}

async function chat() {
  await go(page, "start", "Get started");
  await go(page, "playground/chat", "Playground");
  await set({ Temperature: "0", "Max tokens": "40" });
}

/** The next request's body to a path. */
const sent = (path) => page.waitForRequest((request) => request.url().endsWith(path) && request.method() === "POST").then((request) => request.postDataJSON());

async function code(language) {
  await press("View code");
  await dialog().getByRole("tab", { name: language }).click();
  await press("Copy", dialog());
  const text = await page.evaluate(() => navigator.clipboard.readText());
  await press("Close", dialog());
  return text;
}

test("a chat streams, remembers, and tells what it took", async () => {
  await chat();
  await set({ "System prompt": "Answer in English." });
  const body = sent("/chat/completions");
  await say("What is the capital of France?");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  const first = await body;
  assert.deepEqual(first.messages.map((message) => message.role), ["system", "user"]);
  assert.deepEqual([first.model, first.stream, first.temperature, first.max_completion_tokens], [CHAT, true, 0, 40]);
  assert.match(await said("assistant").textContent(), /Paris/);
  const second = sent("/chat/completions");
  await say("And of Italy?");
  await page.waitForFunction(() => document.querySelectorAll(".said.assistant").length === 2 && !document.querySelector(".waiting"));
  assert.deepEqual((await second).messages.map((message) => message.role), ["system", "user", "assistant", "user"]);
  await press("Clear chat");
  await page.getByText("Start a chat").waitFor();
  assert.deepEqual(wrong, []);
});

test("an answer is stopped, and the server stops with it", async () => {
  await chat();
  await set({ "Max tokens": "6000", Temperature: "1" });
  await say("Write a very long story about the sea.");
  await page.waitForFunction(() => (document.querySelector(".said.assistant .words")?.textContent.length ?? 0) > 20);
  await press("Stop");
  await page.getByText("stopped").waitFor();
  await page.waitForFunction(async () => !/answers_running\{[^}]*\} [1-9]/.test(await (await fetch("/metrics", { headers: { authorization: `Bearer ${sessionStorage.getItem("outpost.key")}` } })).text()));
  assert.ok((await said("assistant").textContent()).length > 20, "what came so far stays");
  assert.deepEqual(wrong, []);
});

test("an answer obeys a JSON schema", async () => {
  await chat();
  await page.getByLabel("Response format").selectOption({ label: "JSON schema" });
  await set({ "JSON schema": "{ not json" });
  await say("A city in Italy?");
  await page.getByText(/JSON schema is not valid JSON/).waitFor();
  assert.equal(await page.getByLabel("Message").inputValue(), "A city in Italy?", "nothing that was typed is lost");
  await set({ "JSON schema": '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": false}' });
  await page.getByLabel("Message").press("Enter");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  assert.deepEqual(Object.keys(JSON.parse(await said("assistant").textContent())), ["city"]);
  assert.deepEqual(wrong, []);
});

test("a tool is called, and its result goes back", async () => {
  await chat();
  await set({ Tools: JSON.stringify([{ type: "function", function: { name: "tide", description: "The tide in a harbour", parameters: { type: "object", properties: { harbour: { type: "string", enum: ["Hamburg"] } }, required: ["harbour"], additionalProperties: false } } }]) });
  await page.getByLabel("Tool choice").selectOption({ label: "Required" });
  await say("How is the tide in Hamburg?");
  await page.getByText("Tool call: tide").waitFor();
  await page.getByText('"Hamburg"').first().waitFor();
  await page.getByLabel("Tool choice").selectOption({ label: "None" });
  await page.getByLabel("Result of tide").fill("It rises.");
  const body = sent("/chat/completions");
  await press("Submit results");
  await page.getByText(/\d+ input, \d+ output tokens/).nth(1).waitFor();
  const { messages } = await body;
  assert.deepEqual(messages.map((message) => message.role), ["user", "assistant", "tool"]);
  assert.equal(messages[2].tool_call_id, messages[1].tool_calls[0].id);
  assert.deepEqual(wrong, []);
});

test("a conversation keeps the turns, and an agent speaks in it", async () => {
  const agent = await server.api("POST", "/agents", { name: "Pilot", model: CHAT, instructions: "Be brief." });
  await go(page, `playground/chat/agent/${agent.id}`, "Playground");
  await page.getByLabel("Agent").waitFor();
  await set({ "Max tokens": "20" });
  await page.getByLabel("Conversation").selectOption({ label: "New conversation" });
  const body = sent("/chat/completions");
  await say("Where are you?");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  const { agent_id, conversation_id, model } = await body;
  assert.deepEqual([agent_id, model], [agent.id, undefined]);
  const next = sent("/chat/completions");
  await say("And now?");
  await page.getByText(/\d+ input, \d+ output tokens/).nth(1).waitFor();
  const second = await next;
  assert.deepEqual([second.conversation_id, second.messages.length], [conversation_id, 1], "what is kept is not sent again");
  const kept = await server.api("GET", `/conversations/${conversation_id}`);
  assert.deepEqual(kept.messages.map((message) => message.role), ["user", "assistant", "user", "assistant"]);

  await go(page, `conversations/${conversation_id}`, "Conversation");
  await page.getByRole("link", { name: "Continue in playground" }).click();
  // The page that is left shows the same messages.
  await page.getByRole("heading", { level: 1, name: "Playground" }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".said").length === 4);
  assert.deepEqual(wrong, []);
});

test("a refusal is told with its id, and nothing that was typed is lost", async () => {
  await chat();
  await set({ Temperature: "9" });
  await say("Hello?");
  const told = page.getByRole("alert");
  await told.waitFor();
  assert.match(await told.textContent(), /temperature[^]*req_/);
  assert.equal(await page.getByLabel("Message").inputValue(), "Hello?");
  assert.equal(await page.locator(".said").count(), 0);
});

test("pictures are painted step by step, and a seed gives the same again", async () => {
  await go(page, "playground/images", "Playground");
  await set({ Prompt: "a lighthouse", Steps: "6", Images: "2", Seed: "41" });
  const body = sent("/images/generations");
  await press("Generate");
  await page.getByText("Seed 42").waitFor();
  assert.deepEqual([(await body).model, (await body).n], [PICTURES, 2]);
  const pictures = page.locator(".gallery img");
  assert.equal(await pictures.count(), 2);
  await page.waitForFunction(() => document.querySelector(".gallery img").naturalWidth === 64);
  const source = await pictures.first().getAttribute("src");
  await page.locator("figure").filter({ hasText: "Seed 42" }).getByRole("button", { name: "Reuse seed" }).click();
  await set({ Images: "1" });
  await press("Generate");
  await page.waitForFunction(() => document.querySelectorAll(".gallery img").length === 3);
  assert.equal(await pictures.first().getAttribute("src"), source);
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download" }).first().click()]);
  assert.equal(file.suggestedFilename(), "42.png");
  await set({ Steps: "500", Images: "10" });
  await press("Generate");
  await page.getByText(/Step [1-9]\d* of 50\d/).waitFor();
  await press("Stop");
  await page.getByRole("button", { name: "Generate" }).waitFor();
  assert.ok((await pictures.count()) < 13);
  assert.deepEqual(wrong, []);
});

test("texts are compared, as a picture of how alike they are", async () => {
  await go(page, "playground/embeddings", "Playground");
  await press("Compare");
  await page.getByText("4 vectors with 384 dimensions").waitFor();
  const cells = (await page.locator(".matrix tbody td").allTextContents()).map(Number);
  const at = (row, column) => cells[row * 4 + column];
  for (const one of [0, 1, 2, 3]) assert.equal(at(one, one), 1);
  assert.ok(at(0, 1) > 0.5 && at(2, 3) > 0.4 && at(0, 2) < 0.3, cells.join());
  const heat = (text) => page.locator(".matrix tbody td").filter({ hasText: text }).first().evaluate((cell) => getComputedStyle(cell).backgroundColor);
  assert.notEqual(await heat("1.00"), await heat(String(at(0, 2).toFixed(2))));
  assert.deepEqual(wrong, []);
});

test("the request can be taken along and works outside", async () => {
  const run = promisify(execFile);
  const shell = async (text) => JSON.parse((await run("bash", ["-c", text.replace(/^curl/, "curl -sS --fail-with-body")], { env: { ...process.env, OUTPOST_KEY: server.key } })).stdout);
  await chat();
  await set({ "System prompt": "It's \"quoted\" & $HOME `x` \\ é", Seed: "3" });
  await page.getByLabel("Message").fill("Hello 'you'!");
  const chatted = await code("curl");
  assert.match(chatted, /-N|stream/);
  await page.getByLabel("Message").fill("");
  // A stream is read as a stream.
  const streamed = (await run("bash", ["-c", chatted.replace(/^curl/, "curl -sS")], { env: { ...process.env, OUTPOST_KEY: server.key } })).stdout;
  assert.match(streamed, /^data: [^]*data: \[DONE\]/);
  const python = await code("Python");
  assert.ok(python.includes("client.chat.completions.create(") && python.includes("stream=True") && !python.includes("true"), python);
  await go(page, "playground/embeddings", "Playground");
  const vectors = await shell(await code("curl"));
  assert.deepEqual([vectors.data.length, vectors.model], [4, VECTORS]);
  await go(page, "playground/images", "Playground");
  await set({ Prompt: "a buoy", Steps: "2", Seed: "5" });
  const painted = await shell(await code("curl"));
  assert.equal(painted.data[0].seed, 5);
  assert.match(await code("Node"), /await client\.images\.generate\(/);
  assert.deepEqual(wrong, []);
});

test("Python that was copied runs with the openai package", { skip: !process.env.PYTHON && "PYTHON names no Python with the openai package" }, async () => {
  const run = promisify(execFile);
  await go(page, "playground/embeddings", "Playground");
  const { stdout } = await run(process.env.PYTHON, ["-c", await code("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(stdout, /CreateEmbeddingResponse/);
  await chat();
  await set({ Seed: "3" });
  await page.getByLabel("Message").fill("Hello!");
  const streamed = await run(process.env.PYTHON, ["-c", await code("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(streamed.stdout, /ChatCompletionChunk/);
  await go(page, "playground/images", "Playground");
  await set({ Prompt: "a buoy", Steps: "2", Seed: "5", Size: "64x64" });
  const painted = await run(process.env.PYTHON, ["-c", await code("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(painted.stdout, /ImagesResponse/);
});
