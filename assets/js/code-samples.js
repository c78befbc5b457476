// A request as curl, Python or Node.js code.

import { html, useState } from "./html.js";
import { t } from "./strings.js";
import { CodeBlock, Dialog, Tabs } from "./ui.js";

/** The mount for OpenAI's clients. */
export const CLIENT_MOUNT = "/openai/v1";

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The parts of a form with a file, as arguments of curl. */
function curlForm(body, file) {
  const fields = Object.entries(body).flatMap(([name, value]) => (Array.isArray(value) ? value.map((one) => `${name}[]=${one}`) : [`${name}=${value}`]));
  return [`-F ${quote(`file=@${file}`)}`, ...fields.map((field) => `--form-string ${quote(field)}`)].join(" \\\n  ");
}

function curl({ path, body, base, file, saveAs }) {
  if (file) return `curl ${base}${CLIENT_MOUNT}${path} \\\n  -H "Authorization: Bearer $OUTPOST_KEY" \\\n  ${curlForm(body, file)}`;
  return `curl ${base}${CLIENT_MOUNT}${path} \\\n  -H "Authorization: Bearer $OUTPOST_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify(body, null, 2))}${saveAs ? ` \\\n  -o ${quote(saveAs)}` : ""}`;
}

/** A JSON value as a Python literal. */
function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  const inner = `${indent}    `;
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((item) => `${inner}${python(item, inner)},\n`).join("")}${indent}]`;
  }
  if (typeof value === "object") {
    if (!Object.keys(value).length) return "{}";
    return `{\n${Object.entries(value).map(([key, item]) => `${inner}${JSON.stringify(key)}: ${python(item, inner)},\n`).join("")}${indent}}`;
  }
  return JSON.stringify(value);
}

// Parameters of the openai packages. Others go into `extra_body`.
const KNOWN = {
  "chat.completions": ["model", "messages", "stream", "temperature", "top_p", "max_completion_tokens", "seed", "stop", "response_format", "tools", "tool_choice"],
  embeddings: ["model", "input", "dimensions", "encoding_format"],
  images: ["model", "prompt", "n", "size", "stream", "partial_images", "response_format", "output_format"],
  transcriptions: ["model", "language", "prompt", "response_format", "temperature", "timestamp_granularities"],
  translations: ["model", "prompt", "response_format", "temperature"],
  speech: ["model", "voice", "input", "speed", "response_format"],
};

function split(call, body) {
  const known = Object.entries(body).filter(([key]) => KNOWN[call].includes(key));
  const extra = Object.fromEntries(Object.entries(body).filter(([key]) => !KNOWN[call].includes(key)));
  return [known, extra];
}

const METHODS = {
  "chat.completions": "chat.completions.create", embeddings: "embeddings.create", images: "images.generate",
  transcriptions: "audio.transcriptions.create", translations: "audio.translations.create", speech: "audio.speech.create",
};

function pythonCode({ call, body, base, file, saveAs }) {
  const [known, extra] = split(call, body);
  const upload = file ? `    file=open(${JSON.stringify(file)}, "rb"),\n` : "";
  const parameters = upload + known.map(([key, value]) => `    ${key}=${python(value, "    ")},\n`).join("");
  const more = Object.keys(extra).length ? `    extra_body=${python(extra, "    ")},\n` : "";
  const output = saveAs ? `response.write_to_file(${JSON.stringify(saveAs)})` : body.stream ? "for event in response:\n    print(event)" : "print(response)";
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(`${base}${CLIENT_MOUNT}`)}, api_key=os.environ["OUTPOST_KEY"])\nresponse = client.${METHODS[call]}(\n${parameters}${more})\n${output}`;
}

function nodeCode({ call, body, base, file, saveAs }) {
  const imports = file ? 'import { createReadStream } from "node:fs";\n' : saveAs ? 'import { writeFile } from "node:fs/promises";\n' : "";
  const upload = file ? `\n  "file": createReadStream(${JSON.stringify(file)}),` : "";
  const parameters = JSON.stringify(body, null, 2).replace("{", () => `{${upload}`);
  const output = saveAs ? `await writeFile(${JSON.stringify(saveAs)}, response.body);` : body.stream ? "for await (const event of response) console.log(event);" : "console.log(response);";
  return `${imports}import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(`${base}${CLIENT_MOUNT}`)}, apiKey: process.env.OUTPOST_KEY });\nconst response = await client.${METHODS[call]}(${parameters});\n${output}`;
}

const LANGUAGES = { python: pythonCode, node: nodeCode, curl };
// The languages of the colors.
const SYNTAX = { python: "python", node: "javascript", curl: "shell" };
const TABS = [["python", "Python"], ["node", "Node.js"], ["curl", "curl"]];

/**
 * Source code of a request. `path`: below the mount. `call`: a key of `METHODS`. `file`: the name of a file that is sent in a form with the
 * body's fields. `saveAs`: the name of the file for a response that is not JSON.
 */
function codeSample(language, { body, ...request }) {
  // Drops fields that are undefined.
  const sent = JSON.parse(JSON.stringify(body));
  return LANGUAGES[language]({ base: location.origin, body: sent, ...request });
}

/** A request in each language, as tabs. */
export function CodeSamples({ request }) {
  const [language, setLanguage] = useState(TABS[0][0]);
  return html`<div class="code-samples"><${Tabs} label=${t.code.language} selected=${language} onSelect=${setLanguage} tabs=${TABS} />
    <${CodeBlock} text=${codeSample(language, request)} label=${t.code.title} syntax=${SYNTAX[language]} /></div>`;
}

export const CodeDialog = ({ request, close }) => html`<${Dialog} title=${t.code.title} close=${close} wide>
  <p class="muted">${t.code.about}</p>
  <${CodeSamples} request=${request} />
  <div class="actions"><button type="button" onClick=${close}>${t.close}</button></div>
<//>`;
