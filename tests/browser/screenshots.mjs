// Takes screenshots of every page with sample data: light, dark and 390 pixels wide.
//
//     node tests/browser/screenshots.mjs DIRECTORY

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { launchBrowser, CHAT_MODEL, startServer, openPage } from "./harness.mjs";
import { seedData, visitPages, VIEWS } from "./pages.mjs";

// Long enough for several updates of the metrics.
const LOAD_MS = 9000;

const directory = process.argv[2];
if (!directory) throw new Error("usage: screenshots.mjs DIRECTORY");
mkdirSync(directory, { recursive: true });
const server = await startServer();
const browser = await launchBrowser();

/** Runs some chats, so that the live metrics have something to show. */
async function generateLoad() {
  const ask = (content) => server.api("POST", "/chat/completions", { model: CHAT_MODEL, messages: [{ role: "user", content }], max_completion_tokens: 2000, ignore_eos: true });
  for (const topic of ["the sea", "a harbour", "an island"]) ask(`Write a long story about ${topic}.`).catch(() => {});
  await new Promise((resolve) => setTimeout(resolve, LOAD_MS));
}

try {
  const ids = await seedData(server);
  for (const [view, options] of Object.entries(VIEWS)) {
    const { context, page } = await openPage(browser, server.url, options);
    await visitPages(page, server, ids, async (name) => {
      if (name === "live") await generateLoad();
      await page.screenshot({ path: join(directory, `${name}-${view}.png`), fullPage: true });
    });
    await context.close();
  }
} finally {
  await browser.close();
  await server.stop();
}
