// Measures first paint and transfer size in fresh browser profiles, as the median of five runs.
//
//     OUTPOST_BIN=target/release/outpost node tests/browser/measure-load.mjs

import { launchBrowser, countBytes, startServer, signIn, openPage } from "./harness.mjs";

const RUNS = 5;
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

const server = await startServer();
const browser = await launchBrowser();
const runs = [];
try {
  for (let run = 0; run < RUNS; run++) {
    const { context, page } = await openPage(browser, server.url);
    const count = await countBytes(context, page);
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
console.log("| first paint | sign-in page | with the first page after sign-in |\n|---|---|---|");
const kib = (key) => `${(median(runs.map((run) => run[key])) / 1024).toFixed(0)} KiB`;
console.log(`| ${median(runs.map((run) => run.paint)).toFixed(0)} ms | ${kib("loaded")} | ${kib("bytes")} |`);
