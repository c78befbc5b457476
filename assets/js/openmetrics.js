// A parser for the OpenMetrics text of `/metrics`.

/** Returns `[{name, labels, value}]`, without comments. */
function parse(text) {
  return text.split("\n").filter((line) => line && !line.startsWith("#")).map((line) => {
    const [, name, labels = "", value] = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)/i.exec(line) ?? [];
    const pairs = [...labels.matchAll(/(?<![a-z_])([a-z_]+)="((?:[^"\\]|\\.)*)"/gi)].map(([, key, value]) => [key, value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped))]);
    return { name, labels: Object.fromEntries(pairs), value: Number(value) };
  }).filter((sample) => sample.name);
}

/** Looks metrics up: `get(name, labels)`, `sum(name)`, `by(name, label)` as an object, and `labels(name)` of the first sample. Names lack the prefix `outpost_`. */
export function parseMetrics(text) {
  const samples = parse(text);
  const named = (name) => samples.filter((sample) => sample.name === `outpost_${name}`);
  const matches = (sample, labels) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  return {
    get: (name, labels = {}) => named(name).find((sample) => matches(sample, labels))?.value,
    sum: (name) => named(name).reduce((sum, { value }) => sum + value, 0),
    labels: (name) => named(name)[0]?.labels ?? {},
    by: (name, label) => Object.fromEntries(named(name).map(({ labels, value }) => [labels[label], value])),
  };
}
