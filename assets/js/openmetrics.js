// The server's figures, from the text that monitoring systems read.

/** `[{name, labels, value}]` of OpenMetrics text; comments are left out. */
function parse(text) {
  return text.split("\n").filter((line) => line && !line.startsWith("#")).map((line) => {
    const [, name, labels = "", value] = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)/i.exec(line) ?? [];
    const pairs = [...labels.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/gi)].map(([, key, value]) => [key, value.replace(/\\(.)/g, (_, one) => (one === "n" ? "\n" : one))]);
    return { name, labels: Object.fromEntries(pairs), value: Number(value) };
  }).filter((sample) => sample.name);
}

/** Looks figures up: `one(name, labels)`, `sum(name)`, and `by(name, label)` as an object. */
export function figures(text) {
  const samples = parse(text);
  const of = (name) => samples.filter((sample) => sample.name === `outpost_${name}`);
  const fits = (sample, labels) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  return {
    one: (name, labels = {}) => of(name).find((sample) => fits(sample, labels))?.value,
    sum: (name) => of(name).reduce((sum, { value }) => sum + value, 0),
    by: (name, label) => Object.fromEntries(of(name).map(({ labels, value }) => [labels[label], value])),
  };
}
