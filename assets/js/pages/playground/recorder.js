// Records the microphone: start, stop, the elapsed time and the sound level.

import { html, useEffect, useRef, useState } from "../../html.js";
import { clock } from "../../format.js";
import { Icon } from "../../icons.js";
import { t } from "../../strings.js";
import { ErrorAlert, Meter, useAction } from "../../ui.js";

// A recording is held in the page's memory.
const MAX_SECONDS = 3600;
const UPDATE_MS = 100;
// The recorder hands over what it has at this interval.
const CHUNK_MS = 1000;
// The level at which the meter begins, in decibels below full scale.
const QUIET_DB = 60;
const ENDINGS = { "audio/webm": "webm", "audio/ogg": "ogg", "audio/mp4": "m4a" };

/** The level of samples from -1 to 1, as a share of the meter. */
function levelOf(samples) {
  const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
  const decibels = 10 * Math.log10(power + 1e-10);
  return Math.min(1, Math.max(0, 1 + decibels / QUIET_DB));
}

/** Measures a stream: `{level, close}`. */
function levelMeter(stream) {
  const context = new AudioContext();
  const analyser = context.createAnalyser();
  context.createMediaStreamSource(stream).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  const level = () => {
    analyser.getFloatTimeDomainData(samples);
    return levelOf(samples);
  };
  return { level, close: () => context.close() };
}

/** Records a stream until the returned function is called. `show` gets `{seconds, level}`, and `done` the file. */
function record(stream, show, done) {
  const recorder = new MediaRecorder(stream);
  const meter = levelMeter(stream);
  const began = performance.now();
  const chunks = [];
  const stop = () => recorder.state !== "inactive" && recorder.stop();
  let timer;
  recorder.ondataavailable = ({ data }) => chunks.push(data);
  recorder.onstop = () => {
    clearInterval(timer);
    release(stream);
    meter.close();
    const type = recorder.mimeType.split(";")[0];
    done(new File(chunks, `recording.${ENDINGS[type] ?? "webm"}`, { type }));
  };
  try {
    recorder.start(CHUNK_MS);
  } catch (error) {
    meter.close();
    throw error;
  }
  timer = setInterval(() => {
    const seconds = (performance.now() - began) / 1000;
    show({ seconds, level: meter.level() });
    if (seconds >= MAX_SECONDS) stop();
  }, UPDATE_MS);
  return stop;
}

const release = (stream) => stream.getTracks().forEach((track) => track.stop());

/** The stream of the microphone, or an error that says what to do. */
async function openMicrophone() {
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    throw new Error(t.transcription.microphoneErrors[error.name] ?? error.message);
  }
}

/** A button that starts and stops a recording. `onRecorded` gets the file. */
export function Recorder({ disabled, onRecorded }) {
  const [recording, setRecording] = useState(null);
  const mounted = useRef(true);
  const stop = useRef(null);
  useEffect(() => () => {
    mounted.current = false;
    stop.current?.();
  }, []);
  const done = (file) => {
    stop.current = null;
    if (!mounted.current) return;
    setRecording(null);
    onRecorded(file);
  };
  const [start, starting, error] = useAction(async () => {
    const stream = await openMicrophone();
    if (!mounted.current) return release(stream);
    try {
      stop.current = record(stream, setRecording, done);
      setRecording({ seconds: 0, level: 0 });
    } catch (error) {
      release(stream);
      throw error;
    }
  });
  // Browsers hide the microphone from pages that came over plain HTTP from another machine.
  const available = Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);
  return html`<div class="recorder">
    ${recording
      ? html`<button key="stop" type="button" class="danger" onClick=${() => stop.current?.()}><${Icon} name="stop" />${t.transcription.stopRecording}</button>
        <span class="elapsed" role="timer" aria-label=${t.transcription.recorded}>${clock(recording.seconds)}</span>
        <${Meter} label=${t.transcription.level} value=${Math.round(recording.level * 100)} max=${100} />`
      : html`<button key="start" type="button" disabled=${disabled || starting || !available} onClick=${start}><${Icon} name="microphone" />${t.transcription.record}</button>
        ${!available && html`<span class="muted">${t.transcription.noMicrophone}</span>`}`}
    <${ErrorAlert} error=${error} />
  </div>`;
}
