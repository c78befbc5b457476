// JSON in text fields.

import { t } from "./strings.js";

/** Parses a text; an empty text is null. Throws an error that names the field. */
export function fromJson(field, text) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(t.invalidJson(field, error.message));
  }
}

/** Formats a value for a text field; null and undefined become an empty text. */
export const toJson = (value) => (value === null || value === undefined ? "" : JSON.stringify(value, null, 2));
