// Node's openai package against the Batch API.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

import { apiKey, baseURL, OUTPOST_CHAT } from "./visit.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const OPEN = ["validating", "in_progress", "finalizing", "cancelling"];

async function create(count, more) {
  const request = (_, index) => {
    const body = { model: OUTPOST_CHAT, input: `Say ${index}.`, temperature: 0, max_output_tokens: 4, ...more };
    return JSON.stringify({ custom_id: `request-${index}`, method: "POST", url: "/v1/responses", body });
  };
  const content = Array.from({ length: count }, request).join("\n");
  const file = await client.files.create({ file: await toFile(Buffer.from(content), "requests.jsonl"), purpose: "batch" });
  return client.batches.create({ input_file_id: file.id, endpoint: "/v1/responses", completion_window: "24h" });
}

async function ended(batch) {
  while (OPEN.includes(batch.status)) {
    await setTimeout(100);
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

test("a batch of responses", async () => {
  const batch = await ended(await create(3));
  assert.deepEqual([batch.status, batch.request_counts], ["completed", { total: 3, completed: 3, failed: 0 }]);
  const lines = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((line) => line.custom_id), ["request-0", "request-1", "request-2"]);
  const waited = await client.responses.create({ model: OUTPOST_CHAT, input: "Say 1.", temperature: 0, max_output_tokens: 4 });
  assert.deepEqual(lines[1].response.body.output[0].content, waited.output[0].content);
  const listed = [];
  for await (const found of client.batches.list({ limit: 1 })) listed.push(found.id);
  assert.ok(listed.includes(batch.id));
});

test("a batch is cancelled", async () => {
  const batch = await create(40, { max_output_tokens: 500, ignore_eos: true });
  assert.equal((await client.batches.cancel(batch.id)).status, "cancelling");
  assert.equal((await ended(batch)).status, "cancelled");
});
