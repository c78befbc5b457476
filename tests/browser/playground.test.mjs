// The playground: chat, images, embeddings, and requests copied as code.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { CHAT_MODEL, finders, goTo, IMAGE_MODEL, signIn, setUp, EMBEDDING_MODEL, openPage } from "./harness.mjs";

let server, browser, page, problems;
setUp(async (started) => {
  ({ server, browser } = started);
  let context;
  ({ context, page, problems } = await openPage(browser, server.url));
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.url });
  await signIn(page, server.url, server.key);
});

const { dialog, click } = finders(() => page);
const messageText = (role) => page.locator(`.message.${role} .content`);
const fill = (fields) => Object.entries(fields).reduce((before, [label, value]) => before.then(() => page.getByLabel(label, { exact: true }).fill(value)), Promise.resolve());

/** Enter does nothing while an answer is still on its way. */
async function sendMessage(text) {
  await page.waitForFunction(() => !document.querySelector(".loading"));
  await page.getByLabel("Message").fill(text);
  await page.getByLabel("Message").press("Enter");
}

async function openChat() {
  await goTo(page, "start", "Get started");
  await goTo(page, "playground/chat", "Playground");
  await fill({ Temperature: "0", "Max tokens": "40" });
}

/** The body of the next POST request to a path. */
const nextRequest = (path) => page.waitForRequest((request) => request.url().endsWith(path) && request.method() === "POST").then((request) => request.postDataJSON());

/** The code of the current request in a language, copied from the dialog. */
async function copyCode(language) {
  await click("View code");
  await dialog().getByRole("tab", { name: language }).click();
  await click("Copy", dialog());
  await dialog().getByRole("button", { name: "Copied" }).waitFor();
  const text = await page.evaluate(() => navigator.clipboard.readText());
  await click("Close", dialog());
  return text;
}

test("a chat streams, sends its history, and shows its token usage", async () => {
  await openChat();
  await fill({ "System prompt": "Answer in English." });
  const body = nextRequest("/chat/completions");
  await sendMessage("What is the capital of France?");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  const first = await body;
  assert.deepEqual(first.messages.map((message) => message.role), ["system", "user"]);
  assert.deepEqual([first.model, first.stream, first.temperature, first.max_completion_tokens], [CHAT_MODEL, true, 0, 40]);
  assert.match(await messageText("assistant").textContent(), /Paris/);
  const second = nextRequest("/chat/completions");
  await sendMessage("And of Italy?");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2 && !document.querySelector(".loading"));
  assert.deepEqual((await second).messages.map((message) => message.role), ["system", "user", "assistant", "user"]);
  await click("Clear chat");
  await page.getByText("Start a chat").waitFor();
  assert.deepEqual(problems, []);
});

test("stopping a response stops the generation on the server", async () => {
  await openChat();
  await fill({ "Max tokens": "6000", Temperature: "0" });
  await sendMessage("Write a very long story about the sea.");
  await page.waitForFunction(() => (document.querySelector(".message.assistant .content")?.textContent.length ?? 0) > 20);
  await click("Stop");
  await page.getByText("stopped").waitFor();
  await page.waitForFunction(async () => !/answers_running\{[^}]*\} [1-9]/.test(await (await fetch("/metrics", { headers: { authorization: `Bearer ${sessionStorage.getItem("outpost.key")}` } })).text()));
  assert.ok((await messageText("assistant").textContent()).length > 20, "the partial response is kept");
  assert.deepEqual(problems, []);
});

/** Answers the next chat requests with events: each delta is a chunk. Returns the bodies of the requests. */
async function mockChat(...responses) {
  const bodies = [];
  await page.route("**/v1/chat/completions", (route) => {
    const deltas = responses[Math.min(bodies.length, responses.length - 1)];
    bodies.push(route.request().postDataJSON());
    const chunks = [...deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] })), { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }];
    const body = [...chunks.map((chunk) => JSON.stringify(chunk)), "[DONE]"].map((data) => `data: ${data}\n\n`).join("");
    return route.fulfill({ status: 200, contentType: "text/event-stream", body });
  });
  return bodies;
}

