// API keys of a project: create, edit, rotate, revoke.

import { html, useState } from "../html.js";
import { all, apiPath, patch, post, put, remove } from "../api.js";
import { toTime } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Table } from "../table.js";
import { Badge, ConfirmDialog, CopyButton, Dialog, EmptyState, ErrorAlert, FormDialog, Page, SelectField, TextField, RelativeTime, useAction, useLoad, useModels, Loading } from "../ui.js";

const GRACE_PERIODS = [[0, t.keys.noGrace], [3600, t.keys.hour], [86_400, t.keys.day], [604_800, t.keys.week], [2_592_000, t.keys.month]];

/** The status of a key: `[badge kind, text]`. */
function status(key, now = Date.now()) {
  const isPast = (time) => time && new Date(time) <= now;
  if (key.revoked_at) return ["danger", t.keys.revoked];
  if (isPast(key.expires_at)) return ["danger", t.keys.expired];
  if (key.previous_valid_until && !isPast(key.previous_valid_until)) return ["warning", t.keys.rotating];
  return ["success", t.keys.active];
}

/** `rest`: `["new"]` opens the dialog for a new key. `nested`: shown in a tab of the project's page. */
export function ApiKeys({ project, me, rest = [], nested }) {
  const [keys, error, reload] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const [open, setOpen] = useState(() => (rest[0] === "new" && !project.archived_at ? ["create"] : null));
  const close = (changed) => {
    setOpen(null);
    if (changed) reload();
    // So that a reload does not open the dialog again.
    if (rest[0] === "new") history.replaceState(null, "", "#/keys");
  };
  const action = (key, kind, text, danger) =>
    html`<button type="button" class=${`text-button ${danger ? "error" : ""}`} onClick=${() => setOpen([kind, key])}>${text}<span class="visually-hidden"> ${key.name}</span></button>`;
  const columns = [
    { title: t.name, sort: (key) => key.name, cell: (key) => html`<strong>${key.name}</strong>${key.id === me.id && html` <${Badge}>${t.keys.current}<//>`}<br /><code class="muted">${key.redacted_value}</code>` },
    { title: t.status, sort: (key) => status(key)[1], cell: (key) => html`<${Badge} kind=${status(key)[0]}>${status(key)[1]}<//>${status(key)[0] === "warning" &&
      html`<br /><span class="muted">${t.keys.oldSecretExpires} <${RelativeTime} value=${key.previous_valid_until} /></span>`}` },
    { title: t.keys.scopes, sort: (key) => key.scopes.join(), cell: (key) => html`<span class="badges">${key.scopes.map((scope) => html`<${Badge}>${scope}<//>`)}</span>${key.models &&
      html`<br /><span class="muted">${t.keys.onlyModels(key.models.join(", "))}</span>`}` },
    { title: t.keys.lastUsed, sort: (key) => key.last_used_at, cell: (key) => html`<${RelativeTime} value=${key.last_used_at} none=${t.never} />` },
    { title: t.keys.expires, sort: (key) => key.expires_at, cell: (key) => html`<${RelativeTime} value=${key.expires_at} none=${t.never} />` },
    { title: t.created, sort: (key) => key.created_at, cell: (key) => html`<${RelativeTime} value=${key.created_at} />` },
    { title: t.actions, cell: (key) => !key.revoked_at && html`<div class="actions">
      ${action(key, "edit", t.edit)} ${action(key, "rotate", t.keys.rotate)} ${action(key, "revoke", t.keys.revoke, true)}</div>` },
  ];
  const [kind, key] = open ?? [];
  return html`<${Page} title=${t.pages.keys} about=${t.keys.about(project.name)} nested=${nested}
      actions=${!project.archived_at && html`<button type="button" class="primary" onClick=${() => setOpen(["create"])}>${t.keys.create}</button>`}>
    <${ErrorAlert} error=${error} retry=${reload} />
    ${!keys && !error && html`<${Loading} />`}
    ${keys?.length === 0 && html`<${EmptyState} title=${t.keys.empty}><p>${t.keys.emptyHint}</p><//>`}
    ${keys?.length > 0 && html`<${Table} label=${t.pages.keys} columns=${columns} rows=${keys} rowKey=${(key) => key.id} />`}
    ${kind === "create" && html`<${CreateKey} project=${project} close=${close} />`}
    ${kind === "edit" && html`<${EditKey} apiKey=${key} close=${close} />`}
    ${kind === "rotate" && html`<${RotateKey} apiKey=${key} me=${me} close=${close} />`}
    ${kind === "revoke" && html`<${RevokeKey} apiKey=${key} close=${close} />`}
  <//>`;
}

/** Shows a new secret, once. */
function NewSecret({ secret, close }) {
  return html`<${Dialog} title=${t.keys.secretTitle} close=${close}>
    <p>${t.keys.secretAbout}</p>
    <div class="secret"><code>${secret}</code><${CopyButton} text=${secret} /></div>
    <div class="actions"><button type="button" class="primary" onClick=${close}>${t.done}</button></div>
  <//>`;
}

/** A time as `YYYY-MM-DDTHH:MM` in the local time zone. */
function toLocal(time) {
  if (!time) return "";
  const date = new Date(time);
  return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function CreateKey({ project, close }) {
  const [name, setName] = useState("");
  const [expires, setExpires] = useState("");
  const grantable = ["inference", "project", "admin"].filter((scope) => session.hasScope(scope));
  // An application only calls models.
  const [scopes, setScopes] = useState(grantable.slice(0, 1));
  const [models, setModels] = useState([]);
  const [installed] = useModels();
  const [create, busy, error] = useAction(async () =>
    post("/api-keys", { name, project_id: project.id, scopes, expires_at: toTime(expires), models: models.length ? models : undefined }));
  const [secret, setSecret] = useState(null);
  if (secret) return html`<${NewSecret} secret=${secret} close=${() => close(true)} />`;
  const submit = async () => {
    const created = await create();
    if (created) setSecret(created.secret);
  };
  const toggle = (list, set, item) => set(list.includes(item) ? list.filter((other) => other !== item) : [...list, item]);
  return html`<${FormDialog} title=${t.keys.create} action=${t.create} ...${{ close: () => close(false), submit, busy, error }}>
    <${TextField} label=${t.name} value=${name} onInput=${setName} required maxlength="200" hint=${t.keys.nameHint} autofocus />
    <fieldset class="field"><legend>${t.keys.scopes}</legend><div class="scopes">
      ${grantable.map((scope) => html`<label key=${scope}><input type="checkbox" checked=${scopes.includes(scope)} onChange=${() => toggle(scopes, setScopes, scope)} />
        <span><strong>${scope}</strong><span class="muted">${t.keys.scope[scope]}</span></span></label>`)}
    </div></fieldset>
    <${TextField} label=${t.keys.expires} type="datetime-local" value=${expires} onInput=${setExpires} hint=${t.keys.expiresHint} />
    ${installed?.length > 0 && html`<fieldset class="field"><legend>${t.keys.models}</legend><div class="checkboxes">
      ${installed.map((model) => html`<label><input type="checkbox" checked=${models.includes(model.id)} onChange=${() => toggle(models, setModels, model.id)} />${model.id}</label>`)}
    </div><p class="muted">${t.keys.modelsHint}</p></fieldset>`}
  <//>`;
}

function EditKey({ apiKey, close }) {
  const [name, setName] = useState(apiKey.name);
  const [expires, setExpires] = useState(toLocal(apiKey.expires_at));
  const [save, busy, error] = useAction(() =>
    patch(apiPath`/api-keys/${apiKey.id}`, { name, expires_at: expires === toLocal(apiKey.expires_at) ? undefined : (toTime(expires) ?? null) }));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${t.keys.editTitle(apiKey.name)} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${TextField} label=${t.name} value=${name} onInput=${setName} required maxlength="200" />
    <${TextField} label=${t.keys.expires} type="datetime-local" value=${expires} onInput=${setExpires} hint=${t.keys.expiresHint} />
  <//>`;
}

function RotateKey({ apiKey, me, close }) {
  const [grace, setGrace] = useState("86400");
  const [reason, setReason] = useState("");
  const [secret, setSecret] = useState(null);
  const [rotate, busy, error] = useAction(() =>
    put(apiPath`/api-keys/${apiKey.id}`, { grace_period_seconds: Number(grace), reason: reason || undefined }));
  const submit = async () => {
    const rotated = await rotate();
    if (!rotated) return;
    // After rotating the key of this session, continue with the new secret.
    if (apiKey.id === me.id) session.signIn(rotated.secret, session.me);
    setSecret(rotated.secret);
  };
  if (secret) return html`<${NewSecret} secret=${secret} close=${() => close(true)} />`;
  return html`<${FormDialog} title=${t.keys.rotateTitle(apiKey.name)} action=${t.keys.rotate} ...${{ close: () => close(false), submit, busy, error }}>
    <p>${t.keys.rotateAbout}</p>
    <${SelectField} label=${t.keys.grace} value=${grace} onInput=${setGrace} options=${GRACE_PERIODS.map(([seconds, text]) => [String(seconds), text])} />
    <${TextField} label=${t.keys.reason} value=${reason} onInput=${setReason} maxlength="500" hint=${t.keys.reasonHint} />
  <//>`;
}

const RevokeKey = ({ apiKey, close }) => html`<${ConfirmDialog} title=${t.keys.revokeTitle(apiKey.name)} action=${t.keys.revoke} close=${() => close(false)}
  run=${() => remove(apiPath`/api-keys/${apiKey.id}`)} onDone=${() => close(true)}>${t.keys.revokeAbout}<//>`;
