// The door: a key opens it.

import { html, useState } from "../html.js";
import { get } from "../api.js";
import { session } from "../session.js";
import { t } from "../strings.js";
import { Failure, Text, useAction } from "../ui.js";

export function SignIn() {
  const [key, setKey] = useState("");
  const [enter, busy, error] = useAction(async () => {
    const given = key.trim();
    session.begin(given, await get("/me", {}, { key: given }));
  });
  const submit = (event) => {
    event.preventDefault();
    enter();
  };
  return html`<main class="door">
    <div class="brand"><img src="/assets/icon.svg" alt="" />Outpost</div>
    <h1>${t.signIn.title}</h1>
    <p class="dim">${t.signIn.about}</p>
    <form onSubmit=${submit}>
      <${Text} label=${t.signIn.key} type="password" autocomplete="off" spellcheck="false" required placeholder="opk_…" value=${key}
        onInput=${setKey} hint=${t.signIn.hint} />
      <${Failure} error=${error} />
      <button class="first" disabled=${busy || !key.trim()}>${t.signIn.action}</button>
    </form>
  </main>`;
}
