// The tool, question and connection that the suites of all packages share.

import { z } from "zod";

export const { OUTPOST_CHAT, OUTPOST_EMBED, OUTPOST_KEY, OUTPOST_URL } = process.env;
export const baseURL = `${OUTPOST_URL}/openai/v1`;
export const apiKey = OUTPOST_KEY;
export const GREETING = "Say hello.";
export const QUESTION = "Visit the sea for ten minutes.";
export const UNKNOWN_MODEL = /No model 'nobody' is installed/;
export const Visit = z.strictObject({ place: z.enum(["sea", "land"]), minutes: z.int().min(1).max(60) });

const dot = (a, b) => a.reduce((sum, x, index) => sum + x * b[index], 0);
export const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));

// The vector of a text, requested without any package.
export async function plainVector(text) {
  const headers = { Authorization: `Bearer ${apiKey}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ model: OUTPOST_EMBED, input: text });
  const response = await fetch(`${baseURL}/embeddings`, { method: "POST", headers, body });
  return (await response.json()).data[0].embedding;
}

export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
