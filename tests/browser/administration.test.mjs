// Projects, API keys, limits, usage, audit log and live metrics.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { CHAT_MODEL, finders, goTo, signIn, setUp, openPage } from "./harness.mjs";

let server, browser, context, page, problems, project;
setUp(async (started) => {
  ({ server, browser } = started);
  ({ context, page, problems } = await openPage(browser, server.url));
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.url });
  await signIn(page, server.url, server.key);
  ({ project_id: project } = await server.api("GET", "/me"));
});

const { dialog, row, click } = finders(() => page);
const statusWith = async (secret) => (await fetch(`${server.url}/v1/models`, { headers: { authorization: `Bearer ${secret}` } })).status;

/** Copies the secret in the dialog and returns it. */
async function copySecret() {
  await click("Copy", dialog());
  await dialog().getByRole("button", { name: "Copied" }).waitFor();
  return page.evaluate(() => navigator.clipboard.readText());
}

/** Fills the fields of the dialog, or selects options by label. */
async function fill(fields) {
  for (const [label, value] of Object.entries(fields)) {
    const field = dialog().getByLabel(label, { exact: true });
    if ((await field.evaluate((element) => element.tagName)) === "SELECT") await field.selectOption({ label: value });
    else await field.fill(value);
  }
}

/** The file that an action downloads. */
async function download(action) {
  const [file] = await Promise.all([page.waitForEvent("download"), action()]);
  return { name: file.suggestedFilename(), text: await readFile(await file.path(), "utf8") };
}

test("a key is created, copied, edited, rotated with a grace period, and revoked", async () => {
  await goTo(page, "keys", "API keys");
  await click("Create API key");
  await fill({ Name: "billing" });
  await dialog().getByLabel(CHAT_MODEL).check();
  await click("Create", dialog());
  await dialog().getByText("Save this key now").waitFor();
  const secret = await copySecret();
  assert.match(secret, /^opk_/);
  assert.equal(await statusWith(secret), 200);
  await click("Done");
  await row("billing").getByText("active").waitFor();
  await row("billing").getByText(`only ${CHAT_MODEL}`).waitFor();
  assert.ok(!(await page.content()).includes(secret), "the page no longer contains the secret");

  await row("billing").getByRole("button", { name: /^Edit/ }).click();
  const later = new Date(Date.now() + 90 * 86_400_000).toISOString().slice(0, 16);
  await fill({ Name: "billing, production", Expires: later });
  await click("Save", dialog());
  await row("billing, production").waitFor();
  const listed = async () => (await server.api("GET", `/api-keys?project_id=${project}`)).data.find((key) => key.name.startsWith("billing"));
  assert.equal(new Date((await listed()).expires_at).getTime(), new Date(later).getTime());
  await page.reload();
  assert.match(await row("billing").getByRole("cell").nth(3).textContent(), /sec|now/, "the time of its last use is shown");

  await row("billing").getByRole("button", { name: /^Rotate/ }).click();
  await fill({ "Grace period": "1 hour", Reason: "a laptop was lost" });
  await click("Rotate", dialog());
  await dialog().getByText("Save this key now").waitFor();
  const rotated = await copySecret();
  await click("Done");
  await row("billing").getByText("rotating").waitFor();
  assert.notEqual(rotated, secret);
  assert.deepEqual([await statusWith(secret), await statusWith(rotated)], [200, 200]);

  await row("billing").getByRole("button", { name: /^Revoke/ }).click();
  await dialog().getByText("cannot be undone").waitFor();
  await click("Revoke", dialog());
  await row("billing").getByText("revoked").waitFor();
  assert.deepEqual([await statusWith(secret), await statusWith(rotated)], [401, 401]);
  assert.deepEqual(problems, []);
});

