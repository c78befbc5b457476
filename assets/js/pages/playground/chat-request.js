// Chat requests, and the responses assembled from their chunks.

import { stream } from "../../api.js";
import { fromJson } from "../../json.js";
import { t } from "../../strings.js";
import { throttle } from "../../ui.js";

// Minimum time between two updates of a streamed response.
const UPDATE_MS = 50;

/** Settings that are numbers. */
export const NUMBERS = ["temperature", "top_p", "max_completion_tokens", "seed"];
export const DEFAULTS = { model: "", agent: "", conversation: "", system: "", format: "text", schema: "", tools: "", tool_choice: "auto", ...Object.fromEntries(NUMBERS.map((name) => [name, ""])) };

/** The request's fields other than the messages. Throws if a field is not valid JSON. */
export function parameters(settings, fallback) {
  const body = { model: settings.model || (settings.agent ? undefined : fallback) };
  if (settings.agent) body.agent_id = settings.agent;
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: fromJson(t.chat.schema, settings.schema) ?? {} } };
  }
  if (settings.tools.trim()) body.tools = fromJson(t.chat.tools, settings.tools);
  if (settings.tool_choice !== "auto") body.tool_choice = settings.tool_choice;
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

/** Adds a chunk to the assistant message received so far. `positions`: those of the tool calls by their index, which another server may choose as it likes. */
function appendChunk(reply, chunk, positions) {
  const next = { ...reply, usage: chunk.usage ?? reply.usage };
  const choice = chunk.choices[0];
  if (!choice) return next;
  for (const field of ["content", "reasoning_content"]) if (choice.delta[field]) next[field] = (next[field] ?? "") + choice.delta[field];
  for (const part of choice.delta.tool_calls ?? []) {
    const calls = (next.tool_calls ??= []);
    if (!positions.has(part.index)) positions.set(part.index, calls.length);
    const at = positions.get(part.index);
    const call = calls[at] ?? { id: part.id, type: "function", function: { name: part.function.name, arguments: "" } };
    calls[at] = { ...call, function: { ...call.function, arguments: call.function.arguments + (part.function.arguments ?? "") } };
  }
  next.finish = choice.finish_reason ?? next.finish;
  return next;
}

/** Streams a response and returns it; its `finish` is `stopped` if `signal` aborts it. `update` gets the response received so far. */
export async function streamReply(body, signal, update) {
  const started = performance.now();
  let [reply, firstChunk] = [{ role: "assistant" }, null];
  const positions = new Map();
  const show = throttle(UPDATE_MS, update);
  try {
    for await (const { data } of stream("/chat/completions", body, signal)) {
      firstChunk ??= performance.now();
      reply = appendChunk(reply, data, positions);
      show(reply);
    }
  } catch (problem) {
    if (problem.name !== "AbortError") throw problem;
    reply = { ...reply, finish: "stopped" };
  } finally {
    show.cancel();
  }
  return { ...reply, seconds: (performance.now() - (firstChunk ?? started)) / 1000 };
}

/** A message with only the fields of the API. Only tool calls may stand without content. */
export const toApi = ({ role, name, content, tool_calls, tool_call_id }) => ({ role, name, content: content ?? (tool_calls ? null : ""), tool_calls, tool_call_id });
