// Ollama's Node package against its API.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";

const { OUTPOST_URL: host, OUTPOST_KEY: key, OUTPOST_CHAT: model, OUTPOST_EMBED: embedder } = process.env;
const client = new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
const messages = [{ role: "user", content: "Name a colour of the sea." }];
const options = { temperature: 0, num_predict: 24 };

test("a chat, and the same chat as a stream", async () => {
  const whole = await client.chat({ model, messages, options });
  assert.ok(whole.done && whole.eval_count > 0 && whole.message.role === "assistant");
  let text = "";
  for await (const part of await client.chat({ model, messages, options, stream: true })) text += part.message.content;
  assert.equal(text, whole.message.content);
});

test("a prompt, and a schema", async () => {
  const chat = await client.chat({ model, messages, options });
  const { response } = await client.generate({ model, prompt: messages[0].content, options });
  assert.equal(response, chat.message.content);
  const format = { type: "object", properties: { dark: { type: "boolean" } }, required: ["dark"], additionalProperties: false };
  const { message } = await client.chat({ model, messages, options, format });
  assert.equal(typeof JSON.parse(message.content).dark, "boolean");
});

test("models and embeddings", async () => {
  const { models } = await client.list();
  assert.ok(models.some((found) => found.name === `${model}:latest` && found.size > 0));
  const shown = await client.show({ model });
  assert.ok(shown.capabilities.includes("completion"));
  assert.ok((await client.ps()).models.some((found) => found.model === `${model}:latest`));
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
  const { embeddings } = await client.embed({ model: embedder, input: ["the sea", "a ship"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [384, 384]);
});

test("errors have a status and a text", async () => {
  await assert.rejects(client.chat({ model: "none", messages }), { status_code: 404, error: /none/ });
  await assert.rejects(client.copy({ source: "none", destination: "mine" }), { status_code: 404 });
});

test("models are created, copied and deleted", async () => {
  const statuses = [];
  for await (const part of await client.create({ model: "node-mario", from: model, system: "You are Mario.", stream: true })) {
    statuses.push(part.status);
  }
  assert.equal(statuses.at(-1), "success");
  await client.copy({ source: "node-mario", destination: "node-luigi" });
  assert.equal((await client.show({ model: "node-luigi" })).system, "You are Mario.");
  await client.delete({ model: "node-luigi" });
  await client.delete({ model: "node-mario" });
  await assert.rejects(client.show({ model: "node-luigi" }), { status_code: 404 });
});
