// Anthropic's Node package against the Messages API.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const { OUTPOST_URL: baseURL, OUTPOST_KEY: apiKey, OUTPOST_CHAT: model } = process.env;
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const request = { model, max_tokens: 24, temperature: 0, messages: [{ role: "user", content: "Name a colour of the sea." }] };

test("a message, and the same message as a stream", async () => {
  const whole = await client.messages.create(request);
  assert.equal(whole.content[0].type, "text");
  const stream = client.messages.stream(request);
  let text = "";
  stream.on("text", (part) => (text += part));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("a tool is called", async () => {
  const input_schema = { type: "object", properties: { city: { enum: ["Oslo", "Riga"] } }, required: ["city"], additionalProperties: false };
  const tools = [{ name: "weather", description: "The weather of a city.", input_schema }];
  const stream = client.messages.stream({ ...request, max_tokens: 60, tools, tool_choice: { type: "any" } });
  const message = await stream.finalMessage();
  const call = message.content.at(-1);
  assert.equal(message.stop_reason, "tool_use");
  assert.ok(["Oslo", "Riga"].includes(call.input.city));
});

test("tokens are counted and errors have their types", async () => {
  const { max_tokens, temperature, ...counted } = request;
  const count = await client.messages.countTokens(counted);
  assert.ok(count.input_tokens > 5);
  await assert.rejects(client.messages.create({ ...request, model: "none" }), Anthropic.NotFoundError);
});
