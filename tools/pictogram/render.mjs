// Draws the labelled sets of package.json as images of 240 by 240 pixels on white, and writes their labels to pictures.json.
//
//     node render.mjs FOLDER              the training set
//     node render.mjs FOLDER left-out     drawings that are not in the training set, to measure with

import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Resvg } from "@resvg/resvg-js";

const SIDE = 240;
const SETS = { flat: "@iconify-json/fluent-emoji-flat", twemoji: "@iconify-json/twemoji", noto: "@iconify-json/noto", emojione: "@iconify-json/emojione" };
// emojibase's groups that a small model can learn; the others are people in hundreds of variants, signs, letters and flags.
const LEARNED = { 0: "face", 3: "animal or nature", 4: "food", 5: "place or travel", 6: "activity", 7: "object" };
const LEFT_OUT = { 1: "person", 8: "sign", 9: "flag" };
// Two dozen clocks, which differ only in a hand of one pixel.
const CLOCKS = /o.clock|-thirty$/;

const require = createRequire(import.meta.url);
const read = (path) => JSON.parse(readFileSync(require.resolve(path)));
const [folder, which = "learned", stage] = process.argv.slice(2);
const groups = which === "left-out" ? LEFT_OUT : LEARNED;
if (!folder) throw new Error("usage: render.mjs FOLDER [left-out]");

/** The icon name of an emojibase label. */
const slug = (label) =>
  label.toLowerCase().normalize("NFD").replace(/[\u0300-\u036f]/g, "").replace(/[“”"'’.!,():&]/g, " ").trim().replace(/[\s_]+/g, "-").replace(/-+/g, "-");

/** All drawings: `{file, style, label, tags, group, svg}`. */
function* pictures() {
  const known = new Map(read("emojibase-data/en/data.json").map((emoji) => [slug(emoji.label), emoji]));
  for (const [style, name] of Object.entries(SETS)) {
    const set = read(`${name}/icons.json`);
    for (const [icon, drawn] of Object.entries(set.icons)) {
      const emoji = known.get(icon);
      const group = groups[emoji?.group];
      if (!group || CLOCKS.test(icon)) continue;
      const { left = 0, top = 0, width = set.width, height = set.height } = drawn;
      const svg = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="${left} ${top} ${width} ${height}">${drawn.body}</svg>`;
      yield { file: `${style}-${icon}.png`, style, label: emoji.label, tags: emoji.tags, group, svg };
    }
  }
}

/** Draws the missing images. Writes the current file name to `at`, because a few drawings crash the renderer. */
function draw() {
  for (const { file, svg } of pictures()) {
    const path = join(folder, file);
    if (existsSync(path)) continue;
    writeFileSync(join(folder, "at"), file);
    writeFileSync(path, "");
    writeFileSync(path, new Resvg(svg, { background: "white", fitTo: { mode: "width", value: SIDE } }).render().asPng());
  }
}

/** Runs itself to draw until all images are done. A drawing that crashes the renderer leaves an empty file. */
async function all() {
  mkdirSync(folder, { recursive: true });
  for (let ended = 1; ended !== 0; ) {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), folder, which, "draw"], { stdio: ["ignore", "inherit", "ignore"] });
    ended = await new Promise((done) => child.on("exit", (code) => done(code)));
    if (ended !== 0) console.log(`left out: ${readFileSync(join(folder, "at"), "utf8")}`);
  }
  const drawn = [...pictures()].map(({ svg, ...description }) => description).filter(({ file }) => readFileSync(join(folder, file)).length);
  writeFileSync(join(folder, "pictures.json"), JSON.stringify(drawn));
  console.log(`${drawn.length} images`);
}

stage === "draw" ? draw() : await all();
