// API keys of a project: made, rotated, revoked.

import { html, useState } from "../html.js";
import { all, patch, post, put, remove } from "../api.js";
import { toTime } from "../format.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Badge, Confirm, Copy, Dialog, Empty, Failure, FormDialog, Page, Select, Table, Text, Time, useAction, useLoad, useModels, Waiting } from "../ui.js";

const GRACE = [[0, t.keys.noGrace], [3600, t.keys.hour], [86_400, t.keys.day], [604_800, t.keys.week], [2_592_000, t.keys.month]];

/** What a key is at a time: revoked, expired, rotating, or in use. */
function state(key, now = Date.now()) {
  const past = (time) => time && new Date(time) <= now;
  if (key.revoked_at) return ["bad", t.keys.revoked];
  if (past(key.expires_at)) return ["bad", t.keys.expired];
  if (key.previous_valid_until && !past(key.previous_valid_until)) return ["warn", t.keys.rotating];
  return ["good", t.keys.active];
}

export function Keys({ project, me }) {
  const [keys, error, again] = useLoad(() => all("/api-keys", { project_id: project.id }), [project.id]);
  const [open, setOpen] = useState(null);
  const close = (changed) => {
    setOpen(null);
    if (changed) again();
  };
  const action = (key, kind, text, danger) =>
    html`<button type="button" class=${`plain ${danger ? "wrong" : ""}`} onClick=${() => setOpen([kind, key])}>${text}<span class="hidden"> ${key.name}</span></button>`;
  const columns = [
    { title: t.name, cell: (key) => html`<strong>${key.name}</strong>${key.id === me.id && html` <${Badge}>${t.keys.current}<//>`}<br /><code class="dim">${key.redacted_value}</code>` },
    { title: t.status, cell: (key) => html`<${Badge} kind=${state(key)[0]}>${state(key)[1]}<//>${state(key)[0] === "warn" &&
      html`<br /><span class="dim">${t.keys.oldSecretExpires} <${Time} value=${key.previous_valid_until} /></span>`}` },
    { title: t.keys.scopes, cell: (key) => html`<span class="badges">${key.scopes.map((scope) => html`<${Badge}>${scope}<//>`)}</span>${key.models &&
      html`<br /><span class="dim">${t.keys.onlyModels(key.models.join(", "))}</span>`}` },
    { title: t.keys.lastUsed, cell: (key) => html`<${Time} value=${key.last_used_at} none=${t.never} />` },
    { title: t.keys.expires, cell: (key) => html`<${Time} value=${key.expires_at} none=${t.never} />` },
    { title: t.created, cell: (key) => html`<${Time} value=${key.created_at} />` },
    { title: html`<span class="hidden">${t.actions}</span>`, cell: (key) => !key.revoked_at && html`<div class="actions">
      ${action(key, "edit", t.edit)} ${action(key, "rotate", t.keys.rotate)} ${action(key, "revoke", t.keys.revoke, true)}</div>` },
  ];
  const [kind, key] = open ?? [];
  return html`<${Page} title=${t.pages.keys} about=${t.keys.about(project.name)}
      actions=${!project.archived_at && html`<button type="button" class="first" onClick=${() => setOpen(["create"])}>${t.keys.create}</button>`}>
    <${Failure} error=${error} again=${again} />
    ${!keys && !error && html`<${Waiting} />`}
    ${keys?.length === 0 && html`<${Empty} title=${t.keys.empty}><p>${t.keys.emptyHint}</p><//>`}
    ${keys?.length > 0 && html`<${Table} label=${t.pages.keys} columns=${columns} rows=${keys} keyed=${(key) => key.id} />`}
    ${kind === "create" && html`<${Create} project=${project} close=${close} />`}
    ${kind === "edit" && html`<${Edit} shown=${key} close=${close} />`}
    ${kind === "rotate" && html`<${Rotate} shown=${key} me=${me} close=${close} />`}
    ${kind === "revoke" && html`<${Revoke} shown=${key} close=${close} />`}
  <//>`;
}

/** A secret, shown this once. */
function Secret({ secret, close }) {
  return html`<${Dialog} title=${t.keys.secretTitle} close=${close}>
    <p>${t.keys.secretAbout}</p>
    <div class="secret"><code>${secret}</code><${Copy} text=${secret} /></div>
    <div class="actions"><button type="button" class="first" onClick=${close}>${t.done}</button></div>
  <//>`;
}

/** `YYYY-MM-DDTHH:MM` of a time, in the reader's own zone. */
function local(time) {
  if (!time) return "";
  const date = new Date(time);
  return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function Create({ project, close }) {
  const [name, setName] = useState("");
  const [expires, setExpires] = useState("");
  const [scopes, setScopes] = useState(["project", "inference"]);
  const [models, setModels] = useState([]);
  const [installed] = useModels();
  const [make, busy, error] = useAction(async () =>
    post("/api-keys", { name, project_id: project.id, scopes, expires_at: toTime(expires), models: models.length ? models : undefined }));
  const [secret, setSecret] = useState(null);
  if (secret) return html`<${Secret} secret=${secret} close=${() => close(true)} />`;
  const submit = async () => {
    const made = await make();
    if (made) setSecret(made.secret);
  };
  const toggle = (list, set, one) => set(list.includes(one) ? list.filter((other) => other !== one) : [...list, one]);
  const offered = ["inference", "project", "admin"].filter((scope) => session.may(scope));
  return html`<${FormDialog} title=${t.keys.create} action=${t.create} ...${{ close: () => close(false), submit, busy, error }}>
    <${Text} label=${t.name} value=${name} onInput=${setName} required maxlength="200" hint=${t.keys.nameHint} autofocus />
    <fieldset class="field"><legend>${t.keys.scopes}</legend><div class="choices">
      ${offered.map((scope) => html`<label><input type="checkbox" checked=${scopes.includes(scope)} onChange=${() => toggle(scopes, setScopes, scope)} />
        <span><strong>${scope}</strong> <span class="dim">${t.keys.scope[scope]}</span></span></label>`)}
    </div></fieldset>
    <${Text} label=${t.keys.expires} type="datetime-local" value=${expires} onInput=${setExpires} hint=${t.keys.expiresHint} />
    ${installed?.length > 0 && html`<fieldset class="field"><legend>${t.keys.models}</legend><div class="choices">
      ${installed.map((model) => html`<label><input type="checkbox" checked=${models.includes(model.id)} onChange=${() => toggle(models, setModels, model.id)} />${model.id}</label>`)}
    </div><p class="dim">${t.keys.modelsHint}</p></fieldset>`}
  <//>`;
}

function Edit({ shown, close }) {
  const [name, setName] = useState(shown.name);
  const [expires, setExpires] = useState(local(shown.expires_at));
  const [save, busy, error] = useAction(() =>
    patch(`/api-keys/${shown.id}`, { name, expires_at: expires === local(shown.expires_at) ? undefined : (toTime(expires) ?? null) }));
  const submit = async () => (await save()) && close(true);
  return html`<${FormDialog} title=${t.keys.editTitle(shown.name)} action=${t.save} ...${{ close: () => close(false), submit, busy, error }}>
    <${Text} label=${t.name} value=${name} onInput=${setName} required maxlength="200" />
    <${Text} label=${t.keys.expires} type="datetime-local" value=${expires} onInput=${setExpires} hint=${t.keys.expiresHint} />
  <//>`;
}

function Rotate({ shown, me, close }) {
  const [grace, setGrace] = useState("86400");
  const [reason, setReason] = useState("");
  const [secret, setSecret] = useState(null);
  const [rotate, busy, error] = useAction(() =>
    put(`/api-keys/${shown.id}`, { grace_period_seconds: Number(grace), reason: reason || undefined }));
  const submit = async () => {
    const rotated = await rotate();
    if (!rotated) return;
    // Whoever rotates the key that he is signed in with stays signed in.
    if (shown.id === me.id) session.begin(rotated.secret, session.me);
    setSecret(rotated.secret);
  };
  if (secret) return html`<${Secret} secret=${secret} close=${() => close(true)} />`;
  return html`<${FormDialog} title=${t.keys.rotateTitle(shown.name)} action=${t.keys.rotate} ...${{ close: () => close(false), submit, busy, error }}>
    <p>${t.keys.rotateAbout}</p>
    <${Select} label=${t.keys.grace} value=${grace} onInput=${setGrace} options=${GRACE.map(([seconds, text]) => [String(seconds), text])} />
    <${Text} label=${t.keys.reason} value=${reason} onInput=${setReason} maxlength="500" hint=${t.keys.reasonHint} />
  <//>`;
}

const Revoke = ({ shown, close }) => html`<${Confirm} title=${t.keys.revokeTitle(shown.name)} action=${t.keys.revoke} close=${() => close(false)}
  act=${() => remove(`/api-keys/${shown.id}`)} done=${() => close(true)}>${t.keys.revokeAbout}<//>`;
