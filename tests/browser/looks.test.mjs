// Whether everybody can use it: contrast, names, keyboard, small screens.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { go, serve, signIn, stage, visit } from "./harness.mjs";
import { seed, tour, VIEWS } from "./places.mjs";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

let server, browser, ids;
stage(async (found) => {
  ({ server, browser } = found);
  ids = await seed(server);
});

/** What axe finds, worst first; its script comes from outside of the page, so the policy stays as it is. */
async function findings(page) {
  await page.evaluate(() => document.getAnimations().forEach((animation) => animation.cancel()));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

for (const [view, options] of Object.entries(VIEWS)) {
  test(`nothing serious is found on any page: ${view}`, async () => {
    const { context, page, wrong } = await visit(browser, server.url, options);
    await context.addInitScript({ path: AXE });
    const found = {};
    await tour(page, server, ids, async (name) => {
      const list = await findings(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) list.push(`wider than the screen by ${wide} pixels`);
      if (list.length) found[name] = list;
    });
    assert.deepEqual(found, {});
    assert.deepEqual(wrong, []);
    await context.close();
  });
}

test("everything is reached by the keyboard", async () => {
  const { context, page } = await visit(browser, server.url);
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.getAttribute("aria-label") || document.activeElement.tagName);
  const until = async (text, keys = "Tab") => {
    for (let tries = 0; tries < 40; tries++) {
      await page.keyboard.press(keys);
      if ((await focused()).startsWith(text)) return;
    }
    assert.fail(`'${text}' is not reached; the focus is on '${await focused()}'`);
  };
  await page.goto(server.url);
  await page.getByLabel("API key").focus();
  await page.keyboard.type(server.key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Get started" }).waitFor();
  await until("API keys");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "API keys" }).waitFor();
  await page.waitForFunction(() => document.activeElement.tagName === "H1");
  await until("Create API key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.tagName === "INPUT" && document.activeElement.closest("dialog"));
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.activeElement.textContent === "Create API key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.tagName === "INPUT" && document.activeElement.closest("dialog"));
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Enter");
  await page.getByText("Save your API key").waitFor();
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog"));
  await page.getByText("by keyboard").first().waitFor();
  await go(page, "playground/chat", "Playground");
  await until("Chat");
  await page.keyboard.press("ArrowRight");
  await page.getByLabel("Prompt", { exact: true }).waitFor();
  await context.close();
});

test("a small screen has a menu", async () => {
  const { context, page } = await visit(browser, server.url, VIEWS.narrow);
  await signIn(page, server.url, server.key);
  assert.equal(await page.getByRole("link", { name: "Usage" }).isVisible(), false);
  await page.getByRole("button", { name: "Menu" }).click();
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByRole("heading", { level: 1, name: "Usage" }).waitFor();
  // The menu closes after the page is shown: the heading may be there first.
  await page.getByRole("link", { name: "Audit log" }).waitFor({ state: "hidden" });
  await context.close();
});

test("a server without models says what to do first", async () => {
  const bare = await serve({ bare: true });
  try {
    const { context, page, wrong } = await visit(browser, bare.url);
    await signIn(page, bare.url, bare.key);
    await page.getByText("outpost models pull starter").waitFor();
    await go(page, "playground", "Playground");
    await page.getByText("No installed model supports chat").waitFor();
    await go(page, "models", "Models");
    await page.getByText("No models installed").waitFor();
    assert.deepEqual(wrong, []);
    await context.close();
  } finally {
    await bare.stop();
  }
});
