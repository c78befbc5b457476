// How long the dashboard takes to be seen, and how much it sends, in fresh profiles: medians of five.
//
//     OUTPOST_BIN=target/release/outpost node tests/browser/measure.mjs

import { browse, counting, serve, signIn, visit } from "./harness.mjs";

const RUNS = 5;
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

const server = await serve();
const browser = await browse();
const runs = [];
try {
  for (let run = 0; run < RUNS; run++) {
    const { context, page } = await visit(browser, server.url);
    const count = await counting(context, page);
    await page.goto(server.url);
    await page.getByLabel("API key").waitFor();
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
    const loaded = count.bytes;
    await signIn(page, server.url, server.key);
    await page.waitForLoadState("networkidle");
    runs.push({ paint, loaded, bytes: count.bytes });
    await context.close();
  }
} finally {
  await browser.close();
  await server.stop();
}
console.log("| first paint | sent until then | sent with the first page behind the door |\n|---|---|---|");
const kib = (key) => `${(median(runs.map((run) => run[key])) / 1024).toFixed(0)} KiB`;
console.log(`| ${median(runs.map((run) => run.paint)).toFixed(0)} ms | ${kib("loaded")} | ${kib("bytes")} |`);
