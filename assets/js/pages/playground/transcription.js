// Speech to text: record the microphone or choose a file, and follow the words while the audio is played.

import { html, useEffect, useRef, useState } from "../../html.js";
import { downloadBlob, stream } from "../../api.js";
import { bytes, clock, duration, languageName } from "../../format.js";
import { srt, vtt } from "../../subtitles.js";
import { t } from "../../strings.js";
import { CopyButton, EmptyState, ErrorAlert, Foldable, SelectField, TextArea, throttle, useAction } from "../../ui.js";
import { Recorder } from "./recorder.js";
import { TimedTranscript } from "./timed-transcript.js";

const TASKS = ["transcriptions", "translations"];
// Minimum time between two updates of the text.
const UPDATE_MS = 100;
// The languages of multilingual Whisper models.
const CODES = "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";
const LANGUAGES = CODES.split(" ").map((code) => [code, languageName(code)]).sort(([, a], [, b]) => a.localeCompare(b));

/** The fields of the request besides the file. */
function requestFields({ model, language, prompt }) {
  const fields = { model, response_format: "verbose_json", timestamp_granularities: ["word", "segment"] };
  if (language) fields.language = language;
  if (prompt.trim()) fields.prompt = prompt.trim();
  return fields;
}

/** The request as a form. Fields precede the file. */
function requestForm(settings, file) {
  const form = new FormData();
  for (const [name, value] of Object.entries(requestFields(settings))) {
    if (Array.isArray(value)) value.forEach((one) => form.append(`${name}[]`, one));
    else form.append(name, value);
  }
  form.append("stream", "true");
  form.append("file", file, file.name);
  return form;
}

const segmentOf = ({ start, end, text, words }) => ({ start, end, text, words });
const plainText = ({ segments }) => segments.map(({ text }) => text).join("").trim();

// File ending, type, and content of each download.
const DOWNLOADS = [
  ["txt", "text/plain", (result) => `${plainText(result)}\n`],
  ["srt", "application/x-subrip", ({ segments }) => srt(segments)],
  ["vtt", "text/vtt", ({ segments }) => vtt(segments)],
  ["json", "application/json", (result) => JSON.stringify({ task: result.task, language: result.language, duration: result.seconds, text: plainText(result), segments: result.segments }, null, 2)],
];

/** The chosen audio as `[{file, url}, choose]`. */
function useSource(onChange) {
  const [source, setSource] = useState(null);
  useEffect(() => () => source && URL.revokeObjectURL(source.url), [source]);
  const choose = (file) => {
    if (!file) return;
    setSource({ file, url: URL.createObjectURL(file) });
    onChange();
  };
  return [source, choose];
}

export function Transcription({ models, initial, showCode }) {
  const [settings, setSettings] = useState({ model: models.find(({ id }) => id === initial[0])?.id ?? models[0].id, task: TASKS[0], language: "", prompt: "" });
  const set = (name) => (value) => setSettings((settings) => ({ ...settings, [name]: value }));
  const [result, setResult] = useState(null);
  const abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);

  const [transcribe, busy, error, clearError] = useAction(async () => {
    abort.current = new AbortController();
    const began = performance.now();
    let current = { task: settings.task === TASKS[0] ? "transcribe" : "translate", segments: [] };
    const show = throttle(UPDATE_MS, setResult);
    setResult(current);
    try {
      for await (const { name, data } of stream(`/audio/${settings.task}`, requestForm(settings, source.file), abort.current.signal)) {
        if (name === "transcript.text.segment") show((current = { ...current, segments: [...current.segments, segmentOf(data)] }));
        if (name === "transcript.text.done") current = { ...current, language: data.language, seconds: data.usage?.seconds, took: (performance.now() - began) / 1000 };
      }
    } finally {
      show.cancel();
      setResult(current.segments.length || current.took ? current : null);
    }
  });
  const [source, choose] = useSource(() => {
    setResult(null);
    clearError();
  });
  const submit = (event) => {
    event.preventDefault();
    if (source && !busy) transcribe();
  };
  const code = () => showCode({ call: settings.task, path: `/audio/${settings.task}`, body: requestFields(settings), file: source?.file.name ?? "speech.mp3" });
  // Two elements with their own keys: reusing one while it is pressed would submit the form.
  const action = busy
    ? html`<button key="stop" type="button" class="danger" onClick=${() => abort.current?.abort()}>${t.transcription.stop}</button>`
    : html`<button key="transcribe" class="primary" disabled=${!source}>${t.transcription.tasks[settings.task]}</button>`;
  return html`<form class="playground" onSubmit=${submit}>
    <div>
      <${Source} source=${source} choose=${choose} disabled=${busy} />
      <div class="actions">
        ${action}
        <button type="button" onClick=${code}>${t.playground.viewCode}</button>
      </div>
      <${ErrorAlert} error=${error} />
      <${Result} source=${source} result=${result} busy=${busy} />
    </div>
    <${Foldable} label=${t.chat.settings} icon="tuning" className="card settings">
      <${SelectField} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${models.map(({ id }) => [id, id])} />
      <${SelectField} label=${t.transcription.task} value=${settings.task} onInput=${set("task")} options=${TASKS.map((task) => [task, t.transcription.taskNames[task]])} />
      <${SelectField} label=${t.transcription.language} value=${settings.language} onInput=${set("language")} options=${[["", t.transcription.detect], ...LANGUAGES]} />
      <${TextArea} label=${t.transcription.prompt} hint=${t.transcription.promptHint} value=${settings.prompt} onInput=${set("prompt")} rows="3" placeholder=${t.transcription.promptExample} />
    <//>
  </form>`;
}

