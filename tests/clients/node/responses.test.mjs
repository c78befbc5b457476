// Node's openai package and the AI SDK against the Responses API.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { apiKey, baseURL, OUTPOST_CHAT, OUTPOST_KEY, OUTPOST_URL, QUESTION, Visit } from "./visit.mjs";

for (const mount of ["/v1", "/openai/v1"]) {
  const { responses } = new OpenAI({ baseURL: OUTPOST_URL + mount, apiKey: OUTPOST_KEY, maxRetries: 0 });
  const request = { model: OUTPOST_CHAT, input: QUESTION, temperature: 0, max_output_tokens: 24 };

  test(`${mount}: a response, and the same response as a stream`, async () => {
    const whole = await responses.create(request);
    const stream = responses.stream(request);
    let text = "";
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    const final = await stream.finalResponse();
    assert.ok(text.length > 0);
    assert.equal(text, whole.output_text);
    assert.equal(final.output_text, text);
    assert.deepEqual(final.usage.output_tokens, whole.usage.output_tokens);
  });

  test(`${mount}: a parsed response`, async () => {
    const text = { format: zodTextFormat(Visit, "visit") };
    const parsed = await responses.parse({ ...request, max_output_tokens: 80, text });
    Visit.parse(parsed.output_parsed);
  });

  test(`${mount}: stored responses`, async () => {
    const first = await responses.create(request);
    const next = await responses.create({ ...request, input: "And then?", previous_response_id: first.id });
    assert.equal((await responses.retrieve(next.id)).output_text, next.output_text);
    const items = [];
    for await (const item of responses.inputItems.list(next.id)) items.push(item.content[0].text);
    assert.deepEqual(items, ["And then?"]);
    await responses.delete(first.id);
    await assert.rejects(responses.create({ ...request, previous_response_id: first.id }), OpenAI.BadRequestError);
  });

  test(`${mount}: responses in the background`, async () => {
    const whole = await responses.create(request);
    let response = await responses.create({ ...request, background: true });
    assert.equal(response.status, "queued");
    while (["queued", "in_progress"].includes(response.status)) {
      await setTimeout(50);
      response = await responses.retrieve(response.id);
    }
    assert.equal(response.output_text, whole.output_text);
    const events = [];
    for await (const event of await responses.create({ ...request, background: true, stream: true })) events.push(event);
    const { id } = events[0].response;
    const rest = [];
    for await (const event of await responses.retrieve(id, { stream: true, starting_after: 4 })) rest.push(event);
    assert.deepEqual(rest, events.slice(5));
    assert.equal((await responses.cancel(id)).output[0].content[0].text, whole.output_text);
  });

  test(`${mount}: a compacted conversation`, async () => {
    const compacted = await responses.compact({ model: OUTPOST_CHAT, input: QUESTION });
    assert.equal(compacted.output.at(-1).type, "compaction");
    const input = [...compacted.output, { role: "user", content: "Go on." }];
    assert.ok((await responses.create({ ...request, input })).output_text);
  });
}

// The AI SDK sends earlier items as references.
const outpost = createOpenAI({ baseURL, apiKey });
const prompt = { model: outpost(OUTPOST_CHAT), prompt: QUESTION, temperature: 0, maxOutputTokens: 80, maxRetries: 0 };

test("AI SDK: a tool is called, and its result is sent with a reference to the call", async () => {
  const places = [];
  const visit = tool({
    description: "Look at a place.",
    inputSchema: z.object({ place: z.enum(["sea", "land"]) }),
    execute: async ({ place }) => {
      places.push(place);
      return "calm";
    },
  });
  const prepareStep = async ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
  const { steps } = await generateText({ ...prompt, tools: { visit }, prepareStep, stopWhen: stepCountIs(2) });
  assert.equal(places.length, 1);
  assert.equal(steps.length, 2);
});