test("a response is generated again in place of the last one", async () => {
  await openChat();
  const bodies = await mockChat([{ content: "first" }], [{ content: "second" }]);
  await sendMessage("Hello?");
  await messageText("assistant").getByText("first").waitFor();
  await click("Regenerate");
  await messageText("assistant").getByText("second").waitFor();
  assert.equal(await page.locator(".message").count(), 2);
  assert.deepEqual(bodies[1].messages, bodies[0].messages);
  await page.unrouteAll();
  // A failed attempt keeps the response.
  await fill({ Temperature: "9" });
  await click("Regenerate");
  await page.getByRole("alert").waitFor();
  assert.equal(await messageText("assistant").textContent(), "second");
  assert.deepEqual(problems, []);
});

test("a stored response is replaced when a new one is complete", async () => {
  const { id } = await server.api("POST", "/conversations", { messages: [{ role: "user", content: "Where is the light?" }, { role: "assistant", content: "Old response" }], metadata: { ship: "Aurora" } });
  await goTo(page, `playground/chat/conversation/${id}`, "Playground");
  await page.getByText("Old response").waitFor();
  await fill({ Temperature: "0", "Max tokens": "6000" });
  await click("Regenerate");
  await page.waitForFunction(() => (document.querySelector(".message.assistant .content")?.textContent.length ?? 0) > 20 && !document.body.textContent.includes("Old response"));
  await click("Stop");
  await page.getByText("Old response").waitFor();
  const messages = async () => (await server.api("GET", `/conversations/${id}`)).messages.map((message) => message.content);
  assert.deepEqual(await messages(), ["Where is the light?", "Old response"]);
  await fill({ "Max tokens": "12" });
  const body = nextRequest("/chat/completions");
  await click("Regenerate");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  assert.equal((await body).conversation_id, undefined, "the server does not append the response");
  await page.waitForFunction(async ([id, key]) => {
    const stored = await (await fetch(`/v1/conversations/${id}`, { headers: { authorization: `Bearer ${key}` } })).json();
    return stored.messages.length === 2 && stored.messages[1].content !== "Old response";
  }, [id, server.key]);
  assert.deepEqual((await server.api("GET", `/conversations/${id}`)).metadata, { ship: "Aurora" });
  await sendMessage("And now?");
  await page.waitForFunction(() => document.querySelectorAll(".message").length === 4 && !document.querySelector(".loading"));
  assert.equal((await messages()).length, 4);
  assert.deepEqual(problems, []);
});

/** Streams the next response in parts, as a server does that generates it. Returns the duration of the longest task of the page until it is complete. */
async function longestTask(text, parts) {
  await page.evaluate(([text, parts]) => {
    const [fetchNow, encoder] = [window.fetch, new TextEncoder()];
    const events = Array.from({ length: parts }, (_, at) => {
      const content = text.slice((at * text.length) / parts, ((at + 1) * text.length) / parts);
      return { choices: [{ index: 0, delta: { content }, finish_reason: at === parts - 1 ? "stop" : null }] };
    });
    const pull = async (controller) => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      const event = events.shift();
      controller.enqueue(encoder.encode(`data: ${event ? JSON.stringify(event) : "[DONE]"}\n\n`));
      if (!event) controller.close();
    };
    window.fetch = (...request) => {
      if (!request[0].endsWith("/chat/completions")) return fetchNow(...request);
      window.fetch = fetchNow;
      return Promise.resolve(new Response(new ReadableStream({ pull }), { headers: { "content-type": "text/event-stream" } }));
    };
    window.longTasks = [];
    window.taskObserver = new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)));
    window.taskObserver.observe({ type: "longtask" });
  }, [text, parts]);
  await sendMessage("Hello?");
  await page.locator(".message.assistant .content:not(.loading)").waitFor({ timeout: 240_000 });
  // The last task is reported after it.
  return page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => {
    window.taskObserver.disconnect();
    resolve(Math.max(0, ...window.longTasks));
  }, 100))));
}

