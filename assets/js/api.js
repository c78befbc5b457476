// Calls of the API, as any client makes them: a Bearer key, JSON, errors in one shape.

import { events } from "./sse.js";
import { session } from "./session.js";
import { t } from "./strings.js";

/** An answer that is no success, or none at all. */
export class ApiError extends Error {
  constructor({ message, status = 0, code = "", param = null, requestId = null, retryAfter = null }) {
    super(message);
    Object.assign(this, { status, code, param, requestId, retryAfter });
  }
}

async function failure(answer) {
  const requestId = answer.headers.get("x-request-id");
  const retryAfter = answer.headers.get("retry-after");
  const text = await answer.text().catch(() => "");
  let told = {};
  try {
    told = JSON.parse(text).error ?? {};
  } catch {
    // Something between the browser and the server answered.
  }
  const message = told.message ?? t.errors.status(answer.status);
  return new ApiError({ message, status: answer.status, code: told.code, param: told.param, requestId, retryAfter });
}

/** Sends a request; the answer is a success, or this throws an `ApiError`. */
export async function send(method, path, { body, query, headers = {}, signal, key = session.key, mount = "/v1" } = {}) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const form = body instanceof FormData;
  const sent = { authorization: `Bearer ${key}`, ...headers };
  if (body !== undefined && !form) sent["content-type"] = "application/json";
  let answer;
  try {
    const content = body === undefined ? undefined : form ? body : JSON.stringify(body);
    answer = await fetch(`${mount}${path}${search}`, { method, headers: sent, body: content, signal, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError({ message: t.errors.unreachable, code: "unreachable" });
  }
  if (answer.ok) return answer;
  const error = await failure(answer);
  // A key that was revoked or has expired meanwhile.
  if (error.status === 401 && key === session.key && session.me) session.end();
  throw error;
}

const json = async (...request) => (await send(...request)).json();

export const get = (path, query, options) => json("GET", path, { query, ...options });
export const post = (path, body, options) => json("POST", path, { body, ...options });
export const put = (path, body, options) => json("PUT", path, { body, ...options });
export const patch = (path, body, options) => json("PATCH", path, { body, ...options });
export const remove = (path, options) => json("DELETE", path, options);

/** All items of a list, page by page, up to `most`. */
export async function all(path, query = {}, most = 1000) {
  const items = [];
  let cursor;
  do {
    const page = await get(path, { limit: 100, ...query, cursor });
    items.push(...page.data);
    cursor = page.has_more ? page.next_cursor : undefined;
  } while (cursor && items.length < most);
  return items;
}

/** Server-sent events of a POST: `{name, data}`, `data` parsed. Ends when the server does or `signal` says so. */
export async function* stream(path, body, signal) {
  const answer = await send("POST", path, { body, signal });
  for await (const event of events(answer.body)) {
    if (event.data === "[DONE]") return;
    const data = JSON.parse(event.data);
    if (data.error) throw new ApiError({ ...data.error, requestId: data.error.request_id });
    yield { name: event.name, data };
  }
}

/** Saves an answer as a file of the user's. */
export async function download(path, query, headers, name) {
  const answer = await send("GET", path, { query, headers });
  saveBlob(name, await answer.blob());
}

export function saveBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
