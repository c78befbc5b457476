// Draws the labelled sets of package.json as pictures of 240 by 240 pixels on white, and writes beside them what each shows.
//
//     node render.mjs FOLDER              what is learned
//     node render.mjs FOLDER left-out     what is not, to measure with

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
// Two dozen of them, told apart by a hand of one pixel.
const TOLD_APART_BY_LITTLE = /o.clock|-thirty$/;

const require = createRequire(import.meta.url);
const read = (path) => JSON.parse(readFileSync(require.resolve(path)));
const [folder, which = "learned", stage] = process.argv.slice(2);
const groups = which === "left-out" ? LEFT_OUT : LEARNED;
if (!folder) throw new Error("name a folder for the pictures");

/** How the sets call what emojibase labels. */
const slug = (label) =>
  label.toLowerCase().normalize("NFD").replace(/[\u0300-\u036f]/g, "").replace(/[“”"'’.!,():&]/g, " ").trim().replace(/[\s_]+/g, "-").replace(/-+/g, "-");

/** All pictures: `{file, style, label, tags, group, svg}`. */
function* pictures() {
  const known = new Map(read("emojibase-data/en/data.json").map((emoji) => [slug(emoji.label), emoji]));
  for (const [style, name] of Object.entries(SETS)) {
    const set = read(`${name}/icons.json`);
    for (const [icon, drawn] of Object.entries(set.icons)) {
      const emoji = known.get(icon);
      const group = groups[emoji?.group];
      if (!group || TOLD_APART_BY_LITTLE.test(icon)) continue;
      const { left = 0, top = 0, width = set.width, height = set.height } = drawn;
      const svg = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="${left} ${top} ${width} ${height}">${drawn.body}</svg>`;
      yield { file: `${style}-${icon}.png`, style, label: emoji.label, tags: emoji.tags, group, svg };
    }
  }
}

/** Draws what is not there yet, and says what it is at: a few drawings end the renderer's process. */
function draw() {
  for (const { file, svg } of pictures()) {
    const path = join(folder, file);
    if (existsSync(path)) continue;
    writeFileSync(join(folder, "at"), file);
    writeFileSync(path, "");
    writeFileSync(path, new Resvg(svg, { background: "white", fitTo: { mode: "width", value: SIDE } }).render().asPng());
  }
}

/** Calls itself to draw until nothing is left; what could not be drawn stays as an empty file. */
async function all() {
  mkdirSync(folder, { recursive: true });
  for (let ended = 1; ended !== 0; ) {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), folder, which, "draw"], { stdio: ["ignore", "inherit", "ignore"] });
    ended = await new Promise((done) => child.on("exit", (code) => done(code)));
    if (ended !== 0) console.log(`left out: ${readFileSync(join(folder, "at"), "utf8")}`);
  }
  const drawn = [...pictures()].map(({ svg, ...told }) => told).filter(({ file }) => readFileSync(join(folder, file)).length);
  writeFileSync(join(folder, "pictures.json"), JSON.stringify(drawn));
  console.log(`${drawn.length} pictures`);
}

stage === "draw" ? draw() : await all();
