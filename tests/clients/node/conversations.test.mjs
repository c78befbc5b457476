// Node's openai package against conversations and responses that continue them.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

import { apiKey, baseURL, OUTPOST_CHAT, QUESTION } from "./visit.mjs";

const { conversations, responses } = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const request = { model: OUTPOST_CHAT, temperature: 0, max_output_tokens: 24 };
const user = (content) => ({ type: "message", role: "user", content });

async function listed(conversation) {
  const items = [];
  for await (const item of conversations.items.list(conversation, { order: "asc", limit: 2 })) items.push(item);
  return items;
}

test("a conversation and its items", async () => {
  const created = await conversations.create({ items: [user("a")], metadata: { topic: "demo" } });
  assert.equal(created.object, "conversation");
  const added = await conversations.items.create(created.id, { items: [user("b"), user("c")] });
  assert.deepEqual(added.data.map((item) => item.content[0].text), ["b", "c"]);
  assert.deepEqual(await conversations.items.retrieve(added.first_id, { conversation_id: created.id }), added.data[0]);
  await conversations.items.delete(added.first_id, { conversation_id: created.id });
  assert.deepEqual((await listed(created.id)).map((item) => item.content[0].text), ["a", "c"]);
  assert.deepEqual((await conversations.update(created.id, { metadata: { topic: "other" } })).metadata, { topic: "other" });
  assert.equal((await conversations.retrieve(created.id)).created_at, created.created_at);
  assert.equal((await conversations.delete(created.id)).deleted, true);
  await assert.rejects(conversations.retrieve(created.id), OpenAI.NotFoundError);
});

test("two turns of responses, whole and streamed", async () => {
  const { id } = await conversations.create();
  const whole = await responses.create({ ...request, input: QUESTION, conversation: id });
  assert.equal(whole.conversation.id, id);
  const stream = responses.stream({ ...request, input: "And then?", conversation: { id } });
  const final = await stream.finalResponse();
  const texts = (await listed(id)).map((item) => item.content[0].text);
  assert.deepEqual(texts, [QUESTION, whole.output_text, "And then?", final.output_text]);
});
