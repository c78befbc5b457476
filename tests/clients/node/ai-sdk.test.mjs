// Vercel's AI SDK, with @ai-sdk/openai-compatible, and with chat completions and the Responses API of @ai-sdk/openai.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, streamText, tool } from "ai";

import { apiKey, baseURL, collect, cosine, GREETING, OUTPOST_CHAT, OUTPOST_EMBED, plainVector, QUESTION, UNKNOWN_MODEL, Visit } from "./visit.mjs";

const compatible = createOpenAICompatible({ name: "outpost", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL, apiKey });
const providers = {
  "openai-compatible": { chat: compatible, embedding: compatible.textEmbeddingModel(OUTPOST_EMBED) },
  openai: { chat: openai.chat, embedding: openai.textEmbeddingModel(OUTPOST_EMBED) },
  responses: { chat: openai, embedding: openai.textEmbeddingModel(OUTPOST_EMBED) },
};

for (const [name, { chat, embedding }] of Object.entries(providers)) {
  const settings = { model: chat(OUTPOST_CHAT), temperature: 0, maxOutputTokens: 80, maxRetries: 0 };

  test(`${name}: a stream adds up to the whole response`, async () => {
    const whole = await generateText({ ...settings, prompt: GREETING });
    const stream = streamText({ ...settings, prompt: GREETING });
    const pieces = await collect(stream.textStream);
    assert.ok(pieces.length > 3 && whole.text);
    assert.equal(pieces.join(""), whole.text);
    assert.ok(whole.usage.outputTokens > 0);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  });

  test(`${name}: tool calls`, async () => {
    const tools = { visit: tool({ description: "Look at a place.", inputSchema: Visit }) };
    const options = { ...settings, prompt: QUESTION, tools, toolChoice: { type: "tool", toolName: "visit" } };
    const whole = await generateText(options);
    assert.equal(whole.finishReason, "tool-calls");
    const [{ input }] = whole.toolCalls;
    const parts = await collect(streamText(options).fullStream);
    const deltas = parts.filter((part) => part.type === "tool-input-delta").map((part) => part.delta);
    assert.ok(deltas.length > 1);
    assert.deepEqual(Visit.parse(JSON.parse(deltas.join(""))), Visit.parse(input));
    const calls = parts.filter((part) => part.type === "tool-call");
    assert.deepEqual(calls.map((call) => [call.toolName, call.input]), [["visit", input]]);
  });

  test(`${name}: structured output`, async () => {
    const options = { ...settings, prompt: QUESTION, output: Output.object({ schema: Visit }) };
    const { output, warnings } = await generateText(options);
    Visit.parse(output);
    assert.deepEqual(warnings, []);
    const partial = await collect(streamText(options).partialOutputStream);
    assert.deepEqual(partial.at(-1), output);
  });

  test(`${name}: embeddings`, async () => {
    const { embeddings, usage } = await embedMany({ model: embedding, values: ["the sea", "interest rates"] });
    assert.ok(embeddings[0].length === 384 && cosine(embeddings[0], await plainVector("the sea")) > 0.9999);
    assert.ok(cosine(embeddings[1], await plainVector("interest rates")) > 0.9999);
    assert.ok(usage.tokens > 0);
  });

  test(`${name}: an unknown model`, async () => {
    const request = generateText({ model: chat("nobody"), prompt: GREETING, maxRetries: 0 });
    await assert.rejects(request, (error) => APICallError.isInstance(error) && error.statusCode === 404 && UNKNOWN_MODEL.test(error.message));
  });
}
