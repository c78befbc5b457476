// The playground: send requests to models, and copy them as code.

import { html, useState } from "../html.js";
import { CodeDialog } from "../code-samples.js";
import { t } from "../strings.js";
import { EmptyState, ErrorAlert, Page, Tabs, useLoad, useModels, Loading } from "../ui.js";
import { Chat } from "./playground/chat.js";
import { Comparison } from "./playground/comparison.js";
import { Embeddings } from "./playground/embeddings.js";
import { Images } from "./playground/images.js";
import { PullCommand } from "./models.js";

const PRESETS = ["agent", "conversation", "model", "compare"];

/** Chat with one model, or with two side by side. `initial`: names of settings, each followed by its value. */
function AnyChat({ initial, ...props }) {
  const pairs = initial.map((name, index) => [name, initial[index + 1]]).filter(([name, value], index) => index % 2 === 0 && PRESETS.includes(name) && value);
  const preset = Object.fromEntries(pairs);
  return preset.compare ? html`<${Comparison} ...${props} preset=${preset} />` : html`<${Chat} ...${props} preset=${preset} />`;
}

/** A view that is loaded when it is opened, because few visits of the dashboard do. `load` returns its module, which exports it as `name`. */
const onRequest = (load, name) => function OnRequest(props) {
  const [module, error, retry] = useLoad(load, []);
  if (module) return html`<${module[name]} ...${props} />`;
  return error ? html`<${ErrorAlert} error=${error} retry=${retry} />` : html`<${Loading} />`;
};
const Speech = onRequest(() => import("./playground/speech.js"), "Speech");
const Transcription = onRequest(() => import("./playground/transcription.js"), "Transcription");

// Name, view, the capability that the model must have, its label, and a model to install if there is none.
const KINDS = [
  ["chat", AnyChat, "chat_completions", t.playground.capability.chat],
  ["images", Images, "image_generation", t.playground.capability.images],
  ["embeddings", Embeddings, "embeddings", t.playground.capability.embeddings],
  ["transcription", Transcription, "transcription", t.playground.capability.transcription, "whisper-tiny.en"],
  ["speech", Speech, "speech", t.playground.capability.speech, "kokoro-82m"],
];

/** `rest`: the kind, and for chat an initial selection, such as `["chat", "conversation", "conv_…"]` or `["chat", "model", "a", "compare", "b"]`; for audio, a model. */
export function Playground({ project, rest }) {
  const kind = KINDS.find(([name]) => name === rest[0]) ?? KINDS[0];
  const [name, View, capability, label, suggestion] = kind;
  const [models, error, reload] = useModels();
  const [request, setRequest] = useState(null);
  const capable = models?.filter((model) => model.capabilities[capability]);
  return html`<${Page} title=${t.pages.playground} about=${t.playground.about}>
    <${Tabs} label=${t.playground.kind} selected=${name} onSelect=${(one) => (location.hash = `#/playground/${one}`)} tabs=${KINDS.map(([one]) => [one, t.playground.kinds[one]])} />
    <${ErrorAlert} error=${error} retry=${reload} />
    ${!models && !error && html`<${Loading} />`}
    ${capable?.length === 0 && html`<${EmptyState} title=${t.playground.noModel(label)}>${suggestion && html`<p>${t.playground.pullHint}</p><${PullCommand} model=${suggestion} />`}<p><a href="#/models">${t.playground.noModelHint}</a></p><//>`}
    ${capable?.length > 0 && html`<${View} key=${rest.join("/")} project=${project} models=${capable} initial=${rest.slice(1)} showCode=${setRequest} />`}
    ${request && html`<${CodeDialog} request=${request} close=${() => setRequest(null)} />`}
  <//>`;
}
