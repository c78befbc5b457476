// Pictures from words: painted step by step, kept in a gallery for as long as the page is open.

import { html, useEffect, useRef, useState } from "../../html.js";
import { get, stream } from "../../api.js";
import { t } from "../../strings.js";
import { Area, Empty, Failure, paced, Select, Text, useAction, useLoad } from "../../ui.js";

const SCHEDULERS = ["ddim", "ddpm", "pndm", "euler", "euler_a", "dpmpp_2m", "dpmpp_2m_karras", "unipc", "lcm", "flow_euler"];
const NUMBERS = ["steps", "guidance_scale", "seed"];
const PREVIEWS = 2;
// Milliseconds between two looks at a picture that is painted.
const FRAME = 100;
// Pictures are held in the page's memory.
const MOST = 40;

function fields(settings) {
  const body = { model: settings.model, prompt: settings.prompt };
  for (const name of ["negative_prompt", "size", "scheduler"]) if (settings[name].trim()) body[name] = settings[name].trim();
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.n > 1) body.n = Number(settings.n);
  return body;
}

const source = ({ b64_json: data, output_format: format }) => `data:image/${format};base64,${data}`;

export function Images({ models, show }) {
  const [settings, setSettings] = useState({ model: models[0].id, prompt: "", negative_prompt: "", size: "", steps: "", guidance_scale: "", seed: "", scheduler: "", n: "1" });
  const [gallery, setGallery] = useState([]);
  const [now, setNow] = useState(null);
  const stop = useRef(null);
  const painted = useRef(0);
  const set = (name) => (value) => setSettings((before) => ({ ...before, [name]: value }));
  const [model] = useLoad(() => get(`/models/${encodeURIComponent(settings.model)}`, { include_limits: true }), [settings.model]);
  useEffect(() => () => stop.current?.abort(), []);

  const [paint, busy, error] = useAction(async () => {
    stop.current = new AbortController();
    let progress = { step: 0, steps: 0 };
    setNow(progress);
    const show = paced(FRAME, setNow);
    const tell = (news) => show((progress = { ...progress, ...news }));
    const prompt = settings.prompt;
    try {
      const body = { ...fields(settings), stream: true, partial_images: PREVIEWS };
      for await (const { name, data } of stream("/images/generations", body, stop.current.signal)) {
        if (name.endsWith(".progress")) tell(data);
        if (name.endsWith(".partial_image")) tell({ preview: source(data) });
        if (name.endsWith(".completed")) {
          setGallery((before) => [{ id: ++painted.current, source: source(data), seed: data.seed, size: data.size, format: data.output_format, prompt }, ...before].slice(0, MOST));
          tell({ preview: null });
        }
      }
    } finally {
      show.stop();
      setNow(null);
    }
  });
  const submit = (event) => {
    event.preventDefault();
    if (settings.prompt.trim() && !busy) paint();
  };
  // Two elements: one that becomes the other while it is pressed would submit the form.
  const action = busy
    ? html`<button key="stop" type="button" class="danger" onClick=${() => stop.current?.abort()}>${t.images.stop}</button>`
    : html`<button key="paint" class="first" disabled=${!settings.prompt.trim()}>${t.images.generate}</button>`;
  const sizes = model?.limits?.image_sizes ?? [];
  return html`<form class="bench" onSubmit=${submit}>
    <div>
      <${Area} label=${t.images.prompt} value=${settings.prompt} onInput=${set("prompt")} rows="3" />
      <div class="actions">
        ${action}
        <button type="button" onClick=${() => show({ call: "images", path: "/v1/images/generations", body: fields(settings) })}>${t.playground.viewCode}</button>
      </div>
      <${Failure} error=${error} />
      ${now && html`<div class="card" role="status"><p>${now.steps ? t.images.step(now.step, now.steps) : t.images.queued}</p>
        <progress max=${now.steps || 1} value=${now.steps ? now.step : undefined} aria-label=${t.images.progress}></progress>
        ${now.preview && html`<img class="preview" src=${now.preview} alt="" />`}</div>`}
      <h2>${t.images.gallery}</h2>
      ${!gallery.length && html`<${Empty} title=${t.images.empty}><p>${t.images.emptyHint}</p><//>`}
      <div class="gallery">${gallery.map((picture) => html`<figure key=${picture.id}>
        <img src=${picture.source} alt=${t.images.alt(picture.prompt)} />
        <figcaption><p>${picture.prompt}</p><p class="dim">${t.images.seedOf(picture.seed)} · ${picture.size}</p>
          <button type="button" class="plain" onClick=${() => set("seed")(String(picture.seed))}>${t.images.reuseSeed}</button>
          <a href=${picture.source} download=${`${picture.seed}.${picture.format}`}>${t.images.download}</a></figcaption>
      </figure>`)}</div>
    </div>
    <section class="card" aria-label=${t.chat.settings}>
      <${Select} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${models.map((one) => [one.id, one.id])} />
      <${Area} label=${t.images.negativePrompt} value=${settings.negative_prompt} onInput=${set("negative_prompt")} rows="2" />
      <div class="pairs">
        <${Text} label=${t.images.size} value=${settings.size} onInput=${set("size")} placeholder=${sizes[0] ?? "512x512"} pattern="[0-9]+x[0-9]+" />
        <${Text} label=${t.images.count} type="number" min="1" max="10" value=${settings.n} onInput=${set("n")} />
        <${Text} label=${t.images.steps} type="number" min="1" max="500" value=${settings.steps} onInput=${set("steps")} placeholder=${t.images.modelDefault} />
        <${Text} label=${t.images.guidance} type="number" min="0" max="100" step="any" value=${settings.guidance_scale} onInput=${set("guidance_scale")} placeholder=${t.images.modelDefault} />
      </div>
      <${Text} label=${t.images.seed} type="number" min="0" value=${settings.seed} onInput=${set("seed")} placeholder=${t.images.randomSeed} />
      <${Select} label=${t.images.scheduler} value=${settings.scheduler} onInput=${set("scheduler")} options=${[["", t.images.modelDefault], ...SCHEDULERS.map((one) => [one, one])]} />
    </section>
  </form>`;
}
