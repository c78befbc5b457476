// The buckets of usage reports.

import { LENGTHS, limitsOf } from "../../time-range.js";

const WIDTHS = { "1m": 60_000, "1h": LENGTHS.hour, "1d": LENGTHS.day };
const RANGE_WIDTHS = { hour: "1m", day: "1h", week: "1d", month: "1d" };
// The bars of more buckets are too thin to compare.
const MAX_BUCKETS = 100;
// For more days, the server chooses the width: `7d`, for example.
const MAX_DAYS = 1_500;
// How many buckets may lie between two labels of the chart, so that labels are round times.
const LABEL_STEPS = { "1m": [1, 5, 10, 15, 30, 60], "1h": [1, 3, 6, 12, 24], "1d": [1, 2, 7, 14, 28, 91, 364] };

export const labelSteps = ({ bucket_width: width }) => LABEL_STEPS[width] ?? [1];

/** The query of a time range: whole buckets, up to and including the running one. */
export function queryOf(range, now = Date.now()) {
  const { start_time: start, end_time: end = new Date(now).toISOString() } = limitsOf(range, now);
  const length = new Date(end) - new Date(start);
  const bucket_width = RANGE_WIDTHS[range.name] ?? Object.keys(WIDTHS).find((name) => length / WIDTHS[name] <= MAX_BUCKETS) ?? (length / WIDTHS["1d"] <= MAX_DAYS ? "1d" : undefined);
  const width = WIDTHS[bucket_width] ?? LENGTHS.day;
  const start_time = range.name === "custom" ? start : new Date(Math.floor(new Date(start) / width) * width).toISOString();
  return { start_time, end_time: end, bucket_width };
}

/** The formats of a bucket's start: short for the axis, and complete. */
function formatsOf({ data, bucket_width: width }) {
  // Daily buckets are days in UTC.
  const [day, timeOfDay] = [{ month: "short", day: "numeric" }, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }];
  if (!["1m", "1h"].includes(width)) return [{ ...day, timeZone: "UTC" }, { dateStyle: "medium", timeZone: "UTC" }];
  const isLong = data.length * WIDTHS[width] > LENGTHS.day + 2 * LENGTHS.hour;
  return [isLong ? { ...day, ...timeOfDay } : timeOfDay, { dateStyle: "medium", timeStyle: "short" }];
}

/** The buckets of a report as those of `BarChart`. */
export function bucketsOf(usage, now = Date.now()) {
  const [short, complete] = formatsOf(usage).map((format) => new Intl.DateTimeFormat("en", format));
  const width = WIDTHS[usage.bucket_width] ?? Number.parseInt(usage.bucket_width, 10) * LENGTHS.day;
  return usage.data.map(({ start_time: time }, index) => {
    const start = new Date(time);
    // The first bucket of a custom range may start later than its width would.
    const wholeStart = Math.floor(start / width) * width;
    const offset = width < LENGTHS.day ? start.getTimezoneOffset() * 60_000 : 0;
    return { label: short.format(start), title: complete.format(start), number: Math.floor((wholeStart - offset) / width), running: index === usage.data.length - 1 && wholeStart + width > now };
  });
}