/** Where the audio comes from: the microphone, or a file that is chosen or dropped. */
function Source({ source, choose, disabled }) {
  const [dragged, setDragged] = useState(false);
  const drag = (over) => (event) => {
    event.preventDefault();
    setDragged(over && !disabled);
  };
  const drop = (event) => {
    drag(false)(event);
    if (!disabled) choose(event.dataTransfer.files[0]);
  };
  const chosen = (event) => {
    choose(event.target.files[0]);
    // The same file can be chosen again.
    event.target.value = "";
  };
  return html`<div class="audio-source">
    <label class=${dragged ? "drop-zone dragged" : "drop-zone"} onDragOver=${drag(true)} onDragLeave=${drag(false)} onDrop=${drop}>
      <input type="file" class="visually-hidden" accept="audio/*,video/*,.caf,.mka,.mkv" disabled=${disabled} onChange=${chosen} />
      <strong>${t.transcription.choose}</strong>
      <span class="muted">${source ? t.transcription.chosen(source.file.name, bytes(source.file.size)) : t.transcription.formats}</span>
    </label>
    <${Recorder} disabled=${disabled} onRecorded=${choose} />
  </div>`;
}

/** The player, the text and its downloads. */
function Result({ source, result, busy }) {
  const [audio, setAudio] = useState(null);
  const [unplayable, setUnplayable] = useState(false);
  useEffect(() => setUnplayable(false), [source]);
  if (!source) return html`<${EmptyState} title=${t.transcription.empty}><p>${t.transcription.emptyHint}</p><//>`;
  const finished = result?.took !== undefined;
  return html`<section class="transcription" aria-label=${t.transcription.result}>
    <audio ref=${setAudio} controls preload="metadata" src=${source.url} aria-label=${t.transcription.player(source.file.name)} onLoadedMetadata=${findDuration} onError=${() => setUnplayable(true)}></audio>
    ${unplayable && html`<p class="muted">${t.transcription.unplayable}</p>`}
    ${busy && html`<p class="muted loading" role="status">${t.transcription.running(clock(result?.segments.at(-1)?.end ?? 0))}</p>`}
    ${finished && html`<p class="muted" role="status">${t.transcription.finished(duration(result.seconds ?? 0), duration(result.took), result.language)}</p>`}
    ${finished && !result.segments.length && html`<p>${t.transcription.noSpeech}</p>`}
    ${result?.segments.length > 0 && html`<${TimedTranscript} segments=${result.segments} audio=${unplayable ? null : audio} />`}
    ${result?.segments.length > 0 && !busy && html`<div class="actions" role="group" aria-label=${t.transcription.downloads}>
      ${DOWNLOADS.map(([ending, type, content]) => html`<button key=${ending} type="button" onClick=${() => save(source.file.name, ending, type, content(result))}>${t.transcription.download(ending)}</button>`)}
      <${CopyButton} text=${plainText(result)} label=${t.transcription.copyText} />
    </div>`}
  </section>`;
}

const save = (name, ending, type, text) => downloadBlob(`${name.replace(/\.[^.]*$/, "")}.${ending}`, new Blob([text], { type }));

/** Recordings have no duration in their header; a jump to their end lets the browser find it. */
function findDuration({ currentTarget: audio }) {
  if (audio.duration !== Infinity) return;
  audio.addEventListener("durationchange", () => (audio.currentTime = 0), { once: true });
  audio.currentTime = Number.MAX_SAFE_INTEGER;
}
