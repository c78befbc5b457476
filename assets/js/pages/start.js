// Where everybody arrives: the way from a key to an application, in three steps.

import { html } from "../html.js";
import { all, get } from "../api.js";
import { code } from "../code.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, Code, Failure, Page, useLoad, useModels } from "../ui.js";

export function Start({ project, me }) {
  const [models, error, again] = useModels();
  const [keys] = useLoad(async () => (session.may("project") ? all("/api-keys", { project_id: project.id }) : []), [project.id]);
  const [usage] = useLoad(async () => (session.may("project") ? get(`/projects/${project.id}/usage`) : null), [project.id]);
  const chat = models?.find((model) => model.capabilities.chat_completions);
  const asked = usage && (usage.tokens.total > 0 || usage.image_generations > 0);
  const body = { model: chat?.id ?? "MODEL", messages: [{ role: "user", content: "What is an outpost?" }] };
  const done = (yes) => yes && html` <${Badge} kind="good">${t.done}<//>`;
  return html`<${Page} title=${t.pages.start} about=${t.start.about}>
    <${Failure} error=${error} again=${again} />
    ${models?.length === 0 && html`<div class="note"><p>${t.start.noModels}</p><${Code} text="outpost models pull starter" label=${t.models.pullCommand} /></div>`}
    <ol class="steps">
      <li><h2>${t.start.createKey}${done(keys?.some((key) => key.id !== me.id))}</h2>
        <p>${t.start.createKeyAbout}</p>
        ${session.may("project") && html`<a class="button" href="#/keys">${t.start.createKeyAction}</a>`}</li>
      <li><h2>${t.start.request}${done(asked)}</h2>
        <p>${t.start.requestAbout}</p>
        <${Code} text=${code("curl", { call: "chat.completions", path: "/v1/chat/completions", body })} label=${t.start.request} />
        <div class="grid">
          <${Address} label=${t.start.baseUrl} text=${`${location.origin}/v1`} hint=${t.start.baseUrlHint} />
          <${Address} label=${t.start.strictBaseUrl} text=${`${location.origin}/openai/v1`} hint=${t.start.strictBaseUrlHint} />
        </div></li>
      ${session.may("inference") && html`<li><h2>${t.start.play}</h2>
        <p>${t.start.playAbout}</p>
        <a class="button first" href="#/playground">${t.start.playAction}</a></li>`}
    </ol>
    <p class="dim">${t.start.reference}<a href="/openapi.json">/openapi.json</a></p>
  <//>`;
}

const Address = ({ label, text, hint }) => html`<div class="card"><h3>${label}</h3><${Code} text=${text} label=${label} /><p class="dim">${hint}</p></div>`;
