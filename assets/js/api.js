// The HTTP client of the dashboard. It uses the public API: a Bearer key, JSON, and one error shape.

import { events } from "./sse.js";
import { session } from "./session.js";
import { t } from "./strings.js";

/** An unsuccessful response, or no response at all (`code` is `unreachable`). */
export class ApiError extends Error {
  constructor({ message, status = 0, code = "", param = null, requestId = null, retryAfter = null }) {
    super(message);
    Object.assign(this, { status, code, param, requestId, retryAfter });
  }
}

async function toApiError(response) {
  const requestId = response.headers.get("x-request-id");
  const retryAfter = response.headers.get("retry-after");
  const text = await response.text().catch(() => "");
  let details = {};
  try {
    details = JSON.parse(text).error ?? {};
  } catch {
    // The response came from a proxy, not from the server.
  }
  const message = details.message ?? t.errors.status(response.status);
  return new ApiError({ message, status: response.status, code: details.code, param: details.param, requestId, retryAfter });
}

/** Sends a request. Returns a successful response or throws an `ApiError`. */
export async function send(method, path, { body, query, headers = {}, signal, key = session.key, mount = "/v1" } = {}) {
  const params = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = params.length ? `?${new URLSearchParams(params)}` : "";
  const isForm = body instanceof FormData;
  const requestHeaders = { ...(key && { authorization: `Bearer ${key}` }), ...headers };
  if (body !== undefined && !isForm) requestHeaders["content-type"] = "application/json";
  let response;
  try {
    const content = body === undefined ? undefined : isForm ? body : JSON.stringify(body);
    response = await fetch(`${mount}${path}${search}`, { method, headers: requestHeaders, body: content, signal, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError({ message: t.errors.unreachable, code: "unreachable" });
  }
  if (response.ok) return response;
  const error = await toApiError(response);
  // The key has been revoked or has expired.
  if (error.status === 401 && key === session.key && session.me) session.signOut();
  throw error;
}

/**
 * A template tag for paths: escapes each value, so that an ID from the URL hash stays one segment of the path. A browser
 * resolves segments of dots even if they are escaped; they become a hyphen, which is no ID.
 */
export const apiPath = (strings, ...values) => String.raw({ raw: strings }, ...values.map((value) => encodeURIComponent(value).replace(/^\.{1,2}$/, "-")));

const json = async (...request) => (await send(...request)).json();

export const get = (path, query, options) => json("GET", path, { query, ...options });
export const post = (path, body, options) => json("POST", path, { body, ...options });
export const put = (path, body, options) => json("PUT", path, { body, ...options });
export const patch = (path, body, options) => json("PATCH", path, { body, ...options });
export const remove = (path, options) => json("DELETE", path, options);

/** Reads all pages of a list, up to `max` items. */
export async function all(path, query = {}, max = 1000) {
  const items = [];
  let cursor;
  do {
    const page = await get(path, { limit: 100, ...query, cursor });
    items.push(...page.data);
    cursor = page.has_more ? page.next_cursor : undefined;
  } while (cursor && items.length < max);
  return items;
}

/** Yields the server-sent events of a POST as `{name, data}`, with parsed `data`, until the stream ends or `signal` aborts it. */
export async function* stream(path, body, signal) {
  const response = await send("POST", path, { body, signal });
  for await (const event of events(response.body)) {
    if (event.data === "[DONE]") return;
    const data = JSON.parse(event.data);
    if (data.error) throw new ApiError({ ...data.error, requestId: data.error.request_id });
    yield { name: event.name, data };
  }
}

/** Downloads a response as a file. */
export async function download(path, query, headers, name) {
  const response = await send("GET", path, { query, headers });
  downloadBlob(name, await response.blob());
}

export function downloadBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
