// The signed-in session. The key is kept in session storage, which ends with the tab. The browser never sends it by itself.

const STORAGE_KEY = "outpost.key";
const listeners = new Set();

export const session = {
  /** The secret of the API key, or null. */
  key: sessionStorage.getItem(STORAGE_KEY),
  /** The response of `GET /v1/me`, or null. */
  me: null,

  /** Whether the key has a scope. `admin` implies all others. */
  hasScope(scope) {
    const scopes = this.me?.scopes ?? [];
    return scopes.includes("admin") || scopes.includes(scope);
  },

  signIn(key, me) {
    sessionStorage.setItem(STORAGE_KEY, key);
    Object.assign(this, { key, me });
    listeners.forEach((listener) => listener());
  },

  signOut() {
    sessionStorage.removeItem(STORAGE_KEY);
    Object.assign(this, { key: null, me: null });
    listeners.forEach((listener) => listener());
  },

  /** Calls `listener` after each sign-in and sign-out. Returns a function that unsubscribes. */
  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
