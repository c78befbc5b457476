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
  await dialog().getByText("Save your API key").waitFor();
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
  await dialog().getByText("Save your API key").waitFor();
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

test("projects are created, renamed, limited and archived", async () => {
  await goTo(page, "projects", "Projects");
  await click("Create project");
  await fill({ Name: "Harbour", Environment: "development" });
  await click("Create", dialog());
  await row("Harbour").getByText("development").waitFor();
  await row("Harbour").getByRole("button", { name: /^Edit/ }).click();
  await fill({ Name: "Harbour office" });
  await click("Save", dialog());
  await row("Harbour office").waitFor();

  await page.getByLabel("Project", { exact: true }).selectOption({ label: "Harbour office" });
  const limits = page.getByRole("form", { name: "Limits for Harbour office" });
  await limits.getByLabel("Requests per minute").fill("120");
  await limits.getByLabel("Tokens per month").fill("5000");
  await click("Save", limits);
  await limits.getByText("Effective limit: 120 requests per minute, up to 120 at once.").waitFor();
  await limits.getByText("Used this month: 0 of 5,000 tokens.").waitFor();
  const ceiling = page.getByRole("form", { name: "Maximum limits" });
  await ceiling.getByLabel("Requests per minute").fill("60");
  await click("Save", ceiling);
  await limits.getByText("Effective limit: 60 requests per minute").waitFor();
  await limits.getByText("Maximum: 60, set by an administrator.").waitFor();
  await limits.getByLabel("Requests per minute").fill("500");
  await click("Save", limits);
  assert.match(await limits.getByRole("alert").textContent(), /ceiling[^]*req_/);
  await limits.getByLabel("Requests per minute").fill("");
  await click("Save", limits);
  await page.waitForFunction(() => document.querySelector("form[aria-label^='Limits'] button").disabled);
  const quotas = page.getByRole("form", { name: "Quotas" });
  await quotas.getByLabel("Agents").fill("3");
  await click("Save", quotas);
  await row("Agents").filter({ hasText: "3" }).waitFor();
  const stored = (await server.api("GET", "/projects")).data.find((one) => one.name === "Harbour office");
  const saved = await server.api("GET", `/projects/${stored.id}/rate-limits`);
  assert.deepEqual([saved.requests_per_minute, saved.token_budget, saved.ceiling.requests_per_minute, saved.quotas.agents], [null, 5000, 60, 3]);

  await row("Harbour office").getByRole("button", { name: /^Archive/ }).click();
  await click("Archive", dialog());
  await row("Harbour office").getByText("archived").waitFor();
  await page.getByLabel("Project", { exact: true }).selectOption({ value: project });
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
  await page.locator("figure.chart canvas").waitFor();
  await stat("Output tokens").getByText(String(usage.tokens.output), { exact: true }).waitFor();
  await stat("Input tokens").getByText(String(usage.tokens.input), { exact: true }).waitFor();
  const chat = usage.groups.find((group) => group.model === CHAT_MODEL);
  const group = page.getByRole("region", { name: "Group by" }).getByRole("row").filter({ hasText: CHAT_MODEL });
  await group.waitFor();
  const cells = await group.getByRole("cell").allTextContents();
  assert.deepEqual(cells.slice(1, 5), [chat.requests, chat.tokens.input, chat.tokens.cached, chat.tokens.output].map(String));
  assert.match(await page.getByRole("img", { name: /Tokens over time/ }).getAttribute("aria-label"), new RegExp(`${CHAT_MODEL} ${chat.tokens.total}`));
  await page.waitForFunction(() => {
    const canvas = document.querySelector("figure.chart canvas");
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0);
  });

  const csv = await download(() => click("Export CSV"));
  assert.equal(csv.name, `usage-${project}.csv`);
  assert.ok(csv.text.split("\n").some((line) => line.includes(CHAT_MODEL) && line.includes(String(chat.tokens.output))), csv.text.slice(0, 400));
  await page.getByLabel("Time range").selectOption({ label: "Custom" });
  await page.getByLabel("From", { exact: true }).fill("2001-01-01T00:00");
  await page.getByLabel("To", { exact: true }).fill("2001-02-01T00:00");
  await page.getByText("No usage in this time range").waitFor();
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
  await stat("Active generations").getByText("0", { exact: true }).waitFor();
  const abort = new AbortController();
  const running = fetch(`${server.url}/v1/chat/completions`, {
    method: "POST", signal: abort.signal, headers: { authorization: `Bearer ${server.key}`, "content-type": "application/json" },
    body: JSON.stringify({ model: CHAT_MODEL, messages: [{ role: "user", content: "Tell a long story." }], max_completion_tokens: 6000, ignore_eos: true }),
  }).catch(() => {});
  await stat("Active generations").getByText("1", { exact: true }).waitFor();
  await page.waitForFunction(() => Number([...document.querySelectorAll(".stat")].find((one) => one.textContent.includes("Token throughput")).querySelector("strong").textContent) > 0);
  await page.locator("figure.chart canvas").waitFor();
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
