// Speech to text with a fake microphone and a tiny model, and text to speech with a stubbed response.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { finders, goTo, launchBrowser, openPage, signIn, startServer } from "./harness.mjs";
import { writeTinyWhisper } from "./tiny-whisper.mjs";

const MODEL = "tiny-whisper";
const FIXTURES = fileURLToPath(new URL("../fixtures", import.meta.url));
// A second and a half of speech, which the fake microphone repeats.
const MICROPHONE = `${FIXTURES}/audio/mono-8k.wav`;
const SPEECH = `${FIXTURES}/speech/jfk.flac`;
const SPOKEN = readFileSync(`${FIXTURES}/audio/mono-mp3-16k.mp3`);
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const FLAGS = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${MICROPHONE}`, "--autoplay-policy=no-user-gesture-required", "--mute-audio"];
// The first transcription loads the model.
const TIMEOUT = 60_000;

let server, browser, context, page, problems;
before(async () => {
  server = await startServer({ withoutModels: true, addModels: (directory) => writeTinyWhisper(directory, MODEL) });
  browser = await launchBrowser(FLAGS);
  ({ context, page, problems } = await openPage(browser, server.url));
  await context.addInitScript({ path: AXE });
  await context.grantPermissions(["microphone"], { origin: server.url });
  await signIn(page, server.url, server.key);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const { click, dialog } = finders(() => page);
const transcript = () => page.locator(".timed-transcript");

async function transcribe() {
  await click("Transcribe");
  await page.getByText(/of audio in/).waitFor({ timeout: TIMEOUT });
}

/** Opens the page as it is at first. */
async function open(name) {
  await goTo(page, "start", "Get started");
  await goTo(page, `playground/${name}`, "Playground");
}

async function downloadText(name) {
  const [file] = await Promise.all([page.waitForEvent("download"), click(name)]);
  return [file.suggestedFilename(), readFileSync(await file.path(), "utf8")];
}

async function seriousViolations() {
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" | ")}`);
}

test("a recording is transcribed, and its words light up while it is played", async () => {
  await open("transcription");
  await click("Record");
  const level = page.getByRole("meter", { name: "Sound level" });
  await page.waitForFunction(() => Number(document.querySelector(".recorder [role=meter]")?.getAttribute("aria-valuenow")) > 20);
  await page.getByRole("timer").getByText("0:02").waitFor();
  await click("Stop recording");
  await level.waitFor({ state: "detached" });
  await page.getByText(/^recording\.webm/).waitFor();
  await transcribe();
  assert.ok((await transcript().locator(".word").count()) > 0);
  // A recording has no duration in its header, but the player knows it.
  assert.ok(await page.evaluate(() => Number.isFinite(document.querySelector("audio").duration)));
  await transcript().getByRole("button", { name: /^Play from/ }).first().click();
  await transcript().locator(".word.spoken").first().waitFor();
  assert.deepEqual(problems, []);
});

test("a chosen file is transcribed and its text downloaded", async () => {
  await open("transcription");
  await page.locator("input[type=file]").setInputFiles(SPEECH);
  await page.getByText(/^jfk\.flac/).waitFor();
  const form = page.waitForRequest((request) => request.url().endsWith("/v1/audio/transcriptions"));
  await page.getByLabel("Spoken language").selectOption("en");
  await page.getByLabel("Prompt").fill("Kennedy");
  await transcribe();
  const sent = (await form).postDataBuffer()?.toString("latin1") ?? "";
  if (sent) assert.match(sent, /name="language"\r\n\r\nen\r\n[^]*name="prompt"\r\n\r\nKennedy/);
  await page.getByText(/^11 s of audio in .* Language: english$/).waitFor();
  const text = (await transcript().locator("p").allTextContents()).join("").trim();
  assert.deepEqual(await downloadText("Download TXT"), ["jfk.txt", `${text}\n`]);
  const [, srt] = await downloadText("Download SRT");
  assert.match(srt, /^1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n/);
  const [, vtt] = await downloadText("Download VTT");
  assert.match(vtt, /^WEBVTT\n\n00:00:\d\d\.\d{3} --> /);
  const json = JSON.parse((await downloadText("Download JSON"))[1]);
  assert.deepEqual([json.task, json.text, Math.round(json.duration)], ["transcribe", text, 11]);
  assert.ok(json.segments[0].words.length > 0);
  // A click on a word plays from there.
  await transcript().locator(".word").last().click();
  await transcript().locator(".word.spoken").waitFor();
  assert.deepEqual(await seriousViolations(), []);
  assert.deepEqual(problems, []);
});