test("a long response does not freeze the page while it is streamed", async () => {
  const texts = {
    "a code span of spaces": [`\`${" a".repeat(80_000)}\``, "code", 1],
    "a heading of spaces": [`# ${" ".repeat(80_000)}\u2028x`, "p", 1],
    "many paragraphs": ["Some *text* with `code`.\n\n".repeat(3_000), "p", 3_000],
    "a long list": ["- an item with **bold** text\n".repeat(2_500), "li", 2_500],
  };
  for (const [name, [text, tag, count]] of Object.entries(texts)) {
    await openChat();
    const longest = await longestTask(text, 100);
    assert.equal(await messageText("assistant").locator(`.markdown ${tag}`).count(), count, name);
    assert.ok(longest < 1_000, `${name}: a task took ${longest.toFixed(0)} ms`);
  }
  assert.deepEqual(problems, []);
});

test("a response is shown as Markdown, and its code can be copied", async () => {
  await openChat();
  await mockChat([{ content: "# Title\n\n**bold** <img src=x onerror=window.hit=1> [a](javascript:window.hit=1)\n\n```python\npri" }, { content: "nt(1)\n```" }]);
  await sendMessage("**not** formatted");
  const answer = messageText("assistant");
  await answer.getByRole("heading", { name: "Title" }).waitFor();
  assert.equal(await answer.locator("strong").textContent(), "bold");
  assert.equal(await answer.locator("img, a").count(), 0);
  await answer.getByText("<img src=x onerror=window.hit=1> [a](javascript:window.hit=1)").waitFor();
  await answer.getByRole("button", { name: "Copy" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "print(1)");
  assert.equal(await messageText("user").textContent(), "**not** formatted");
  await page.unrouteAll();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(problems, []);
});

test("reasoning is folded", async () => {
  await openChat();
  for (const deltas of [[{ reasoning_content: "I think. " }, { reasoning_content: "I am." }, { content: "The answer" }], [{ content: "<think>\nI think. I am.\n</th" }, { content: "ink>\n\nThe answer" }], [{ content: "I think. I am.</think>The answer" }]]) {
    const bodies = await mockChat(deltas);
    await sendMessage("Hello?");
    await messageText("assistant").getByText("The answer").waitFor();
    assert.equal(await messageText("assistant").textContent(), "The answer");
    const reasoning = page.locator("details.reasoning .multiline");
    assert.equal(await reasoning.isVisible(), false);
    await page.getByText("Reasoning", { exact: true }).click();
    assert.equal((await reasoning.textContent()).trim(), "I think. I am.");
    assert.equal(bodies.length, 1);
    await page.unrouteAll();
    await click("Clear chat");
  }
  assert.deepEqual(problems, []);
});

test("the composer stays in view, and the transcript follows the response until the reader scrolls up", async () => {
  await openChat();
  await mockChat([{ content: "A line of text.\n\n".repeat(120) }]);
  for (const count of [1, 2]) {
    await sendMessage("Hello?");
    await page.waitForFunction((count) => document.querySelectorAll(".message.assistant").length === count && !document.querySelector(".loading"), count);
  }
  await page.unrouteAll();
  const inView = async (locator) => {
    const { y, height } = await locator.boundingBox();
    return y >= 0 && y + height <= page.viewportSize().height;
  };
  const transcript = page.locator(".transcript");
  const fromEnd = () => transcript.evaluate((element) => element.scrollHeight - element.scrollTop - element.clientHeight);
  assert.ok(await inView(page.getByLabel("Message")));
  assert.ok(await inView(page.getByRole("button", { name: "Send" })));
  assert.ok((await transcript.evaluate((element) => element.scrollHeight / element.clientHeight)) > 2);
  assert.ok((await fromEnd()) < 5);
  // A real response, so that there is time to scroll.
  await fill({ "Max tokens": "6000" });
  await sendMessage("Write a very long story about the sea.");
  await page.waitForFunction(() => (document.querySelector(".message.loading, .content.loading")?.textContent.length ?? 0) > 100);
  assert.ok((await fromEnd()) < 60, "it follows the response");
  await transcript.hover();
  await page.mouse.wheel(0, -600);
  await page.getByRole("button", { name: "Jump to the end" }).waitFor();
  const position = await transcript.evaluate((element) => element.scrollTop);
  const length = await page.locator(".content.loading").evaluate((element) => element.textContent.length);
  await page.waitForFunction((length) => document.querySelector(".content.loading").textContent.length > length + 200, length);
  assert.equal(await transcript.evaluate((element) => element.scrollTop), position, "it stays where the reader is");
  await click("Jump to the end");
  assert.ok((await fromEnd()) < 60);
  await click("Stop");
  await page.getByText("stopped").waitFor();
  assert.ok(await inView(page.getByLabel("Message")));
  assert.deepEqual(problems, []);
});

test("a response follows a JSON schema", async () => {
  await openChat();
  await page.getByLabel("Response format").selectOption({ label: "JSON schema" });
  await fill({ "JSON schema": "{ not json" });
  await sendMessage("A city in Italy?");
  await page.getByText(/JSON schema is not valid JSON/).waitFor();
  assert.equal(await page.getByLabel("Message").inputValue(), "A city in Italy?", "the input is kept");
  await fill({ "JSON schema": '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": false}' });
  await page.getByLabel("Message").press("Enter");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  assert.deepEqual(Object.keys(JSON.parse(await messageText("assistant").locator("code").textContent())), ["city"]);
  assert.deepEqual(problems, []);
});

test("a tool is called, and its result is sent back", async () => {
  await openChat();
  await fill({ Tools: JSON.stringify([{ type: "function", function: { name: "tide", description: "The tide in a harbour", parameters: { type: "object", properties: { harbour: { type: "string", enum: ["Hamburg"] } }, required: ["harbour"], additionalProperties: false } } }]) });
  await page.getByLabel("Tool choice").selectOption({ label: "Required" });
  await sendMessage("How is the tide in Hamburg?");
  await page.getByText("Tool call: tide").waitFor();
  await page.getByText('"Hamburg"').first().waitFor();
  await page.getByLabel("Tool choice").selectOption({ label: "None" });
  await page.getByLabel("Result of tide").fill("It rises.");
  const body = nextRequest("/chat/completions");
  await click("Submit results");
  await page.getByText(/\d+ input, \d+ output tokens/).nth(1).waitFor();
  const { messages } = await body;
  assert.deepEqual(messages.map((message) => message.role), ["user", "assistant", "tool"]);
  assert.equal(messages[2].tool_call_id, messages[1].tool_calls[0].id);
  assert.deepEqual(problems, []);
});

test("a conversation with an agent stores its messages", async () => {
  const agent = await server.api("POST", "/agents", { name: "Pilot", model: CHAT_MODEL, instructions: "Be brief." });
  await goTo(page, `playground/chat/agent/${agent.id}`, "Playground");
  await page.getByLabel("Agent").waitFor();
  await fill({ "Max tokens": "20" });
  await page.getByLabel("Conversation").selectOption({ label: "New conversation" });
  const body = nextRequest("/chat/completions");
  await sendMessage("Where are you?");
  await page.getByText(/\d+ input, \d+ output tokens/).waitFor();
  const { agent_id, model } = await body;
  assert.deepEqual([agent_id, model], [agent.id, undefined]);
  const next = nextRequest("/chat/completions");
  await sendMessage("And now?");
  await page.getByText(/\d+ input, \d+ output tokens/).nth(1).waitFor();
  const { conversation_id, messages } = await next;
  assert.equal(messages.length, 1, "stored messages are not sent again");
  const stored = await server.api("GET", `/conversations/${conversation_id}`);
  assert.deepEqual(stored.messages.map((message) => message.role), ["user", "assistant", "user", "assistant"]);

  await goTo(page, `conversations/${conversation_id}`, "Conversation");
  await page.getByRole("link", { name: "Continue in playground" }).click();
  // The previous page shows the same messages, so wait for the heading first.
  await page.getByRole("heading", { level: 1, name: "Playground" }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".message").length === 4);
  assert.deepEqual(problems, []);
});

