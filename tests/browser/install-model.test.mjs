// The dialog that installs a model from a hub.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { startHub } from "./fake-hub.mjs";
import { finders, goTo, launchBrowser, openPage, signIn, startServer } from "./harness.mjs";
import { writeTinyModel } from "./tiny-model.mjs";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

let hub, server, browser, page, problems;
before(async () => {
  const folder = mkdtempSync(join(tmpdir(), "outpost-hub-"));
  writeTinyModel(folder, "tiny");
  hub = await startHub(readFileSync(join(folder, "tiny/tiny.gguf")));
  rmSync(folder, { recursive: true });
  browser = await launchBrowser();
  server = await start(["--allow-pull"]);
  ({ page, problems } = await openPage(browser, server.url));
  await signIn(page, server.url, server.key);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  hub?.stop();
});

const start = (args) => startServer({ args, withoutModels: true, addModels: (folder) => mkdirSync(folder), env: { HF_ENDPOINT: hub.url, HF_HUB_OFFLINE: "", HF_TOKEN: "", HOME: "/nonexistent", NO_PROXY: "*" } });
const { dialog, row, click } = finders(() => page);

/** Saves a picture of the page in the directory of the variable `SCREENSHOTS`, if it is set. */
async function picture(name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` });
}

async function checkAccessibility() {
  await page.evaluate(readFileSync(AXE, "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), []);
}

async function lookUp(model) {
  await click("Install a model");
  await dialog().getByLabel("Model", { exact: true }).fill(model);
  await click("Look up", dialog());
}

test("a model is looked up, chosen and installed, and its progress is shown", async () => {
  await goTo(page, "models", "Models");
  await lookUp("hf:u/tiny-GGUF");
  await dialog().getByText("apache-2.0").waitFor();
  await dialog().getByText("Not supported").waitFor();
  assert.ok(await dialog().getByRole("radio", { name: "F32" }).isChecked());
  assert.ok(await dialog().getByRole("radio", { name: "Q1_0" }).isDisabled());
  assert.equal(await dialog().getByLabel("Name", { exact: true }).inputValue(), "tiny-f32");
  await picture("install-choice");
  await checkAccessibility();

  await dialog().getByRole("radio", { name: "Q8_0" }).check();
  assert.equal(await dialog().getByLabel("Name", { exact: true }).inputValue(), "tiny-q8_0");
  assert.ok(await dialog().getByRole("button", { name: "Install", exact: true }).isDisabled());
  await dialog().getByLabel("Install it although it does not fit into memory").check();
  assert.ok(await dialog().getByRole("button", { name: "Install", exact: true }).isEnabled());
  await picture("install-too-large");
  await dialog().getByRole("radio", { name: "F32" }).check();
  assert.equal(await dialog().getByRole("checkbox").count(), 0);
  await dialog().getByLabel("Name", { exact: true }).fill("small");

  hub.hold();
  await click("Install", dialog());
  await dialog().getByText(/Downloading/).waitFor();
  await dialog().getByText(/ of /).waitFor();
  await picture("install-progress");
  await checkAccessibility();
  // It goes on without the dialog.
  await click("Close", dialog());
  await page.getByRole("button", { name: "Installing small" }).click();
  await dialog().getByText(/Downloading/).waitFor();
  hub.release();
  await dialog().getByText("small is installed and can be used now.").waitFor();
  await picture("install-done");
  await click("Done", dialog());
  await row("small").getByText("Chat", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Install a model" }).waitFor();
  assert.deepEqual(problems, []);
});

test("an installation is cancelled and continued", async () => {
  await lookUp("hf.co/u/tiny-GGUF:F32");
  hub.hold();
  await click("Install", dialog());
  await dialog().getByText(/Downloading/).waitFor();
  await click("Cancel the installation", dialog());
  await dialog().getByText("The pull was cancelled.").waitFor();
  hub.release();
  await click("Done", dialog());
  await lookUp("hf:u/tiny-GGUF");
  await click("Install", dialog());
  await dialog().getByText("tiny-f32 is installed").waitFor();
  await click("Done", dialog());
  // The same name again needs consent.
  await lookUp("hf:u/tiny-GGUF");
  await dialog().getByLabel("Replace the installed model of that name").check();
  await click("Cancel", dialog());
  assert.deepEqual(problems, []);
});

test("errors are shown where they occur", async () => {
  await lookUp("hf:u/none");
  assert.match(await dialog().getByRole("alert").textContent(), /no repository 'u\/none'[^]*req_/);
  await dialog().getByLabel("Model", { exact: true }).fill("nonsense/x");
  assert.equal(await dialog().getByRole("alert").count(), 0);
  await click("Look up", dialog());
  assert.match(await dialog().getByRole("alert").textContent(), /hf:USER\/REPO/);
  await dialog().getByLabel("Model", { exact: true }).fill("all-minilm-l6-v2");
  await click("Look up", dialog());
  await dialog().getByText("Known after the download").waitFor();
  await click("Cancel", dialog());
  assert.deepEqual(problems, []);
});

test("the button is for administrators, and says why it is disabled", async () => {
  const off = await start([]);
  try {
    const other = await openPage(browser, off.url);
    await signIn(other.page, off.url, off.key);
    await goTo(other.page, "models", "Models");
    await other.page.getByText("The server was started without --allow-pull.").waitFor();
    assert.ok(await other.page.getByRole("button", { name: "Install a model" }).isDisabled());
    const { project_id: project } = await off.api("GET", "/me");
    const { secret } = await off.api("POST", "/api-keys", { name: "no admin", project_id: project });
    const plain = await openPage(browser, off.url);
    await signIn(plain.page, off.url, secret);
    await goTo(plain.page, "models", "Models");
    await plain.page.getByRole("heading", { name: "Available from the catalog" }).waitFor();
    assert.equal(await plain.page.getByRole("button", { name: "Install a model" }).count(), 0);
    assert.deepEqual([...other.problems, ...plain.problems], []);
    await Promise.all([other.context.close(), plain.context.close()]);
  } finally {
    await off.stop();
  }
});
