// Image generation with progress and previews. The gallery lasts as long as the page is open.

import { html, useEffect, useRef, useState } from "../../html.js";
import { apiPath, get, stream } from "../../api.js";
import { t } from "../../strings.js";
import { TextArea, EmptyState, ErrorAlert, Foldable, throttle, SelectField, TextField, useAction, useLoad } from "../../ui.js";

const SCHEDULERS = ["ddim", "ddpm", "pndm", "euler", "euler_a", "dpmpp_2m", "dpmpp_2m_karras", "unipc", "lcm", "flow_euler"];
const NUMBERS = ["steps", "guidance_scale", "seed"];
const PREVIEWS = 2;
// Minimum time between two progress updates.
const UPDATE_MS = 100;
// Images are held in the page's memory.
const MAX_IMAGES = 40;

function requestBody(settings) {
  const body = { model: settings.model, prompt: settings.prompt };
  for (const name of ["negative_prompt", "size", "scheduler"]) if (settings[name].trim()) body[name] = settings[name].trim();
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.n > 1) body.n = Number(settings.n);
  return body;
}

const dataUrl = ({ b64_json: data, output_format: format }) => `data:image/${format};base64,${data}`;

export function Images({ models, showCode }) {
  const [settings, setSettings] = useState({ model: models[0].id, prompt: "", negative_prompt: "", size: "", steps: "", guidance_scale: "", seed: "", scheduler: "", n: "1" });
  const [gallery, setGallery] = useState([]);
  const [progress, setProgress] = useState(null);
  const abort = useRef(null);
  const generated = useRef(0);
  const set = (name) => (value) => setSettings((settings) => ({ ...settings, [name]: value }));
  const [model] = useLoad(() => get(apiPath`/models/${settings.model}`, { include_limits: true }), [settings.model]);
  useEffect(() => () => abort.current?.abort(), []);

  const [generate, busy, error] = useAction(async () => {
    abort.current = new AbortController();
    let current = { step: 0, steps: 0 };
    setProgress(current);
    const show = throttle(UPDATE_MS, setProgress);
    const update = (changes) => show((current = { ...current, ...changes }));
    const prompt = settings.prompt;
    try {
      const body = { ...requestBody(settings), stream: true, partial_images: PREVIEWS };
      for await (const { name, data } of stream("/images/generations", body, abort.current.signal)) {
        if (name.endsWith(".progress")) update(data);
        if (name.endsWith(".partial_image")) update({ preview: dataUrl(data) });
        if (name.endsWith(".completed")) {
          setGallery((images) => [{ id: ++generated.current, source: dataUrl(data), seed: data.seed, size: data.size, format: data.output_format, prompt }, ...images].slice(0, MAX_IMAGES));
          update({ preview: null });
        }
      }
    } finally {
      show.cancel();
      setProgress(null);
    }
  });
  const submit = (event) => {
    event.preventDefault();
    if (settings.prompt.trim() && !busy) generate();
  };
  // Two elements with their own keys: reusing one while it is pressed would submit the form.
  const action = busy
    ? html`<button key="stop" type="button" class="danger" onClick=${() => abort.current?.abort()}>${t.images.stop}</button>`
    : html`<button key="generate" class="primary" disabled=${!settings.prompt.trim()}>${t.images.generate}</button>`;
  const sizes = model?.limits?.image_sizes ?? [];
  return html`<form class="playground" onSubmit=${submit}>
    <div>
      <${TextArea} label=${t.images.prompt} value=${settings.prompt} onInput=${set("prompt")} rows="3" placeholder=${t.images.promptExample} />
      <div class="actions">
        ${action}
        <button type="button" onClick=${() => showCode({ call: "images", path: "/images/generations", body: requestBody(settings) })}>${t.playground.viewCode}</button>
      </div>
      <${ErrorAlert} error=${error} />
      ${progress && html`<div class="card" role="status"><p>${progress.steps ? t.images.step(progress.step, progress.steps) : t.images.queued}</p>
        <progress max=${progress.steps || 1} value=${progress.steps ? progress.step : undefined} aria-label=${t.images.progress}></progress>
        ${progress.preview && html`<img class="preview" src=${progress.preview} alt="" />`}</div>`}
      <h2>${t.images.gallery}</h2>
      ${!gallery.length && html`<${EmptyState} title=${t.images.empty}><p>${t.images.emptyHint}</p><//>`}
      <div class="gallery">${gallery.map((image) => html`<figure key=${image.id}>
        <img src=${image.source} alt=${t.images.alt(image.prompt)} />
        <figcaption><p>${image.prompt}</p><p class="muted">${t.images.seedOf(image.seed)} · ${image.size}</p>
          <button type="button" class="text-button" onClick=${() => set("seed")(String(image.seed))}>${t.images.reuseSeed}</button>
          <a class="button text-button" href=${image.source} download=${`${image.seed}.${image.format}`}>${t.images.download}</a></figcaption>
      </figure>`)}</div>
    </div>
    <${Foldable} label=${t.chat.settings} icon="tuning" className="card settings">
      <${SelectField} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${models.map(({ id }) => [id, id])} />
      <${TextArea} label=${t.images.negativePrompt} value=${settings.negative_prompt} onInput=${set("negative_prompt")} rows="2" placeholder=${t.images.negativeExample} />
      <div class="two-columns">
        <${TextField} label=${t.images.size} value=${settings.size} onInput=${set("size")} placeholder=${sizes[0] ?? "512x512"} pattern="[0-9]+x[0-9]+" list="image-sizes" />
        <datalist id="image-sizes">${sizes.map((size) => html`<option key=${size} value=${size} />`)}</datalist>
        <${TextField} label=${t.images.count} type="number" min="1" max="10" value=${settings.n} onInput=${set("n")} />
        <${TextField} label=${t.images.steps} type="number" min="1" max="500" value=${settings.steps} onInput=${set("steps")} placeholder=${t.images.modelDefault} />
        <${TextField} label=${t.images.guidance} type="number" min="0" max="100" step="any" value=${settings.guidance_scale} onInput=${set("guidance_scale")} placeholder=${t.images.modelDefault} />
      </div>
      <${TextField} label=${t.images.seed} type="number" min="0" value=${settings.seed} onInput=${set("seed")} placeholder=${t.images.randomSeed} />
      <${SelectField} label=${t.images.scheduler} value=${settings.scheduler} onInput=${set("scheduler")} options=${[["", t.images.modelDefault], ...SCHEDULERS.map((name) => [name, name])]} />
    <//>
  </form>`;
}
