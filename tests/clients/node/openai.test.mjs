// Node's openai package: embeddings, which it requests in base64 by default, chat, tools, structured output, and errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";

import { OUTPOST_CHAT, OUTPOST_EMBED, OUTPOST_KEY, OUTPOST_URL, QUESTION, Visit } from "./visit.mjs";

const TEXTS = ["A dog runs across the field.", "Interest rates rose again.", "🙂 море", "A puppy plays in the meadow. ".repeat(6)];
const dot = (a, b) => a.reduce((sum, x, index) => sum + x * b[index], 0);

for (const mount of ["/v1", "/openai/v1"]) {
  const client = new OpenAI({ baseURL: OUTPOST_URL + mount, apiKey: OUTPOST_KEY, maxRetries: 0 });

  test(`${mount}: vectors by default, in base64, and as floats`, async () => {
    const defaults = await client.embeddings.create({ model: OUTPOST_EMBED, input: TEXTS });
    const floats = await client.embeddings.create({ model: OUTPOST_EMBED, input: TEXTS, encoding_format: "float" });
    assert.equal(defaults.data.length, TEXTS.length);
    assert.deepEqual(defaults.usage, floats.usage);
    defaults.data.forEach(({ embedding, index }, position) => {
      assert.equal(index, position);
      assert.ok(Math.abs(dot(embedding, embedding) - 1) < 1e-4);
      embedding.forEach((x, dimension) => assert.ok(Math.abs(x - floats.data[index].embedding[dimension]) < 1e-6));
    });
    const [dog, rates, , puppy] = defaults.data.map(({ embedding }) => embedding);
    assert.ok(dot(dog, puppy) > dot(rates, puppy) + 0.2, "texts about dogs are similar");
  });

  test(`${mount}: many vectors are in the order of their texts`, async () => {
    const input = Array.from({ length: 300 }, (_, index) => `Text number ${index}.`);
    const { data } = await client.embeddings.create({ model: OUTPOST_EMBED, input });
    const alone = await client.embeddings.create({ model: OUTPOST_EMBED, input: input[217] });
    assert.ok(dot(data[217].embedding, alone.data[0].embedding) > 0.99999);
  });

  test(`${mount}: a streamed chat`, async () => {
    const stream = await client.chat.completions.create({
      model: OUTPOST_CHAT,
      messages: [{ role: "user", content: "Say hello." }],
      max_tokens: 8,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.ok(text.length > 0 && usage.completion_tokens > 0);
  });

  const question = { model: OUTPOST_CHAT, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 80 };

  test(`${mount}: tool calls`, async () => {
    const tools = [zodFunction({ name: "visit", description: "Look at a place.", parameters: Visit })];
    const options = { ...question, tools, tool_choice: { type: "function", function: { name: "visit" } } };
    const [whole] = (await client.chat.completions.parse(options)).choices[0].message.tool_calls;
    const stream = client.chat.completions.stream(options);
    const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.equal(streamed.function.arguments, whole.function.arguments);
    assert.deepEqual(Visit.parse(whole.function.parsed_arguments), Visit.parse(JSON.parse(streamed.function.arguments)));
  });

  test(`${mount}: structured output`, async () => {
    const options = { ...question, response_format: zodResponseFormat(Visit, "visit") };
    const { message } = (await client.chat.completions.parse(options)).choices[0];
    const stream = client.chat.completions.stream(options);
    const streamed = (await stream.finalChatCompletion()).choices[0].message;
    assert.deepEqual(Visit.parse(message.parsed), streamed.parsed);
    assert.equal(streamed.content, message.content);
  });

  test(`${mount}: errors have the package's own classes`, async () => {
    const embed = (input, more = {}) => client.embeddings.create({ model: OUTPOST_EMBED, input, ...more });
    await assert.rejects(embed(["fine", ""]), (error) => error instanceof OpenAI.BadRequestError && /input\[1\]/.test(error.message));
    await assert.rejects(embed("x", { model: "nobody" }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: OUTPOST_URL + mount, apiKey: "sk-wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  });
}
