// Who is signed in. The key stays in this tab: session storage ends with it, and nothing is sent by itself.

const PLACE = "outpost.key";
const listeners = new Set();

export const session = {
  /** The key's secret, or null. */
  key: sessionStorage.getItem(PLACE),
  /** What the server says of the key: `GET /v1/me`. */
  me: null,

  /** Whether the key holds a scope; `admin` holds all. */
  may(scope) {
    const scopes = this.me?.scopes ?? [];
    return scopes.includes("admin") || scopes.includes(scope);
  },

  begin(key, me) {
    sessionStorage.setItem(PLACE, key);
    Object.assign(this, { key, me });
    listeners.forEach((listener) => listener());
  },

  end() {
    sessionStorage.removeItem(PLACE);
    Object.assign(this, { key: null, me: null });
    listeners.forEach((listener) => listener());
  },

  /** Calls `listener` whenever somebody signs in or out; returns what stops that. */
  watch(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