test("rotating the key of the session keeps the session", async () => {
  const { secret } = await server.api("POST", "/api-keys", { name: "own", project_id: project });
  const other = await openPage(browser, server.url);
  await signIn(other.page, server.url, secret);
  await goTo(other.page, "keys", "API keys");
  const own = other.page.getByRole("row").filter({ hasText: "Current session" });
  await own.getByRole("button", { name: /^Rotate/ }).click();
  await other.page.getByLabel("Grace period").selectOption({ label: "None: the old secret stops working immediately" });
  await other.page.getByRole("dialog").getByRole("button", { name: "Rotate", exact: true }).click();
  await other.page.getByRole("button", { name: "Done" }).click();
  assert.equal(await statusWith(secret), 401);
  await goTo(other.page, "agents", "Agents");
  await other.page.getByText("No agents yet").waitFor();
  await other.page.reload();
  await other.page.getByRole("heading", { level: 1, name: "Agents" }).waitFor();
  await other.context.close();
});

test("a validation error is shown in the dialog with the request ID", async () => {
  await goTo(page, "keys", "API keys");
  await click("Create API key");
  await fill({ Name: "late", Expires: "2001-01-01T00:00" });
  await click("Create", dialog());
  assert.match(await dialog().getByRole("alert").textContent(), /expires_at[^]*req_/);
  await click("Cancel", dialog());
  await dialog().waitFor({ state: "detached" });
});

test("a new key has the scope for applications, and the dialog explains the others", async () => {
  await goTo(page, "start", "Get started");
  await page.getByRole("link", { name: "Create API key" }).click();
  const scope = (name) => dialog().getByRole("checkbox", { name: new RegExp(`^${name}`) });
  await scope("inference").waitFor();
  assert.deepEqual(await Promise.all(["inference", "project", "admin"].map((name) => scope(name).isChecked())), [true, false, false]);
  await dialog().getByText("An application needs nothing else.").waitFor();
  await dialog().getByText("For its operators only.").waitFor();
  await dialog().getByText("Leave empty for no expiry.").waitFor();
  await fill({ Name: "an application" });
  await click("Create", dialog());
  await dialog().getByText("Save this key now").waitFor();
  const secret = await copySecret();
  await click("Done");
  assert.deepEqual((await server.api("GET", "/me", undefined, secret)).scopes, ["inference"]);
  await row("an application").waitFor();
  await page.reload();
  await row("an application").waitFor();
  assert.equal(await dialog().count(), 0, "the dialog is not opened again");
});

test("a table is sorted by its headers, also with the keyboard", async () => {
  for (const name of ["alpha", "Zulu", "mike"]) await server.api("POST", "/api-keys", { name, project_id: project, ...(name === "mike" ? { expires_at: new Date(Date.now() + 86_400_000).toISOString() } : {}) });
  await goTo(page, "start", "Get started");
  await goTo(page, "keys", "API keys");
  const names = async () => (await page.locator("tbody tr td:first-child strong").allTextContents()).filter((name) => ["alpha", "Zulu", "mike"].includes(name));
  const header = (name) => page.getByRole("columnheader", { name });
  await header("Name").getByRole("button").click();
  assert.deepEqual(await names(), ["alpha", "mike", "Zulu"]);
  assert.equal(await header("Name").getAttribute("aria-sort"), "ascending");
  await header("Name").getByRole("button").press("Enter");
  assert.deepEqual(await names(), ["Zulu", "mike", "alpha"]);
  assert.equal(await header("Name").getAttribute("aria-sort"), "descending");
  await header("Expires").getByRole("button").press("Space");
  assert.equal((await names())[0], "mike", "rows without a value come last");
  assert.equal(await header("Name").getAttribute("aria-sort"), null);
  assert.deepEqual(problems, []);
});