test("a dropped file that is not audio is refused with a message", async () => {
  await open("transcription");
  const files = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["These are words, but nobody speaks them."], "notes.txt", { type: "text/plain" }));
    return transfer;
  });
  await page.locator(".drop-zone").dispatchEvent("drop", { dataTransfer: files });
  await page.getByText(/^notes\.txt/).waitFor();
  await page.getByText("The browser cannot play this file").waitFor();
  await click("Transcribe");
  assert.match(await page.getByRole("alert").textContent(), /file/);
  await page.locator("input[type=file]").setInputFiles(SPEECH);
  await page.getByRole("alert").waitFor({ state: "detached" });
  assert.deepEqual(problems, []);
});

test("a transcription is shown as code", async () => {
  await open("transcription");
  await page.getByLabel("Task").selectOption("translations");
  await click("View code");
  const code = async (language) => {
    await dialog().getByRole("tab", { name: language }).click();
    return dialog().locator("pre").textContent();
  };
  assert.match(await code("Python"), /client\.audio\.translations\.create\(\n {4}file=open\("speech\.mp3", "rb"\),\n {4}model="tiny-whisper"/);
  assert.match(await code("curl"), /-F 'file=@speech\.mp3' \\\n {2}--form-string 'model=tiny-whisper'/);
  assert.match(await code("Node.js"), /"file": createReadStream\("speech\.mp3"\)/);
  await click("Close", dialog());
});

test("without a model of this kind, the page says how to install one", async () => {
  await open("speech");
  await page.getByText("outpost models pull kokoro-82m").waitFor();
  assert.deepEqual(await seriousViolations(), []);
});

test("live metrics show the transcribed audio of a model", async () => {
  await goTo(page, "live", "Live metrics");
  const row = page.getByRole("row", { name: new RegExp(MODEL) });
  await row.getByText(/^\d+ (s|min \d+ s|min)$/).waitFor();
  await page.getByText("Queued speech").waitFor();
  assert.deepEqual(problems, []);
});

test("speech is generated and played with the selected voice", async () => {
  const reply = (data) => ({ contentType: "application/json", body: JSON.stringify({ data, has_more: false }) });
  const capabilities = { speech: true };
  await page.route("**/v1/models", (route) => route.fulfill(reply([{ id: "kokoro", capabilities }])));
  await page.route("**/v1/audio/voices", (route) => route.fulfill(reply([
    { id: "af_heart", name: "Heart", language: "en-us", model: "kokoro" }, { id: "bf_emma", name: "Emma", language: "en-gb", model: "kokoro" },
    { id: "jf_alpha", name: "Alpha", language: null, model: "kokoro" }, { id: "other", name: "Other", language: "en-us", model: "another" },
  ])));
  await page.route("**/v1/audio/speech", (route) => route.fulfill({ contentType: "audio/mpeg", body: SPOKEN }));
  await open("speech");
  const voice = page.getByLabel("Voice");
  await voice.locator("option").first().waitFor({ state: "attached" });
  assert.deepEqual(await voice.locator("optgroup").evaluateAll((groups) => groups.map(({ label, children }) => [label, ...[...children].map(({ text, disabled }) => [text, disabled])])), [
    ["American English", ["Heart", false]], ["British English", ["Emma", false]], ["Not available", ["Alpha", true]],
  ]);
  await voice.selectOption("bf_emma");
  await page.getByLabel("Speed").fill("1.5");
  await page.getByLabel("Text", { exact: true }).fill("Hear, hear!");
  const request = page.waitForRequest("**/v1/audio/speech");
  await click("Speak");
  assert.deepEqual((await request).postDataJSON(), { model: "kokoro", voice: "bf_emma", input: "Hear, hear!", response_format: "mp3", speed: 1.5 });
  await page.getByText(/^First sound after/).waitFor();
  await page.waitForFunction(() => document.querySelector("audio").currentTime > 0.2);
  const [file] = await Promise.all([page.waitForEvent("download"), click("Download")]);
  assert.deepEqual([file.suggestedFilename(), readFileSync(await file.path()).equals(SPOKEN)], ["speech.mp3", true]);
  // A browser that cannot play a format piece by piece plays it as a whole.
  await page.getByLabel("Format").selectOption("wav");
  await page.route("**/v1/audio/speech", (route) => route.fulfill({ contentType: "audio/wav", body: readFileSync(MICROPHONE) }));
  await click("Speak");
  await page.waitForFunction(() => document.querySelector("audio")?.duration === 1.5);
  await page.route("**/v1/audio/speech", (route) => route.fulfill({ status: 400, contentType: "application/json", body: JSON.stringify({ error: { message: "'input' is too long.", param: "input" } }) }));
  await click("Speak");
  await page.getByRole("alert").getByText("'input' is too long.").waitFor();
  await click("View code");
  await dialog().getByRole("tab", { name: "curl" }).click();
  assert.match(await dialog().locator("pre").textContent(), /-o 'speech\.wav'$/);
  await click("Close", dialog());
  assert.deepEqual(await seriousViolations(), []);
  assert.deepEqual(problems, []);
});
