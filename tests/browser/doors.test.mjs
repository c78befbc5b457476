// Who comes in, by which name, and what the door tells the browser to keep out.

import assert from "node:assert/strict";
import { connect } from "node:net";
import { test } from "node:test";
import { counting, go, serve, signIn, stage, visit } from "./harness.mjs";

let server, browser;
stage((found) => ({ server, browser } = found));

/** The answer to a request under a name that is given, as text. */
const ask = (url, host, path = "/") => new Promise((done, failed) => {
  const { hostname, port } = new URL(url);
  let told = "";
  const socket = connect(Number(port), hostname, () => socket.write(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`));
  socket.on("data", (bytes) => (told += bytes)).on("end", () => done(told)).on("error", failed);
});

test("a wrong key is refused in words, with the request's id", async () => {
  const { context, page } = await visit(browser, server.url);
  await page.goto(server.url);
  await page.getByLabel("API key").fill("opk_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  const told = page.getByRole("alert");
  await told.waitFor();
  assert.match(await told.textContent(), /API key[^]*req_[0-9a-f]{32}/);
  await context.close();
});

test("a key opens the door until it is closed, in one tab", async () => {
  const { context, page, wrong } = await visit(browser, server.url);
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
  assert.deepEqual(wrong, []);
  await context.close();
});

test("a key that is revoked meanwhile ends the visit", async () => {
  const { project_id } = await server.api("GET", "/me");
  const made = await server.api("POST", "/api-keys", { name: "short", project_id });
  const { context, page } = await visit(browser, server.url);
  await signIn(page, server.url, made.secret);
  await server.api("DELETE", `/api-keys/${made.id}`);
  await page.evaluate(() => (location.hash = "#/keys"));
  await page.getByLabel("API key").waitFor();
  await context.close();
});

test("what a key may not do is not shown", async () => {
  const { project_id } = await server.api("GET", "/me");
  const pages = async (scopes) => {
    const { secret } = await server.api("POST", "/api-keys", { name: scopes.join(), project_id, scopes });
    const { context, page, wrong } = await visit(browser, server.url);
    await signIn(page, server.url, secret);
    const names = await page.getByRole("navigation").getByRole("link").allTextContents();
    await go(page, "models", "Models");
    await page.getByText("all-minilm-l6-v2").first().waitFor();
    const loads = await page.getByRole("button", { name: "Load", exact: false }).count();
    assert.deepEqual(wrong, []);
    await context.close();
    return [names, loads > 0];
  };
  assert.deepEqual(await pages(["inference"]), [["Get started", "Playground", "Models"], false]);
  const own = ["Get started", "Models", "Conversations", "Agents", "Fine-tuning", "API keys", "Usage", "Projects", "Audit log"];
  assert.deepEqual(await pages(["project"]), [own, false]);
  const all = ["Get started", "Playground", "Models", "Conversations", "Agents", "Fine-tuning", "API keys", "Usage", "Live metrics", "Projects", "Audit log"];
  assert.deepEqual(await pages(["admin"]), [all, true]);
});

test("every file comes with a policy that keeps strangers out", async () => {
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

test("a script that gets into the page is not run", async () => {
  const { context, page } = await visit(browser, server.url);
  await page.goto(server.url);
  const ran = await page.evaluate(async () => {
    const script = document.createElement("script");
    script.textContent = "globalThis.ran = true";
    document.head.append(script);
    const image = document.createElement("img");
    image.setAttribute("onerror", "globalThis.ran = true");
    image.src = "data:image/png;base64,AAAA";
    document.body.append(image);
    await new Promise((done) => setTimeout(done, 300));
    return globalThis.ran ?? false;
  });
  assert.equal(ran, false);
  await context.close();
});

test("no other site may read an answer, nor ask with a key", async () => {
  const headers = { origin: "https://evil.example", authorization: `Bearer ${server.key}` };
  const read = await fetch(`${server.url}/v1/models`, { headers });
  assert.equal(read.headers.get("access-control-allow-origin"), null);
  const asked = await fetch(`${server.url}/v1/models`, { method: "OPTIONS", headers: { ...headers, "access-control-request-method": "POST", "access-control-request-headers": "authorization" } });
  assert.notEqual(asked.status, 200);
  assert.equal(asked.headers.get("access-control-allow-origin"), null);
});

test("a name that a stranger may own is not answered", async () => {
  const { port } = new URL(server.url);
  for (const path of ["/", "/v1/models", "/healthz", "/assets/js/main.js"]) {
    for (const host of ["evil.example", `evil.example:${port}`, "127.0.0.1.nip.io", "localhost.evil.example"]) {
      const told = await ask(server.url, host, path);
      assert.match(told, /^HTTP\/1.1 421 /, `${host}${path}`);
      assert.match(told, /misdirected_request[^]*req_/);
      assert.match(told, /--allowed-host/);
    }
  }
  for (const host of ["localhost", `127.0.0.1:${port}`, "[::1]", "workstation", "box.local"]) {
    assert.match(await ask(server.url, host), /^HTTP\/1.1 200 /, host);
  }
});

test("a name that the operator gives is answered", async () => {
  const named = await serve({ bare: true, more: ["--allowed-host", "ai.example.org", "--public-url", "https://gpu.example.com/ai"] });
  try {
    for (const [host, status] of [["ai.example.org", 200], ["gpu.example.com", 200], ["evil.example", 421]]) {
      const answer = await ask(named.url, host, "/healthz");
      assert.ok(answer.startsWith(`HTTP/1.1 ${status} `), host);
    }
  } finally {
    await named.stop();
  }
});

test("files are small, asked for once, and told apart by version", async () => {
  const plain = await fetch(`${server.url}/assets/vendor/uplot.js`, { headers: { "accept-encoding": "identity" } });
  const packed = await fetch(`${server.url}/assets/vendor/uplot.js`, { headers: { "accept-encoding": "gzip" } });
  assert.equal(packed.headers.get("content-encoding"), "gzip");
  assert.equal(await plain.text(), await packed.text());
  const again = await fetch(`${server.url}/assets/vendor/uplot.js`, { headers: { "if-none-match": plain.headers.get("etag") } });
  assert.equal(again.status, 304);
  assert.equal((await fetch(`${server.url}/assets/nothing.js`)).status, 404);
  assert.equal((await fetch(`${server.url}/`, { method: "POST" })).status, 405);
  assert.equal((await fetch(`${server.url}/`, { method: "HEAD" })).status, 200);

  const { context, page, wrong } = await visit(browser, server.url);
  const count = await counting(context, page);
  await signIn(page, server.url, server.key);
  await page.waitForLoadState("networkidle");
  assert.ok(count.bytes > 10_000 && count.bytes < 200 * 1024, `${count.bytes} bytes`);
  assert.deepEqual(wrong, []);
  await context.close();
});

test("a server that is gone is told of, and found again", async () => {
  const { context, page, wrong } = await visit(browser, server.url);
  await signIn(page, server.url, server.key);
  await context.setOffline(true);
  await page.evaluate(() => (location.hash = "#/agents"));
  const told = page.getByRole("alert");
  await told.waitFor();
  assert.match(await told.textContent(), /Cannot reach the server/);
  await context.setOffline(false);
  await told.getByRole("button", { name: "Try again" }).click();
  await page.getByText("No agents yet").waitFor();
  assert.deepEqual(wrong, []);
  await context.close();
});
