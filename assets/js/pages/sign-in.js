// Sign-in with an API key, or with a link that `outpost serve` or `outpost sign-in` has printed: `/#sign-in=TOKEN`.

import { html, useState } from "../html.js";
import { apiPath, get, post, remove } from "../api.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { ErrorAlert, TextField, useAction } from "../ui.js";

/** Where the ID of the last key that a link has created in this tab is kept. */
const LINK_KEY_ID = "outpost.link-key-id";

/** Takes the token of a link out of the address bar and of the tab's history. Returns null if there is none. */
export function takeToken() {
  const token = /^#sign-in=(.*)$/.exec(location.hash)?.[1];
  if (token === undefined) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** Signs in with a new API key, which the server gives for the token of a link. The key of an earlier link is revoked. */
export async function signInWith(token) {
  const { secret } = await post("/sign-in", { token }, { mount: "", key: null });
  const me = await get("/me", {}, { key: secret });
  const earlier = sessionStorage.getItem(LINK_KEY_ID);
  sessionStorage.setItem(LINK_KEY_ID, me.id);
  session.signIn(secret, me);
  if (earlier) revokeLinkKey(earlier, secret);
}

/** Signs out. The key of a link is revoked. */
export function signOut() {
  const { key, me } = session;
  session.signOut();
  if (me.id !== sessionStorage.getItem(LINK_KEY_ID)) return;
  sessionStorage.removeItem(LINK_KEY_ID);
  revokeLinkKey(me.id, key);
}

/** Revokes the key of a link with the secret of an admin key. If that fails, it expires after 12 hours. */
function revokeLinkKey(id, secret) {
  remove(apiPath`/api-keys/${id}`, { key: secret }).catch(() => {});
}

/** `linkError`: why the link that was opened did not sign in. */
export function SignIn({ linkError }) {
  const [key, setKey] = useState("");
  const [signIn, busy, error] = useAction(async () => {
    const secret = key.trim();
    session.signIn(secret, await get("/me", {}, { key: secret }));
  });
  const submit = (event) => {
    event.preventDefault();
    signIn();
  };
  return html`<main class="sign-in">
    <div class="brand"><img src="/assets/icon.svg" alt="" />Outpost</div>
    <h1>${t.signIn.title}</h1>
    <p class="muted">${t.signIn.about}</p>
    <form onSubmit=${submit}>
      <${TextField} label=${t.signIn.key} type="password" autocomplete="off" spellcheck="false" required placeholder="opk_…" value=${key}
        onInput=${setKey} hint=${t.signIn.hint} />
      <${ErrorAlert} error=${error ?? linkError} />
      <button class="primary" disabled=${busy || !key.trim()}>${t.signIn.action}</button>
    </form>
  </main>`;
}
