// Sign-in with an API key.

import { html, useState } from "../html.js";
import { get } from "../api.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { ErrorAlert, TextField, useAction } from "../ui.js";

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