test("projects are created, renamed, limited and archived", async () => {
  await goTo(page, "projects", "Projects");
  await click("Create project");
  await fill({ Name: "Harbour", Environment: "development" });
  await click("Create", dialog());
  await row("Harbour").getByText("development").waitFor();
  await page.getByRole("link", { name: "Harbour" }).click();
  await page.getByRole("heading", { level: 1, name: "Harbour" }).waitFor();
  await click("Edit");
  await fill({ Name: "Harbour office" });
  await click("Save", dialog());
  await page.getByRole("heading", { level: 1, name: "Harbour office" }).waitFor();

  await page.getByRole("tab", { name: "Limits and quotas" }).click();
  const limits = page.getByRole("form", { name: "Limits" });
  const limit = (name) => limits.getByLabel(name, { exact: true });
  await limit("Requests per minute").fill("120");
  await limit("Tokens per month").fill("5000");
  await click("Save", limits);
  await limits.getByText("120 requests/min").waitFor();
  await limits.getByText("5,000 tokens/month").waitFor();
  await limits.getByText("Used this month: 0 of 5,000 tokens.").waitFor();
  await limit("Maximum: Requests per minute").fill("60");
  await click("Save", limits);
  await limits.getByText("60 requests/min", { exact: true }).waitFor();
  await limit("Requests per minute").fill("500");
  await click("Save", limits);
  assert.match(await limits.getByRole("alert").textContent(), /ceiling[^]*req_/);
  await limit("Requests per minute").fill("");
  await click("Save", limits);
  await page.waitForFunction(() => document.querySelector("form[aria-label='Limits'] .save-bar button").disabled);
  const quotas = page.getByRole("form", { name: "Quotas" });
  await quotas.getByLabel("Quota: Agents").fill("3");
  await quotas.getByLabel("Quota: Storage", { exact: true }).fill("2");
  await quotas.getByLabel("Unit of Quota: Storage").selectOption("MB");
  await click("Save", quotas);
  await page.waitForFunction(() => document.querySelector("form[aria-label='Quotas'] .save-bar button").disabled);
  const stored = (await server.api("GET", "/projects")).data.find((one) => one.name === "Harbour office");
  const saved = await server.api("GET", `/projects/${stored.id}/rate-limits`);
  assert.deepEqual([saved.requests_per_minute, saved.token_budget, saved.ceiling.requests_per_minute, saved.quotas.agents, saved.quotas.storage_bytes], [null, 5000, 60, 3, 2_000_000]);

  await click("Archive");
  await click("Archive", dialog());
  await page.getByRole("tab", { name: "Overview" }).click();
  await page.locator("dd").getByText("Archived", { exact: true }).waitFor();
  await goTo(page, "projects", "Projects");
  await row("Harbour office").getByText("Archived").waitFor();
  assert.deepEqual(problems, []);
});

test("a project's page has tabs for its keys, usage and audit log", async () => {
  const { id } = await server.api("POST", "/projects", { name: "Pier" });
  await goTo(page, "start", "Get started");
  await page.reload();
  await goTo(page, `projects/${id}`, "Pier");
  await page.locator(".stat").filter({ hasText: "Tokens this month" }).waitFor();
  // The arrow keys move between the tabs, and the focus stays on them.
  await page.getByRole("tab", { name: "Overview" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.getByText("No API keys yet").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "API keys");
  await click("Create API key");
  await fill({ Name: "crane" });
  await click("Create", dialog());
  await click("Done");
  await row("crane").waitFor();
  assert.equal((await server.api("GET", `/api-keys?project_id=${id}`)).data[0].name, "crane");
  await page.getByRole("tab", { name: "Usage" }).click();
  await page.getByText("No requests in this time range").waitFor();
  await page.getByRole("tab", { name: "Audit log" }).click();
  await row("api_key.created").getByText("crane").waitFor();
  await row("api_key.created").getByRole("button", { name: "View" }).click();
  await dialog().getByText('"name": "crane"').waitFor();
  await click("Close", dialog());
  await page.reload();
  await row("project.created").waitFor();
  assert.equal(await page.getByRole("tab", { name: "Audit log" }).getAttribute("aria-selected"), "true", "the tab is part of the address");
  await goTo(page, "projects/proj_unknown", "Project");
  await page.getByText("Project not found").waitFor();
  assert.deepEqual(problems, []);
});

test("keys and audit log can be used on a small screen", async () => {
  const small = await openPage(browser, server.url, { viewport: { width: 390, height: 844 } });
  await signIn(small.page, server.url, server.key);
  await goTo(small.page, "keys", "API keys");
  const isInside = async (locator) => {
    const { x, width } = await locator.boundingBox();
    return x >= 0 && x + width <= 390;
  };
  const key = small.page.getByRole("row").filter({ hasText: "mike" });
  for (const name of [/^Edit/, /^Rotate/, /^Revoke/]) assert.ok(await isInside(key.getByRole("button", { name })), String(name));
  await key.getByRole("button", { name: /^Edit/ }).click();
  await small.page.getByRole("dialog").getByLabel("Name").waitFor();
  await small.page.keyboard.press("Escape");
  await goTo(small.page, "audit", "Audit log");
  const action = small.page.getByLabel("Action");
  await action.waitFor({ state: "hidden" });
  await small.page.getByRole("button", { name: "Filters" }).click();
  await action.fill("api_key.created");
  await small.page.getByRole("button", { name: "Filters (1)" }).click();
  await action.waitFor({ state: "hidden" });
  await small.page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].every((row) => row.textContent.includes("api_key.created")));
  assert.ok(await isInside(small.page.getByRole("button", { name: /^View/ }).first()));
  assert.deepEqual(small.problems, []);
  await small.context.close();
});

