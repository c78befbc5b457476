// The playground: ask models as applications do, and take the request along.

import { html, useState } from "../html.js";
import { CodeDialog } from "../code.js";
import { t } from "../strings.js";
import { Empty, Failure, Page, Tabs, useModels, Waiting } from "../ui.js";
import { Chat } from "./playground/chat.js";
import { Embeddings } from "./playground/embeddings.js";
import { Images } from "./playground/images.js";

// Name, the view, what its models must be able to do, and that in words.
const KINDS = [
  ["chat", Chat, "chat_completions", t.playground.capability.chat],
  ["images", Images, "image_generation", t.playground.capability.images],
  ["embeddings", Embeddings, "embeddings", t.playground.capability.embeddings],
];

/** `rest`: the kind, and for a chat what to begin with, such as `["chat", "conversation", "conv_…"]`. */
export function Playground({ project, rest }) {
  const kind = KINDS.find(([name]) => name === rest[0]) ?? KINDS[0];
  const [name, View, capability, what] = kind;
  const [models, error, again] = useModels();
  const [shown, setShown] = useState(null);
  const able = models?.filter((model) => model.capabilities[capability]);
  return html`<${Page} title=${t.pages.playground} about=${t.playground.about}>
    <${Tabs} label=${t.playground.kind} at=${name} choose=${(one) => (location.hash = `#/playground/${one}`)} tabs=${KINDS.map(([one]) => [one, t.playground.kinds[one]])} />
    <${Failure} error=${error} again=${again} />
    ${!models && !error && html`<${Waiting} />`}
    ${able?.length === 0 && html`<${Empty} title=${t.playground.noModel(what)}><p><a href="#/models">${t.playground.noModelHint}</a></p><//>`}
    ${able?.length > 0 && html`<${View} key=${rest.join("/")} project=${project} models=${able} begin=${rest.slice(1)} show=${setShown} />`}
    ${shown && html`<${CodeDialog} request=${shown} close=${() => setShown(null)} />`}
  <//>`;
}
