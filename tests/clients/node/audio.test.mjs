// Node's openai package against the three endpoints of audio, with tiny models whose texts and sounds are random.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import OpenAI, { toFile } from "openai";

import { collect, OUTPOST_KEY, OUTPOST_URL } from "./visit.mjs";

const { OUTPOST_SPEECH, OUTPOST_WHISPER } = process.env;
const RECORDING = fileURLToPath(new URL("../../fixtures/speech/jfk.flac", import.meta.url));
// A second has 24,000 samples of 2 bytes.
const BYTES_PER_SECOND = 48_000;

for (const mount of ["/v1", "/openai/v1"]) {
  const client = new OpenAI({ baseURL: OUTPOST_URL + mount, apiKey: OUTPOST_KEY, maxRetries: 0 });
  const request = (more) => ({ model: OUTPOST_WHISPER, language: "en", file: createReadStream(RECORDING), ...more });
  const transcribe = (more) => client.audio.transcriptions.create(request(more));

  test(`${mount}: a transcription in each format`, async () => {
    const { text } = await transcribe();
    assert.ok(text);
    assert.equal((await transcribe({ response_format: "text" })).trim(), text);
    const verbose = await transcribe({ response_format: "verbose_json", timestamp_granularities: ["word", "segment"] });
    assert.equal(verbose.text, text);
    assert.deepEqual(verbose.words.map(({ word }) => word), text.split(/\s+/));
    assert.equal(verbose.segments.map((segment) => segment.text).join("").trim(), text);
    assert.match(await transcribe({ response_format: "srt" }), /^1\n00:00:\d\d,\d{3} --> /);
    assert.match(await transcribe({ response_format: "vtt" }), /^WEBVTT\n/);
  });

  test(`${mount}: a stream adds up to the whole text`, async () => {
    const events = await collect(await transcribe({ stream: true }));
    const done = events.pop();
    assert.equal(done.type, "transcript.text.done");
    assert.equal(events.map(({ delta }) => delta).join("").trim(), done.text);
    assert.equal(done.text, (await transcribe()).text);
  });

  test(`${mount}: a translation`, async () => {
    const { text } = await client.audio.translations.create({ model: OUTPOST_WHISPER, file: createReadStream(RECORDING) });
    assert.ok(text);
  });

  test(`${mount}: speech that is transcribed again`, async () => {
    const body = { model: OUTPOST_SPEECH, voice: "alloy", input: "Ba sha ba." };
    const wav = Buffer.from(await (await client.audio.speech.create({ ...body, response_format: "wav" })).arrayBuffer());
    const slow = await (await client.audio.speech.create({ ...body, response_format: "pcm", speed: 0.5 })).arrayBuffer();
    assert.ok(slow.byteLength > wav.length && slow.byteLength < 10 * BYTES_PER_SECOND);
    const again = await transcribe({ file: await toFile(wav, "speech.wav"), response_format: "verbose_json" });
    assert.ok(again.duration > 0);
  });

  test(`${mount}: errors name the field`, async () => {
    const noAudio = transcribe({ file: await toFile(Buffer.from("this is not audio"), "speech.mp3") });
    await assert.rejects(noAudio, (error) => error instanceof OpenAI.BadRequestError && error.param === "file");
    const noVoice = client.audio.speech.create({ model: OUTPOST_SPEECH, voice: "nobody", input: "Ba." });
    await assert.rejects(noVoice, (error) => error instanceof OpenAI.BadRequestError && error.param === "voice");
  });
}
