// Starts one server and one browser for each test file: the real binary, with the starter models, of which one generates small
// images, and a tiny model to train.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { writeTinyModel } from "./tiny-model.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const CHAT_MODEL = "smollm2-135m-instruct";
export const EMBEDDING_MODEL = "all-minilm-l6-v2";
export const IMAGE_MODEL = "pictogram";
export const TINY_MODEL = "tiny-chat";
const BINARY = process.env.OUTPOST_BIN ?? join(ROOT, "target/debug/outpost");
const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";
const START_MS = 120_000;

/** Creates a models directory with the starter models and the tiny model. */
function createModelsDirectory(directory) {
  mkdirSync(directory);
  for (const name of [CHAT_MODEL, EMBEDDING_MODEL, IMAGE_MODEL]) symlinkSync(join(ROOT, "models", name), join(directory, name));
  writeTinyModel(directory, TINY_MODEL);
  return directory;
}

/** Waits until a fine-tuning job has ended, and returns it. */
export async function waitForJob(api, id) {
  for (;;) {
    const job = await api("GET", `/fine_tuning/jobs/${id}`);
    if (job.finished_at) return job;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** Starts a server: `{url, key, api, newSignInLink, stop}`. `args`: additional arguments. `env`: additional variables. `addModels` gets the folder of the models. */
export async function startServer({ args = [], env = {}, withoutModels = false, addModels } = {}) {
  const directory = mkdtempSync(join(tmpdir(), "outpost-browser-"));
  const data = join(directory, "data");
  const models = withoutModels ? join(directory, "models") : createModelsDirectory(join(directory, "models"));
  addModels?.(models);
  const child = spawn(BINARY, ["serve", "--listen", "127.0.0.1:0", "--data", data, "--models", models, "--no-pull", ...args], { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  child.stderr.resume();
  const url = await new Promise((resolve, reject) => {
    const timeout = setTimeout(() => reject(new Error("the server did not start")), START_MS);
    const fail = (error) => {
      clearTimeout(timeout);
      reject(error);
    };
    createInterface(child.stdout).on("line", (line) => {
      const address = /listening on (http\S+)/.exec(line);
      if (!address) return;
      clearTimeout(timeout);
      resolve(address[1]);
    });
    child.on("error", fail).on("exit", (code) => fail(new Error(`the server exited with ${code}`)));
  });
  const key = readFileSync(join(data, "admin.key"), "utf8").trim();
  const api = async (method, path, body, secret = key) => {
    const isForm = body instanceof FormData;
    const headers = { authorization: `Bearer ${secret}`, ...(body && !isForm ? { "content-type": "application/json" } : {}) };
    const response = await fetch(`${url}/v1${path}`, { method, headers, body: isForm ? body : body && JSON.stringify(body) });
    const result = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${JSON.stringify(result)}`);
    return result;
  };
  const newSignInLink = () => execFileSync(BINARY, ["sign-in", "--data", data], { encoding: "utf8" }).trim();
  const stop = async () => {
    const exited = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGTERM");
    await exited;
    rmSync(directory, { recursive: true, force: true });
  };
  return { url, key, api, newSignInLink, stop };
}

/** `args`: additional arguments. */
export const launchBrowser = (args = []) => chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", ...args] });

/** Starts a server and a browser for all tests of a file, then calls `ready` with both. */
export function setUp(ready) {
  const started = {};
  before(async () => {
    started.server = await startServer();
    started.browser = await launchBrowser();
    await ready(started);
  });
  after(async () => {
    await started.browser?.close();
    await started.server?.stop();
  });
}

/** Locators and actions of a page. `page` is a function, because the page is opened after the tests are defined. */
export const finders = (page) => ({
  dialog: () => page().getByRole("dialog"),
  row: (text) => page().getByRole("row").filter({ hasText: text }),
  click: (name, within = page()) => within.getByRole("button", { name, exact: true }).click(),
});

/** Opens a page in a fresh browser profile. `problems` collects errors, blocked scripts and requests to other hosts. */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: "en", acceptDownloads: true, ...options });
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // The browser also logs failed requests, which the dashboard reports itself.
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) problems.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const requested = request.url();
    if (!requested.startsWith(url) && !/^(data|blob):/.test(requested)) problems.push(`request: ${requested}`);
  });
  page.on("dialog", async (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.setDefaultTimeout(30_000);
  return { context, page, problems };
}

/** Counts the bytes that a page receives, including headers: `count.bytes`. */
export async function countBytes(context, page) {
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

/** Shows the filters or settings that a small screen folds under a button. */
export async function unfold(page, name) {
  const button = page.locator(".fold-button", { hasText: name });
  await button.waitFor({ state: "attached" });
  if ((await button.isVisible()) && (await button.getAttribute("aria-expanded")) === "false") await button.click();
}

/** Opens the page `#/name` and waits for its heading. */
export async function goTo(page, name, heading) {
  await page.evaluate((name) => (location.hash = `#/${name}`), name);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
}
