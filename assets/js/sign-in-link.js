// Sign-in links: `outpost serve` and `outpost sign-in` print `/#sign-in=TOKEN`. The token is valid once, for ten minutes.

import { get, post } from "./api.js";
import { session } from "./session.js";

/** Takes the token out of the address bar and of the tab's history. Returns null if there is none. */
export function takeToken() {
  const token = /^#sign-in=(.*)$/.exec(location.hash)?.[1];
  if (token === undefined) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** Signs in with a new API key that the server gives for the token. */
export async function signInWith(token) {
  const { secret } = await post("/sign-in", { token }, { mount: "", key: null });
  session.signIn(secret, await get("/me", {}, { key: secret }));
}
