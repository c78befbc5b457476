// The default page: from a key to a first request.

import { html } from "../html.js";
import { all, apiPath, get } from "../api.js";
import { CLIENT_MOUNT, CodeSamples } from "../code-samples.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, CodeBlock, ErrorAlert, Page, useLoad, useModels } from "../ui.js";
import { PullCommand } from "./models.js";

export function GetStarted({ project, me }) {
  const [models, error, reload] = useModels();
  const canManage = session.hasScope("project");
  const [keys] = useLoad(async () => (canManage ? all("/api-keys", { project_id: project.id }) : []), [project.id]);
  const [usage] = useLoad(async () => (canManage ? get(apiPath`/projects/${project.id}/usage`) : null), [project.id]);
  const chatModel = models?.find((model) => model.capabilities.chat_completions);
  const body = { model: chatModel?.id ?? "MODEL", messages: [{ role: "user", content: t.start.question }] };
  // Admin keys are those of the installation and of browsers.
  const hasKey = keys?.some((key) => key.id !== me.id && !key.revoked_at && !key.scopes.includes("admin"));
  const hasUsage = usage && (usage.tokens.total > 0 || usage.image_generations > 0);
  const steps = [
    canManage && { title: t.start.createKey, done: hasKey, content: html`<p>${t.start.createKeyAbout}</p>
      <a class=${`button ${hasKey ? "" : "primary"}`} href="#/keys/new">${t.start.createKeyAction}</a>` },
    { title: t.start.request, done: hasUsage, content: html`<p>${t.start.requestAbout}</p>
      <${CodeSamples} request=${{ call: "chat.completions", path: "/chat/completions", body }} />
      <p class="muted">${t.start.mounts}</p>
      <dl class="base-urls">
        <dt>${t.start.clientUrl}</dt><dd><${CodeBlock} wrap text=${`${location.origin}${CLIENT_MOUNT}`} label=${t.start.clientUrl} /></dd>
        <dt>${t.start.baseUrl}</dt><dd><${CodeBlock} wrap text=${`${location.origin}/v1`} label=${t.start.baseUrl} /></dd>
      </dl>` },
    session.hasScope("inference") && { title: t.start.play, content: html`<p>${t.start.playAbout}</p>
      <a class=${`button ${hasKey || !canManage ? "primary" : ""}`} href="#/playground">${t.start.playAction}</a>` },
  ].filter(Boolean);
  return html`<${Page} title=${t.pages.start} about=${t.start.about}>
    <${ErrorAlert} error=${error} retry=${reload} />
    ${models?.length === 0 && html`<div class="notice"><p>${t.start.noModels}</p><${PullCommand} /></div>`}
    <ol class="steps">${steps.map(({ title, done, content }) => html`<li key=${title} class="card"><h2>${title}${done && html` <${Badge} kind="success">${t.done}<//>`}</h2>${content}</li>`)}</ol>
    <p class="muted">${t.start.reference}<a href="/openapi.json">/openapi.json</a></p>
  <//>`;
}
