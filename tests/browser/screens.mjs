// Pictures of every page, light, dark and 360 pixels wide, with something on each: for whoever changes how they look.
//
//     node tests/browser/screens.mjs FOLDER

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { browse, CHAT, serve, visit } from "./harness.mjs";
import { seed, tour, VIEWS } from "./places.mjs";

// Long enough for some looks at the figures.
const BUSY_MS = 9000;

const folder = process.argv[2];
if (!folder) throw new Error("name a folder for the pictures");
mkdirSync(folder, { recursive: true });
const server = await serve();
const browser = await browse();

/** Some chats while a picture of what runs is taken. */
async function busy() {
  const ask = (content) => server.api("POST", "/chat/completions", { model: CHAT, messages: [{ role: "user", content }], max_completion_tokens: 2000, ignore_eos: true });
  for (const place of ["the sea", "a harbour", "an island"]) ask(`Write a long story about ${place}.`).catch(() => {});
  await new Promise((done) => setTimeout(done, BUSY_MS));
}

try {
  const ids = await seed(server);
  for (const [view, options] of Object.entries(VIEWS)) {
    const { context, page } = await visit(browser, server.url, options);
    await tour(page, server, ids, async (name) => {
      if (name === "live") await busy();
      await page.screenshot({ path: join(folder, `${name}-${view}.png`), fullPage: true });
    });
    await context.close();
  }
} finally {
  await browser.close();
  await server.stop();
}
