// Text to speech: plays the speech while it is generated.

import { html, useEffect, useRef, useState } from "../../html.js";
import { downloadBlob, get, send } from "../../api.js";
import { duration, languageName } from "../../format.js";
import { t } from "../../strings.js";
import { ErrorAlert, Field, Foldable, Loading, SelectField, TextArea, TextField, useAction, useLoad } from "../../ui.js";
import { playableStream } from "./playable-stream.js";

// Formats that browsers play, with their media types.
const TYPES = { mp3: "audio/mpeg", opus: "audio/ogg", flac: "audio/flac", wav: "audio/wav" };
const ENDINGS = { mp3: "mp3", opus: "ogg", flac: "flac", wav: "wav" };

/** Voices by language: `[language, voices]`. Those that cannot be used are last. */
function byLanguage(voices) {
  const groups = new Map();
  for (const voice of voices) groups.set(voice.language, [...(groups.get(voice.language) ?? []), voice]);
  return [...groups].sort(([a], [b]) => (a === null) - (b === null));
}

function requestBody({ model, voice, input, speed, format }) {
  const body = { model, voice, input: input.trim(), response_format: format };
  if (speed !== "" && Number(speed) !== 1) body.speed = Number(speed);
  return body;
}

export function Speech({ models, initial, showCode }) {
  const [settings, setSettings] = useState({ model: models.find(({ id }) => id === initial[0])?.id ?? models[0].id, voice: "", input: t.speech.example, speed: "", format: "mp3" });
  const set = (name) => (value) => setSettings((settings) => ({ ...settings, [name]: value }));
  const [all, voicesError, reload] = useLoad(async () => (await get("/audio/voices")).data, []);
  const voices = all?.filter(({ model }) => model === undefined || model === settings.model) ?? [];
  const usable = voices.filter(({ language }) => language !== null);
  const voice = usable.find(({ id }) => id === settings.voice)?.id ?? usable[0]?.id ?? "";
  const body = () => requestBody({ ...settings, voice });
  const [sound, setSound] = useState(null);
  const abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  useEffect(() => () => sound && URL.revokeObjectURL(sound.url), [sound?.url]);

  const [speak, busy, error] = useAction(async () => {
    abort.current = new AbortController();
    setSound(null);
    const { format, input } = settings;
    const began = performance.now();
    const response = await send("POST", "/audio/speech", { body: body(), signal: abort.current.signal });
    const stream = playableStream(TYPES[format]);
    const chunks = [];
    let current = { url: stream?.url, format, input };
    try {
      for await (const chunk of chunksOf(response.body)) {
        chunks.push(chunk);
        stream?.push(chunk);
        if (chunks.length === 1) setSound((current = { ...current, first: (performance.now() - began) / 1000 }));
      }
    } finally {
      stream?.end();
      // Nothing shows it that would revoke it later.
      if (stream && !chunks.length) URL.revokeObjectURL(stream.url);
    }
    const blob = new Blob(chunks, { type: TYPES[format] });
    setSound({ ...current, url: current.url ?? URL.createObjectURL(blob), blob, took: (performance.now() - began) / 1000 });
  });
  const submit = (event) => {
    event.preventDefault();
    if (!busy && voice && settings.input.trim()) speak();
  };
  const code = () => showCode({ call: "speech", path: "/audio/speech", body: body(), saveAs: `speech.${ENDINGS[settings.format]}` });
  const action = busy
    ? html`<button key="stop" type="button" class="danger" onClick=${() => abort.current?.abort()}>${t.speech.stop}</button>`
    : html`<button key="speak" class="primary" disabled=${!voice || !settings.input.trim()}>${t.speech.speak}</button>`;
  return html`<form class="playground" onSubmit=${submit}>
    <div>
      <${TextArea} label=${t.speech.input} value=${settings.input} onInput=${set("input")} rows="6" />
      <div class="actions">
        ${action}
        <button type="button" onClick=${code}>${t.playground.viewCode}</button>
      </div>
      <${ErrorAlert} error=${error ?? voicesError} retry=${!error && voicesError && reload} />
      <${Sound} sound=${sound} busy=${busy} />
    </div>
    <${Foldable} label=${t.chat.settings} icon="tuning" className="card settings">
      <${SelectField} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${models.map(({ id }) => [id, id])} />
      ${!all && !voicesError ? html`<${Loading} />` : html`<${VoiceField} voices=${voices} value=${voice} onInput=${set("voice")} />`}
      <div class="two-columns">
        <${TextField} label=${t.speech.speed} type="number" min="0.25" max="4" step="any" value=${settings.speed} onInput=${set("speed")} placeholder="1" />
        <${SelectField} label=${t.speech.format} value=${settings.format} onInput=${set("format")} options=${Object.keys(TYPES).map((format) => [format, format.toUpperCase()])} />
      </div>
    <//>
  </form>`;
}

/** The chunks of a body. Not every browser can iterate over a stream. */
async function* chunksOf(body) {
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

const VoiceField = ({ voices, value, onInput }) => html`<${Field} label=${t.speech.voice} hint=${voices.some(({ language }) => language === null) ? t.speech.voiceHint : undefined}>
  ${(attributes) => html`<select ...${attributes} value=${value} onInput=${(event) => onInput(event.target.value)}>
    ${byLanguage(voices).map(([language, group]) => html`<optgroup key=${language} label=${language === null ? t.speech.otherVoices : languageName(language)}>
      ${group.map(({ id, name }) => html`<option key=${id} value=${id} selected=${id === value} disabled=${language === null}>${name ?? id}</option>`)}
    </optgroup>`)}
  </select>`}
<//>`;

/** The player; `sound.blob` is there when all of it has arrived. */
function Sound({ sound, busy }) {
  const status = sound?.took !== undefined ? t.speech.finished(duration(sound.first ?? sound.took), duration(sound.took)) : busy ? t.speech.running : null;
  return html`${status && html`<p class=${busy ? "status muted loading" : "status muted"} role="status">${status}</p>`}
    ${sound?.url && html`<section class="speech" aria-label=${t.speech.result}>
      <audio key=${sound.url} controls autoplay src=${sound.url} aria-label=${t.speech.player}></audio>
      <p>${sound.input}</p>
      ${sound.blob && html`<div class="actions"><button type="button" onClick=${() => downloadBlob(`speech.${ENDINGS[sound.format]}`, sound.blob)}>${t.speech.download}</button></div>`}
    </section>`}`;
}