test("a new conversation is created with its first complete response", async () => {
  const count = async () => (await server.api("GET", "/conversations?limit=100")).data.length;
  const before = await count();
  await openChat();
  await page.getByLabel("Conversation").selectOption({ label: "New conversation" });
  await fill({ Temperature: "9", "System prompt": "Be brief." });
  for (let attempt = 0; attempt < 2; attempt++) {
    await sendMessage("Hello?");
    await page.getByText(/temperature[^]*must be/).waitFor();
    assert.equal(await page.getByLabel("Message").inputValue(), "Hello?");
  }
  assert.equal(await count(), before, "a failed attempt leaves nothing");
  await fill({ Temperature: "0", "Max tokens": "6000" });
  await sendMessage("Write a very long story about the sea.");
  await page.waitForFunction(() => (document.querySelector(".message.assistant .content")?.textContent.length ?? 0) > 20);
  await click("Stop");
  await page.getByText("stopped").waitFor();
  assert.equal(await count(), before, "a stopped response is not stored");
  await click("Clear chat");
  await page.getByLabel("Conversation").selectOption({ label: "New conversation" });
  await fill({ Temperature: "0", "Max tokens": "10" });
  await sendMessage("Where are you?");
  await page.waitForFunction(() => [...document.querySelectorAll("option:checked")].some((option) => option.value.startsWith("conv_")));
  assert.equal(await count(), before + 1);
  const id = await page.getByLabel("Conversation").inputValue();
  const stored = await server.api("GET", `/conversations/${id}`);
  assert.deepEqual(stored.messages.map((message) => message.role), ["system", "user", "assistant"]);
  assert.deepEqual(problems, []);
});

