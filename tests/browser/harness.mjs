// One server and one browser for a file of tests: the real binary, the models that were pulled, and a small pipeline
// of the fixtures that paints.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const CHAT = "smollm2-135m-instruct";
export const VECTORS = "all-minilm-l6-v2";
export const PICTURES = "pictogram";
const BINARY = process.env.OUTPOST_BIN ?? join(ROOT, "target/debug/outpost");
const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";
const START_MS = 120_000;

/** A models folder with the starter models. */
function models(folder) {
  mkdirSync(folder);
  for (const name of [CHAT, VECTORS, PICTURES]) symlinkSync(join(ROOT, "models", name), join(folder, name));
  return folder;
}

/** A running server: `{url, key, api, stop}`. `more`: further arguments; `bare`: without models. */
export async function serve({ more = [], bare = false } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "outpost-browser-"));
  const data = join(folder, "data");
  const found = bare ? join(folder, "models") : models(join(folder, "models"));
  const child = spawn(BINARY, ["serve", "--listen", "127.0.0.1:0", "--data", data, "--models", found, "--no-pull", ...more], { stdio: ["ignore", "pipe", "pipe"] });
  child.stderr.resume();
  const url = await new Promise((ready, failed) => {
    const late = setTimeout(() => failed(new Error("the server did not come up")), START_MS);
    createInterface(child.stdout).on("line", (line) => {
      const address = /listening on (http\S+)/.exec(line);
      if (!address) return;
      clearTimeout(late);
      ready(address[1]);
    });
    child.on("exit", (code) => failed(new Error(`the server ended with ${code}`)));
  });
  const key = readFileSync(join(data, "admin.key"), "utf8").trim();
  const api = async (method, path, body, secret = key) => {
    const form = body instanceof FormData;
    const headers = { authorization: `Bearer ${secret}`, ...(body && !form ? { "content-type": "application/json" } : {}) };
    const answer = await fetch(`${url}/v1${path}`, { method, headers, body: form ? body : body && JSON.stringify(body) });
    const told = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${JSON.stringify(told)}`);
    return told;
  };
  const stop = async () => {
    const ended = new Promise((done) => child.once("exit", done));
    child.kill("SIGTERM");
    await ended;
    rmSync(folder, { recursive: true, force: true });
  };
  return { url, key, api, stop };
}

export const browse = () => chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });

/** A server and a browser for all tests of a file; `ready` is called with both before the first. */
export function stage(ready) {
  const found = {};
  before(async () => {
    found.server = await serve();
    found.browser = await browse();
    await ready(found);
  });
  after(async () => {
    await found.browser?.close();
    await found.server?.stop();
  });
}

/** What tests of a page look for; `page` gives the page, which comes later than the tests. */
export const finders = (page) => ({
  dialog: () => page().getByRole("dialog"),
  row: (text) => page().getByRole("row").filter({ hasText: text }),
  press: (name, where = page()) => where.getByRole("button", { name, exact: true }).click(),
});

/** A page of a fresh browser profile that notes what must not happen: errors, refused scripts, strangers asked. */
export async function visit(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: "en", acceptDownloads: true, ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // A refused request is told to the user, and by the browser to its console.
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) wrong.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const asked = request.url();
    if (!asked.startsWith(url) && !/^(data|blob):/.test(asked)) wrong.push(`asked: ${asked}`);
  });
  page.on("dialog", async (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.setDefaultTimeout(30_000);
  return { context, page, wrong };
}

/** Counts what a page receives, headers and all: `count.bytes`. */
export async function counting(context, page) {
  const count = { bytes: 0 };
  const client = await context.newCDPSession(page);
  await client.send("Network.enable");
  client.on("Network.loadingFinished", (event) => (count.bytes += event.encodedDataLength));
  return count;
}

export async function signIn(page, url, key) {
  await page.goto(url);
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { level: 1, name: "Get started" }).waitFor();
}

/** Opens a page of the dashboard: `#/name`. */
export async function go(page, name, heading) {
  await page.evaluate((name) => (location.hash = `#/${name}`), name);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
}
