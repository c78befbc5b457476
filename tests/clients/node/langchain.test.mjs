// LangChain.js: @langchain/openai.

import assert from "node:assert/strict";
import { test } from "node:test";

import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";

import { apiKey, baseURL, collect, cosine, GREETING, OUTPOST_CHAT, OUTPOST_EMBED, plainVector, QUESTION, UNKNOWN_MODEL, Visit } from "./visit.mjs";

const connection = { apiKey, configuration: { baseURL }, maxRetries: 0 };
const chat = new ChatOpenAI({ ...connection, model: OUTPOST_CHAT, temperature: 0, maxTokens: 80 });
const added = (chunks) => chunks.reduce((sum, chunk) => sum.concat(chunk));

test("a stream adds up to the whole response", async () => {
  const whole = await chat.invoke(GREETING);
  const chunks = await collect(await chat.stream(GREETING));
  const streamed = added(chunks);
  assert.ok(chunks.length > 3 && whole.text);
  assert.equal(streamed.text, whole.text);
  assert.ok(whole.usage_metadata.output_tokens > 0);
  assert.equal(streamed.usage_metadata.output_tokens, whole.usage_metadata.output_tokens);
});

test("tool calls", async () => {
  const visit = tool(() => "calm", { name: "visit", description: "Look at a place.", schema: Visit });
  const bound = chat.bindTools([visit], { tool_choice: "visit" });
  const whole = await bound.invoke(QUESTION);
  const streamed = added(await collect(await bound.stream(QUESTION)));
  for (const { tool_calls } of [whole, streamed]) assert.deepEqual(tool_calls.map((call) => call.name), ["visit"]);
  assert.deepEqual(Visit.parse(streamed.tool_calls[0].args), Visit.parse(whole.tool_calls[0].args));
});

for (const method of ["jsonSchema", "functionCalling"]) {
  test(`structured output: ${method}`, async () => {
    Visit.parse(await chat.withStructuredOutput(Visit, { method }).invoke(QUESTION));
  });
}

test("embeddings", async () => {
  const embeddings = new OpenAIEmbeddings({ ...connection, model: OUTPOST_EMBED });
  const [vector] = await embeddings.embedDocuments(["the sea", "interest rates"]);
  assert.ok(vector.length === 384 && cosine(vector, await plainVector("the sea")) > 0.9999);
  assert.ok(cosine(await embeddings.embedQuery("the sea"), vector) > 0.9999);
});

test("an unknown model", async () => {
  const request = new ChatOpenAI({ ...connection, model: "nobody" }).invoke(GREETING);
  await assert.rejects(request, (error) => error.lc_error_code === "MODEL_NOT_FOUND" && UNKNOWN_MODEL.test(error.message));
});
