// Formats numbers, times and sizes for display.

const plainFormat = new Intl.NumberFormat("en");
const compactFormat = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const decimalFormat = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const percentFormat = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const preciseFormat = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium" });
const dateFormat = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const relativeFormat = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const languageFormat = new Intl.DisplayNames("en", { type: "language" });
const UNITS = ["B", "KB", "MB", "GB", "TB"];
const SPANS = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]];

export const number = (value) => (value === null || value === undefined ? "–" : plainFormat.format(value));
export const decimal = (value) => (value === null || value === undefined ? "–" : decimalFormat.format(value));
export const percent = (value) => (value === null || value === undefined ? "–" : percentFormat.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : compactFormat.format(value));

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const step = Math.min(UNITS.length - 1, value ? Math.floor(Math.log10(value) / 3) : 0);
  const scaled = value / 1000 ** step;
  return `${scaled.toFixed(step && scaled < 100 ? 1 : 0)} ${UNITS[step]}`;
}

// Binary units first: they are those of the defaults.
export const SIZE_UNITS = { GiB: 1024 ** 3, MiB: 1024 ** 2, KiB: 1024, GB: 1e9, MB: 1e6, KB: 1e3, B: 1 };

/** A size as a number and the largest unit in which the number is whole: `[100, "GiB"]`. */
export function splitSize(value) {
  const [unit, size] = Object.entries(SIZE_UNITS).find(([, size]) => value >= size && value % size === 0) ?? ["B", 1];
  return [value / size, unit];
}

/** A size without rounding, such as `100 GiB`. */
export const exactSize = (value) => splitSize(value).join(" ");

// The API writes times as RFC 3339 text, or as Unix seconds in OpenAI's fields.
export const toDate = (value) => new Date(typeof value === "number" ? value * 1000 : value);

export const date = (value) => (value ? dateFormat.format(toDate(value)) : "–");
export const preciseDate = (value) => (value ? preciseFormat.format(toDate(value)) : "–");

/** A time relative to now, such as `3 hr. ago`. */
export function relativeTime(value, now = Date.now()) {
  if (!value) return "–";
  const seconds = (toDate(value) - now) / 1000;
  const [unit, span] = SPANS.find(([, span]) => Math.abs(seconds) >= span) ?? ["second", 1];
  return relativeFormat.format(Math.round(seconds / span), unit);
}

/** Seconds as `1 h 5 min`. */
export function duration(seconds) {
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, span]) => seconds >= span);
  if (at < 0) return `${seconds.toFixed(2)} s`;
  const [unit, span] = units[at];
  const rest = units[at + 1] ? Math.floor((seconds % span) / units[at + 1][1]) : 0;
  return `${Math.floor(seconds / span)} ${unit}${rest ? ` ${rest} ${units[at + 1][0]}` : ""}`;
}

/** A position in audio: `1:05`, or `1:01:05` from an hour on. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** The English name of a language, such as `American English` for `en-US`. Anything else is returned unchanged. */
export function languageName(code) {
  try {
    return languageFormat.of(code);
  } catch {
    return code;
  }
}

/** The value of an `<input type="datetime-local">` as RFC 3339. */
export const toTime = (local) => (local ? new Date(local).toISOString() : undefined);

export const sum = (values) => values.reduce((total, value) => total + value, 0);
