// Sign-in, scopes, host names, and security headers.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { connect } from "node:net";
import { test } from "node:test";
import { CHAT_MODEL, countBytes, goTo, startServer, signIn, setUp, openPage } from "./harness.mjs";

let server, browser;
setUp((found) => ({ server, browser } = found));

/** Sends a request with a `Host` header. Returns the response as text. */
const requestAs = (url, host, path = "/") => new Promise((resolve, reject) => {
  const { hostname, port } = new URL(url);
  let response = "";
  const socket = connect(Number(port), hostname, () => socket.write(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`));
  socket.on("data", (bytes) => (response += bytes)).on("end", () => resolve(response)).on("error", reject);
});

test("a wrong key is rejected with a message and the request ID", async () => {
  const { context, page } = await openPage(browser, server.url);
  await page.goto(server.url);
  await page.getByLabel("API key").fill("opk_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  const alert = page.getByRole("alert");
  assert.match(await alert.textContent(), /API key[^]*req_[0-9a-f]{32}/);
  await context.close();
});

test("a session lasts until sign-out and stays in one tab", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  await signIn(page, server.url, server.key);
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "Get started" }).waitFor();
  assert.equal(await page.evaluate(() => localStorage.length), 0);
  assert.equal((await context.cookies()).length, 0);
  const other = await context.newPage();
  await other.goto(server.url);
  await other.getByLabel("API key").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.getItem("outpost.key")), null);
  assert.deepEqual(problems, []);
  await context.close();
});

test("revoking the key ends the session", async () => {
  const { project_id } = await server.api("GET", "/me");
  const created = await server.api("POST", "/api-keys", { name: "short", project_id });
  const { context, page } = await openPage(browser, server.url);
  await signIn(page, server.url, created.secret);
  await server.api("DELETE", `/api-keys/${created.id}`);
  await page.evaluate(() => (location.hash = "#/keys"));
  await page.getByLabel("API key").waitFor();
  await context.close();
});

test("pages and actions outside of a key's scopes are hidden", async () => {
  const { project_id } = await server.api("GET", "/me");
  const visible = async (scopes) => {
    const { secret } = await server.api("POST", "/api-keys", { name: scopes.join(), project_id, scopes });
    const { context, page, problems } = await openPage(browser, server.url);
    await signIn(page, server.url, secret);
    const names = await page.getByRole("navigation").getByRole("link").allTextContents();
    await goTo(page, "models", "Models");
    await page.getByText("all-minilm-l6-v2").first().waitFor();
    const loadButtons = await page.getByRole("button", { name: "Load", exact: false }).count();
    assert.deepEqual(problems, []);
    await context.close();
    return [names, loadButtons > 0];
  };
  assert.deepEqual(await visible(["inference"]), [["Get started", "Playground", "Models"], false]);
  const project = ["Get started", "Models", "Conversations", "Agents", "Fine-tuning", "API keys", "Usage", "Projects", "Audit log"];
  assert.deepEqual(await visible(["project"]), [project, false]);
  const admin = ["Get started", "Playground", "Models", "Conversations", "Agents", "Fine-tuning", "API keys", "Usage", "Live metrics", "Projects", "Audit log"];
  assert.deepEqual(await visible(["admin"]), [admin, true]);
});

test("every file has a restrictive content security policy", async () => {
  for (const path of ["/", "/assets/js/main.js", "/assets/app.css"]) {
    const { headers } = await fetch(server.url + path);
    const policy = headers.get("content-security-policy");
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"]) {
      assert.ok(policy.includes(part), `${part} of ${path}`);
    }
    assert.ok(!policy.includes("unsafe") && !policy.includes("*"));
    assert.equal(headers.get("x-content-type-options"), "nosniff");
    assert.equal(headers.get("referrer-policy"), "no-referrer");
    assert.equal(headers.get("access-control-allow-origin"), null);
  }
});

test("an injected script does not run", async () => {
  const { context, page } = await openPage(browser, server.url);
  await page.goto(server.url);
  const ran = await page.evaluate(async () => {
    const script = document.createElement("script");
    script.textContent = "globalThis.ran = true";
    document.head.append(script);
    const image = document.createElement("img");
    image.setAttribute("onerror", "globalThis.ran = true");
    image.src = "data:image/png;base64,AAAA";
    document.body.append(image);
    await new Promise((resolve) => setTimeout(resolve, 300));
    return globalThis.ran ?? false;
  });
  assert.equal(ran, false);
  await context.close();
});

test("another site can neither read a response nor send a key", async () => {
  const headers = { origin: "https://evil.example", authorization: `Bearer ${server.key}` };
  const read = await fetch(`${server.url}/v1/models`, { headers });
  assert.equal(read.headers.get("access-control-allow-origin"), null);
  const preflight = await fetch(`${server.url}/v1/models`, { method: "OPTIONS", headers: { ...headers, "access-control-request-method": "POST", "access-control-request-headers": "authorization" } });
  assert.notEqual(preflight.status, 200);
  assert.equal(preflight.headers.get("access-control-allow-origin"), null);
});

test("a page of an allowed origin can call the API and read headers, errors and streams", async () => {
  const app = createServer((_, response) => response.setHeader("content-type", "text/html").end("<title>App</title>"));
  await new Promise((resolve) => app.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${app.address().port}`;
  const open = await startServer({ args: ["--cors-origin", origin] });
  const { context, page } = await openPage(browser, origin);
  try {
    const ask = (url, key, body) => page.evaluate(async ([url, key, body]) => {
      const headers = { authorization: `Bearer ${key}`, "content-type": "application/json", "x-stainless-lang": "js" };
      const response = await fetch(url, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
      return [response.status, response.headers.get("x-request-id")?.slice(0, 4), (await response.text()).trim().slice(-12)];
    }, [url, key, body]);
    await page.goto(origin);
    const chat = { model: CHAT_MODEL, messages: [{ role: "user", content: "Hello" }], max_completion_tokens: 4, stream: true };
    assert.deepEqual(await ask(`${open.url}/openai/v1/chat/completions`, open.key, chat), [200, "req_", "data: [DONE]"]);
    assert.deepEqual((await ask(`${open.url}/v1/models`, "opk_wrong")).slice(0, 2), [401, "req_"]);
    // The other server allows no origin.
    await assert.rejects(ask(`${server.url}/v1/models`, server.key), /Failed to fetch/);
  } finally {
    await context.close();
    await open.stop();
    app.close();
  }
});

test("a host name that anyone could register is rejected", async () => {
  const { port } = new URL(server.url);
  for (const path of ["/", "/v1/models", "/healthz", "/assets/js/main.js"]) {
    for (const host of ["evil.example", `evil.example:${port}`, "127.0.0.1.nip.io", "localhost.evil.example"]) {
      const response = await requestAs(server.url, host, path);
      assert.match(response, /^HTTP\/1.1 421 /, `${host}${path}`);
      assert.match(response, /misdirected_request[^]*req_/);
      assert.match(response, /--allowed-host/);
    }
  }
  for (const host of ["localhost", `127.0.0.1:${port}`, "[::1]", "workstation", "box.local"]) {
    assert.match(await requestAs(server.url, host), /^HTTP\/1.1 200 /, host);
  }
});

test("a configured host name is accepted", async () => {
  const configured = await startServer({ withoutModels: true, args: ["--allowed-host", "ai.example.org", "--public-url", "https://gpu.example.com/ai"] });
  try {
    for (const [host, status] of [["ai.example.org", 200], ["gpu.example.com", 200], ["evil.example", 421]]) {
      const response = await requestAs(configured.url, host, "/healthz");
      assert.ok(response.startsWith(`HTTP/1.1 ${status} `), host);
    }
  } finally {
    await configured.stop();
  }
});

test("files are small, compressed, and revalidated by ETag", async () => {
  const plain = await fetch(`${server.url}/assets/vendor/preact.js`, { headers: { "accept-encoding": "identity" } });
  const compressed = await fetch(`${server.url}/assets/vendor/preact.js`, { headers: { "accept-encoding": "gzip" } });
  assert.equal(compressed.headers.get("content-encoding"), "gzip");
  assert.equal(await plain.text(), await compressed.text());
  const revalidated = await fetch(`${server.url}/assets/vendor/preact.js`, { headers: { "if-none-match": plain.headers.get("etag") } });
  assert.equal(revalidated.status, 304);
  assert.equal((await fetch(`${server.url}/assets/nothing.js`)).status, 404);
  assert.equal((await fetch(`${server.url}/`, { method: "POST" })).status, 405);
  assert.equal((await fetch(`${server.url}/`, { method: "HEAD" })).status, 200);

  const { context, page, problems } = await openPage(browser, server.url);
  const count = await countBytes(context, page);
  await signIn(page, server.url, server.key);
  await page.waitForLoadState("networkidle");
  assert.ok(count.bytes > 10_000 && count.bytes < 200 * 1024, `${count.bytes} bytes`);
  assert.deepEqual(problems, []);
  await context.close();
});

test("an unreachable server is reported, and a retry recovers", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  await signIn(page, server.url, server.key);
  await context.setOffline(true);
  await page.evaluate(() => (location.hash = "#/agents"));
  const alert = page.getByRole("alert");
  assert.match(await alert.textContent(), /Cannot reach the server/);
  await context.setOffline(false);
  await alert.getByRole("button", { name: "Try again" }).click();
  await page.getByText("No agents yet").waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});