test("an error is shown with the request ID, and the input is kept", async () => {
  await openChat();
  await fill({ Temperature: "9" });
  await sendMessage("Hello?");
  assert.match(await page.getByRole("alert").textContent(), /temperature[^]*req_/);
  assert.equal(await page.getByLabel("Message").inputValue(), "Hello?");
  assert.equal(await page.locator(".message").count(), 0);
});

test("images are generated step by step, and a seed reproduces an image", async () => {
  await goTo(page, "playground/images", "Playground");
  await fill({ Prompt: "a lighthouse", Steps: "6", Images: "2", Seed: "41" });
  const body = nextRequest("/images/generations");
  await click("Generate");
  await page.getByText("Seed 42").waitFor();
  assert.deepEqual([(await body).model, (await body).n], [IMAGE_MODEL, 2]);
  const images = page.locator(".gallery img");
  await page.waitForFunction(() => document.querySelectorAll(".gallery img").length === 2);
  await page.waitForFunction(() => document.querySelector(".gallery img").naturalWidth === 64);
  const source = await images.first().getAttribute("src");
  await page.locator("figure").filter({ hasText: "Seed 42" }).getByRole("button", { name: "Reuse seed" }).click();
  await fill({ Images: "1" });
  await click("Generate");
  await page.waitForFunction(() => document.querySelectorAll(".gallery img").length === 3);
  assert.equal(await images.first().getAttribute("src"), source);
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download" }).first().click()]);
  assert.equal(file.suggestedFilename(), "42.png");
  await fill({ Steps: "500", Images: "10" });
  await click("Generate");
  await page.getByText(/Step [1-9]\d* of 50\d/).waitFor();
  await click("Stop");
  await page.getByRole("button", { name: "Generate" }).waitFor();
  assert.ok((await images.count()) < 13);
  assert.deepEqual(problems, []);
});

