// Links that sign a browser in.

import assert from "node:assert/strict";
import { test } from "node:test";
import { openPage, setUp, signIn } from "./harness.mjs";

let server, browser;
setUp((found) => ({ server, browser } = found));

const startPage = (page) => page.getByRole("heading", { level: 1, name: "Get started" }).waitFor();
const storedKey = (page) => page.evaluate(() => sessionStorage.getItem("outpost.key"));

/** Saves a picture of the page in the directory of the variable `SCREENSHOTS`, if it is set. */
async function picture(page, name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` });
}

test("a link signs in once and leaves no token in the address bar or the history", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  const requested = [];
  page.on("request", (request) => requested.push(request.url()));
  const link = server.newSignInLink();
  await page.goto(link);
  await startPage(page);
  await page.getByText("browser sign-in").waitFor();
  await picture(page, "signed-in");
  await page.waitForLoadState("networkidle");
  assert.equal(await page.getByText("Done", { exact: true }).count(), 0, "the admin key is not that of an application");
  assert.equal(new URL(page.url()).hash, "");
  await page.getByRole("link", { name: "Models", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "Models" }).waitFor();
  await page.goBack();
  await startPage(page);
  assert.equal(new URL(page.url()).hash, "");
  const token = link.split("=")[1];
  assert.ok(!requested.some((url) => url.includes(token)), requested.join(" "));
  assert.equal((await context.cookies()).length, 0);
  const key = await storedKey(page);
  assert.ok(key.startsWith("opk_") && key !== server.key);
  assert.equal((await server.api("GET", "/me", undefined, key)).name, "browser sign-in");

  // The session is an ordinary one.
  await page.reload();
  await startPage(page);
  const revoked = page.waitForResponse((response) => response.request().method() === "DELETE");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
  assert.equal((await revoked).status(), 200);
  await assert.rejects(server.api("GET", "/me", undefined, key), /revoked/);
  assert.deepEqual(problems, []);
  await context.close();

  const second = await openPage(browser, server.url);
  await second.page.goto(link);
  const alert = second.page.getByRole("alert");
  assert.match(await alert.textContent(), /used already[^]*outpost sign-in/);
  await picture(second.page, "link-used");
  assert.equal(new URL(second.page.url()).hash, "");
  assert.equal(await storedKey(second.page), null);
  // A key still works.
  await second.page.getByLabel("API key").fill(server.key);
  await second.page.getByRole("button", { name: "Sign in" }).click();
  await startPage(second.page);
  assert.equal(await second.page.getByRole("alert").count(), 0);
  await second.page.getByRole("button", { name: "Sign out" }).click();
  await second.page.getByLabel("API key").waitFor();
  assert.equal(await second.page.getByRole("alert").count(), 0);
  // A key that was pasted is still valid.
  await server.api("GET", "/me");
  assert.deepEqual(second.problems, []);
  await second.context.close();
});

test("a link that is opened in a tab with the dashboard signs in there", async () => {
  const { context, page, problems } = await openPage(browser, server.url);
  await page.goto(server.url);
  await page.getByLabel("API key").waitFor();
  // The document stays, because only the fragment differs.
  await page.evaluate((link) => (location.href = link), `${server.newSignInLink().replace(server.url, "")}`);
  await startPage(page);
  assert.equal(new URL(page.url()).hash, "");
  // A second link revokes the key of the first.
  const first = await storedKey(page);
  const revoked = page.waitForResponse((response) => response.request().method() === "DELETE");
  await page.goto(server.newSignInLink());
  assert.equal((await revoked).status(), 200);
  await startPage(page);
  await assert.rejects(server.api("GET", "/me", undefined, first), /revoked/);
  await server.api("GET", "/me", undefined, await storedKey(page));
  await context.close();

  // A link that has ended does not end a session.
  const other = await openPage(browser, server.url);
  await signIn(other.page, server.url, server.key);
  await other.page.evaluate(() => (location.hash = "#sign-in=ol_0000000000000000000000"));
  await startPage(other.page);
  assert.equal(new URL(other.page.url()).hash, "");
  assert.equal(await storedKey(other.page), server.key);
  // A link replaces the key, after which another one ends nothing either.
  await other.page.goto(server.newSignInLink());
  await other.page.getByText("browser sign-in").waitFor();
  assert.notEqual(await storedKey(other.page), server.key);
  await other.page.goto(`${server.url}/#sign-in=ol_wrong`);
  await startPage(other.page);
  assert.deepEqual([...problems, ...other.problems], []);
  await other.context.close();
});

test("a link that has ended is explained", async () => {
  const first = server.newSignInLink();
  for (let count = 0; count < 16; count++) server.newSignInLink();
  const { context, page, problems } = await openPage(browser, server.url, { viewport: { width: 390, height: 844 } });
  await page.goto(first);
  await page.getByRole("alert").waitFor();
  await picture(page, "link-ended");
  assert.match(await page.getByRole("alert").textContent(), /older than ten minutes/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("without the server, a link says so", async () => {
  const { context, page } = await openPage(browser, server.url);
  await page.goto(server.url);
  await page.getByLabel("API key").waitFor();
  await context.setOffline(true);
  await page.evaluate(() => (location.hash = "#sign-in=ol_0000000000000000000000"));
  assert.match(await page.getByRole("alert").textContent(), /Cannot reach the server/);
  await context.close();
});