test("usage distinguishes requests by their outcome", async () => {
  await fetch(`${server.url}/v1/embeddings`, { method: "POST", headers: { authorization: `Bearer ${server.key}`, "content-type": "application/json" }, body: "{}" });
  await goTo(page, "usage", "Usage");
  const { requests_by_outcome: outcomes } = await server.api("GET", `/projects/${project}/usage`);
  assert.ok(outcomes.refused > 0 && outcomes.failed === 0);
  await page.locator(".legend li").filter({ hasText: "Refused (4xx)" }).getByText(String(outcomes.refused), { exact: true }).waitFor();
  assert.equal(await page.locator(".legend li").filter({ hasText: "Failed" }).count(), 0, "an outcome that did not occur is not shown");
  await page.locator("figure.chart path.bar.warn").waitFor();
  assert.equal(await page.getByText("Audio processed").count(), 0);
  // The values of a bucket at the pointer.
  const { x, y, width } = await page.locator("svg.plot").boundingBox();
  await page.mouse.move(x + width - 30, y + 100);
  await page.locator(".tooltip").getByText("Refused (4xx)").waitFor();
  assert.deepEqual(problems, []);
});

test("usage is shown as totals and a chart, and exported as CSV", async () => {
  for (const seed of [1, 2]) {
    await server.api("POST", "/chat/completions", { model: CHAT_MODEL, messages: [{ role: "user", content: "Name a sea." }], max_completion_tokens: 12, seed });
  }
  await goTo(page, "usage", "Usage");
  await page.getByLabel("Group by").selectOption({ label: "Model" });
  await page.getByLabel("Metric").selectOption({ label: "Tokens" });
  const usage = await server.api("GET", `/projects/${project}/usage?group_by=model`);
  const stat = (label) => page.locator(".stat").filter({ hasText: label }).locator("strong");
  await page.locator("figure.chart path.bar").first().waitFor();
  await stat("Output tokens").getByText(String(usage.tokens.output), { exact: true }).waitFor();
  await stat("Input tokens").getByText(String(usage.tokens.input), { exact: true }).waitFor();
  const chat = usage.groups.find((group) => group.model === CHAT_MODEL);
  const group = page.getByRole("region", { name: "Group by" }).getByRole("row").filter({ hasText: CHAT_MODEL });
  await group.waitFor();
  const cells = await group.getByRole("cell").allTextContents();
  assert.deepEqual(cells.slice(1, 6), [chat.requests, 0, chat.tokens.input, chat.tokens.cached, chat.tokens.output].map(String));
  assert.match(await page.getByRole("img", { name: /Tokens over time/ }).getAttribute("aria-label"), new RegExp(`${CHAT_MODEL} ${chat.tokens.total}`));
  // The bucket that has not ended is marked.
  await page.locator("figure.chart path.bar.running").first().waitFor();
  await page.locator("figure.chart").getByText("in progress").first().waitFor();

  const csv = await download(() => click("Export CSV"));
  assert.equal(csv.name, `usage-${project}.csv`);
  assert.ok(csv.text.split("\n").some((line) => line.includes(CHAT_MODEL) && line.includes(String(chat.tokens.output))), csv.text.slice(0, 400));
  await page.getByLabel("Time range").selectOption({ label: "Custom" });
  await page.getByLabel("From", { exact: true }).fill("2001-01-01T00:00");
  await page.getByLabel("To", { exact: true }).fill("2001-02-01T00:00");
  await page.getByText("No tokens in this time range").waitFor();
  assert.deepEqual(problems, []);
});