test("texts are compared in a similarity matrix", async () => {
  await goTo(page, "playground/embeddings", "Playground");
  await click("Compare");
  await page.getByText("4 vectors with 384 dimensions").waitFor();
  const cells = (await page.locator(".matrix tbody td").allTextContents()).map(Number);
  const at = (row, column) => cells[row * 4 + column];
  for (const one of [0, 1, 2, 3]) assert.equal(at(one, one), 1);
  assert.ok(at(0, 1) > 0.5 && at(2, 3) > 0.4 && at(0, 2) < 0.3, cells.join());
  const heat = (text) => page.locator(".matrix tbody td").filter({ hasText: text }).first().evaluate((cell) => getComputedStyle(cell).backgroundColor);
  assert.notEqual(await heat("1.00"), await heat(String(at(0, 2).toFixed(2))));
  assert.deepEqual(problems, []);
});

test("a copied request works outside of the browser", async () => {
  const run = promisify(execFile);
  const shell = async (text) => JSON.parse((await run("bash", ["-c", text.replace(/^curl/, "curl -sS --fail-with-body")], { env: { ...process.env, OUTPOST_KEY: server.key } })).stdout);
  await openChat();
  await fill({ "System prompt": "It's \"quoted\" & $HOME `x` \\ é", Seed: "3" });
  await page.getByLabel("Message").fill("Hello 'you'!");
  const chatCode = await copyCode("curl");
  assert.match(chatCode, /-N|stream/);
  await page.getByLabel("Message").fill("");
  // The request streams, so the response is a list of events.
  const streamed = (await run("bash", ["-c", chatCode.replace(/^curl/, "curl -sS")], { env: { ...process.env, OUTPOST_KEY: server.key } })).stdout;
  assert.match(streamed, /^data: [^]*data: \[DONE\]/);
  const python = await copyCode("Python");
  assert.ok(python.includes("client.chat.completions.create(") && python.includes("stream=True") && !python.includes("true"), python);
  await goTo(page, "playground/embeddings", "Playground");
  const embeddings = await shell(await copyCode("curl"));
  assert.deepEqual([embeddings.data.length, embeddings.model], [4, EMBEDDING_MODEL]);
  await goTo(page, "playground/images", "Playground");
  await fill({ Prompt: "a buoy", Steps: "2", Seed: "5" });
  const generated = await shell(await copyCode("curl"));
  assert.equal(generated.data[0].seed, 5);
  assert.match(await copyCode("Node"), /await client\.images\.generate\(/);
  assert.deepEqual(problems, []);
});

test("copied Python code runs with the openai package", { skip: !process.env.PYTHON && "PYTHON is not set to a Python with the openai package" }, async () => {
  const run = promisify(execFile);
  await goTo(page, "playground/embeddings", "Playground");
  const { stdout } = await run(process.env.PYTHON, ["-c", await copyCode("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(stdout, /CreateEmbeddingResponse/);
  await openChat();
  await fill({ Seed: "3" });
  await page.getByLabel("Message").fill("Hello!");
  const streamed = await run(process.env.PYTHON, ["-c", await copyCode("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(streamed.stdout, /ChatCompletionChunk/);
  await goTo(page, "playground/images", "Playground");
  await fill({ Prompt: "a buoy", Steps: "2", Seed: "5", Size: "64x64" });
  const generated = await run(process.env.PYTHON, ["-c", await copyCode("Python")], { env: { ...process.env, OUTPOST_KEY: server.key } });
  assert.match(generated.stdout, /ImagesResponse/);
});
