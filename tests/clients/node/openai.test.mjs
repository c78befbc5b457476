// Node's openai package: embeddings, which it requests in base64 by default, chat, and errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

const { OUTPOST_URL, OUTPOST_KEY, OUTPOST_CHAT, OUTPOST_EMBED } = process.env;
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

  test(`${mount}: errors have the package's own classes`, async () => {
    const embed = (input, more = {}) => client.embeddings.create({ model: OUTPOST_EMBED, input, ...more });
    await assert.rejects(embed(["fine", ""]), (error) => error instanceof OpenAI.BadRequestError && /input\[1\]/.test(error.message));
    await assert.rejects(embed("x", { model: "nobody" }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: OUTPOST_URL + mount, apiKey: "sk-wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  });
}
