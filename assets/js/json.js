// JSON that people type.

import { t } from "./strings.js";

/** The value of a text, null of an empty one. Throws an error that names the field: `what`. */
export function fromJson(what, text) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(t.invalidJson(what, error.message));
  }
}

/** The text of a value for a field; nothing for nothing. */
export const toJson = (value) => (value === null || value === undefined ? "" : JSON.stringify(value, null, 2));
