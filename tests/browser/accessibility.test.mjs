// Accessibility: contrast, labels, keyboard, small screens.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { goTo, startServer, signIn, setUp, openPage } from "./harness.mjs";
import { seedData, visitPages, VIEWS } from "./pages.mjs";

// The width at which pages must still fit, in pixels (WCAG 1.4.10).
const SMALLEST = 320;
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

let server, browser, ids;
setUp(async (found) => {
  ({ server, browser } = found);
  ids = await seedData(server);
});

/** Serious violations that axe-core finds. Playwright injects its script, so the page keeps its security policy. */
async function violationsOf(page) {
  await page.evaluate(() => document.getAnimations().forEach((animation) => animation.cancel()));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

/** A problem if the page is wider than the screen. */
async function overflowOf(page) {
  const [content, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  return content > screen ? [`${content - screen} pixels wider than a screen of ${screen} pixels`] : [];
}

for (const [view, options] of Object.entries(VIEWS)) {
  test(`no page has serious accessibility violations: ${view}`, async () => {
    const { context, page, problems } = await openPage(browser, server.url, options);
    await context.addInitScript({ path: AXE });
    const found = {};
    await visitPages(page, server, ids, async (name) => {
      const list = await violationsOf(page);
      list.push(...(await overflowOf(page)));
      if (view === "narrow") {
        await page.setViewportSize({ ...options.viewport, width: SMALLEST });
        list.push(...(await overflowOf(page)));
        await page.setViewportSize(options.viewport);
      }
      if (list.length) found[name] = list;
    });
    assert.deepEqual(found, {});
    assert.deepEqual(problems, []);
    await context.close();
  });
}

test("every control can be reached with the keyboard", async () => {
  const { context, page } = await openPage(browser, server.url);
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.getAttribute("aria-label") || document.activeElement.tagName);
  const tabTo = async (text) => {
    for (let tries = 0; tries < 40; tries++) {
      await page.keyboard.press("Tab");
      if ((await focused()).startsWith(text)) return;
    }
    assert.fail(`'${text}' was not reached; the focus is on '${await focused()}'`);
  };
  await page.goto(server.url);
  await page.getByLabel("API key").focus();
  await page.keyboard.type(server.key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Get started" }).waitFor();
  await tabTo("API keys");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "API keys" }).waitFor();
  await page.waitForFunction(() => document.activeElement.tagName === "H1");
  await tabTo("Create API key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.tagName === "INPUT" && document.activeElement.closest("dialog"));
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.activeElement.textContent === "Create API key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.tagName === "INPUT" && document.activeElement.closest("dialog"));
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Enter");
  await page.getByText("Save this key now").waitFor();
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog"));
  await page.getByText("by keyboard").first().waitFor();
  await goTo(page, "playground/chat", "Playground");
  await tabTo("Chat");
  await page.keyboard.press("ArrowRight");
  await page.getByLabel("Prompt", { exact: true }).waitFor();
  await context.close();
});

test("a small screen has a menu", async () => {
  const { context, page } = await openPage(browser, server.url, VIEWS.narrow);
  await signIn(page, server.url, server.key);
  assert.equal(await page.getByRole("link", { name: "Usage" }).isVisible(), false);
  await page.getByRole("button", { name: "Menu" }).click();
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByRole("heading", { level: 1, name: "Usage" }).waitFor();
  // The menu closes after the page has rendered.
  await page.getByRole("link", { name: "Audit log" }).waitFor({ state: "hidden" });
  await context.close();
});

test("a server without models shows how to pull one", async () => {
  const empty = await startServer({ withoutModels: true });
  try {
    const { context, page, problems } = await openPage(browser, empty.url);
    await signIn(page, empty.url, empty.key);
    await page.getByText("outpost models pull starter").waitFor();
    await goTo(page, "playground", "Playground");
    await page.getByText("No installed model supports chat").waitFor();
    await goTo(page, "models", "Models");
    await page.getByText("No models installed").waitFor();
    assert.deepEqual(problems, []);
    await context.close();
  } finally {
    await empty.stop();
  }
});