test("the audit log is filtered and exported", async () => {
  await goTo(page, "audit", "Audit log");
  await page.getByLabel("Action").fill("api_key.rotated");
  await page.getByText("a laptop was lost").waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].every((one) => one.textContent.includes("api_key.rotated")));
  await page.getByLabel("Target").fill("proj_nothing");
  await page.getByText("No matching events").waitFor();
  await page.getByLabel("Target").fill("");
  await row("a laptop was lost").waitFor();
  const csv = await download(() => click("Export CSV"));
  assert.ok(csv.text.includes("a laptop was lost") && !csv.text.includes("api_key.created"), csv.text);
  await page.getByLabel("Action").fill("project");
  await page.getByLabel("Project", { exact: true }).last().selectOption({ label: "All projects" });
  await row("project.archived").waitFor();
  assert.deepEqual(problems, []);
});

test("live metrics show a running generation", async () => {
  await goTo(page, "live", "Live metrics");
  const stat = (label) => page.locator(".stat").filter({ hasText: label }).locator("strong");
  assert.match(await page.locator("p.server").innerText(), /^Up for \d+ .+ · .+ · [a-z0-9-]+ kernels · \d+ compute threads? · Outpost \d+\.\d+\.\d+$/);
  await stat("Active generations").getByText("0", { exact: true }).waitFor();
  const abort = new AbortController();
  const running = fetch(`${server.url}/v1/chat/completions`, {
    method: "POST", signal: abort.signal, headers: { authorization: `Bearer ${server.key}`, "content-type": "application/json" },
    body: JSON.stringify({ model: CHAT_MODEL, messages: [{ role: "user", content: "Tell a long story." }], max_completion_tokens: 6000, ignore_eos: true }),
  }).catch(() => {});
  await stat("Active generations").getByText("1", { exact: true }).waitFor();
  await page.waitForFunction(() => Number([...document.querySelectorAll(".stat")].find((one) => one.textContent.includes("Token throughput")).querySelector("strong").textContent) > 0);
  await page.locator("figure.chart path.line").waitFor();
  await row(CHAT_MODEL).getByText("Loaded").waitFor();
  abort.abort();
  await running;
  await stat("Active generations").getByText("0", { exact: true }).waitFor();
  assert.deepEqual(problems, []);
});

test("a secret is copied without the clipboard API, as over plain HTTP", async () => {
  const plain = await openPage(browser, server.url);
  await plain.context.addInitScript(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
  await signIn(plain.page, server.url, server.key);
  await goTo(plain.page, "keys", "API keys");
  await plain.page.getByRole("button", { name: "Create API key" }).click();
  await plain.page.getByLabel("Name").fill("copied");
  await plain.page.getByRole("button", { name: "Create", exact: true }).click();
  const secret = await plain.page.locator(".secret code").textContent();
  await plain.page.locator(".secret").getByRole("button", { name: "Copy" }).click();
  await plain.page.locator(".secret").getByRole("button", { name: "Copied" }).waitFor();
  await plain.page.getByRole("button", { name: "Done" }).click();
  await goTo(plain.page, "conversations", "Conversations");
  await plain.page.getByRole("searchbox").focus();
  await plain.page.keyboard.press("Control+V");
  assert.equal(await plain.page.getByRole("searchbox").inputValue(), secret);
  assert.deepEqual(plain.problems, []);
  await plain.context.close();
});
