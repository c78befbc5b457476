// Pictures of every page, light, dark and 360 pixels wide, with something on each: for whoever changes how they look.
//
//     node tests/browser/screens.mjs FOLDER

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { browse, CHAT, serve, signIn, visit } from "./harness.mjs";
import { PLACES, seed } from "./places.mjs";

const VIEWS = { light: { colorScheme: "light" }, dark: { colorScheme: "dark" }, narrow: { viewport: { width: 360, height: 740 } } };

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
    const shot = (name) => page.screenshot({ path: join(folder, `${name}-${view}.png`), fullPage: true });
    await page.goto(server.url);
    await page.getByLabel("API key").waitFor();
    await shot("sign-in");
    await signIn(page, server.url, server.key);
    for (const place of PLACES) {
      await place.open(page, ids);
      if (place.name === "live") await busy();
      await shot(place.name);
    }
    await context.close();
  }
} finally {
  await browser.close();
  await server.stop();
}
