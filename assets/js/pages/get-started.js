// The default page: from a key to a first request in three steps.

import { html } from "../html.js";
import { all, apiPath, get } from "../api.js";
import { codeSample } from "../code-samples.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, CodeBlock, ErrorAlert, Page, useLoad, useModels } from "../ui.js";

export function GetStarted({ project, me }) {
  const [models, error, reload] = useModels();
  const [keys] = useLoad(async () => (session.hasScope("project") ? all("/api-keys", { project_id: project.id }) : []), [project.id]);
  const [usage] = useLoad(async () => (session.hasScope("project") ? get(apiPath`/projects/${project.id}/usage`) : null), [project.id]);
  const chatModel = models?.find((model) => model.capabilities.chat_completions);
  const hasUsage = usage && (usage.tokens.total > 0 || usage.image_generations > 0);
  const body = { model: chatModel?.id ?? "MODEL", messages: [{ role: "user", content: "What is an outpost?" }] };
  const done = (condition) => condition && html` <${Badge} kind="success">${t.done}<//>`;
  return html`<${Page} title=${t.pages.start} about=${t.start.about}>
    <${ErrorAlert} error=${error} retry=${reload} />
    ${models?.length === 0 && html`<div class="notice"><p>${t.start.noModels}</p><${CodeBlock} text="outpost models pull starter" label=${t.models.pullCommand} /></div>`}
    <ol class="steps">
      <li><h2>${t.start.createKey}${done(keys?.some((key) => key.id !== me.id))}</h2>
        <p>${t.start.createKeyAbout}</p>
        ${session.hasScope("project") && html`<a class="button" href="#/keys">${t.start.createKeyAction}</a>`}</li>
      <li><h2>${t.start.request}${done(hasUsage)}</h2>
        <p>${t.start.requestAbout}</p>
        <${CodeBlock} text=${codeSample("curl", { call: "chat.completions", path: "/v1/chat/completions", body })} label=${t.start.request} />
        <div class="grid">
          <${BaseUrl} label=${t.start.baseUrl} text=${`${location.origin}/v1`} hint=${t.start.baseUrlHint} />
          <${BaseUrl} label=${t.start.strictBaseUrl} text=${`${location.origin}/openai/v1`} hint=${t.start.strictBaseUrlHint} />
        </div></li>
      ${session.hasScope("inference") && html`<li><h2>${t.start.play}</h2>
        <p>${t.start.playAbout}</p>
        <a class="button primary" href="#/playground">${t.start.playAction}</a></li>`}
    </ol>
    <p class="muted">${t.start.reference}<a href="/openapi.json">/openapi.json</a></p>
  <//>`;
}

const BaseUrl = ({ label, text, hint }) => html`<div class="card"><h3>${label}</h3><${CodeBlock} text=${text} label=${label} /><p class="muted">${hint}</p></div>`;
