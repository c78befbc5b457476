// The same request as a user would write it: curl, Python, Node.

import { html, useState } from "./html.js";
import { t } from "./strings.js";
import { Code, Dialog, Tabs } from "./ui.js";

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curl({ path, body, base }) {
  return `curl ${base}${path} \\\n  -H "Authorization: Bearer $OUTPOST_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify(body, null, 2))}`;
}

/** A JSON value as Python writes it. */
function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  const deeper = `${indent}    `;
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((one) => `${deeper}${python(one, deeper)},\n`).join("")}${indent}]`;
  }
  if (typeof value === "object") {
    if (!Object.keys(value).length) return "{}";
    return `{\n${Object.entries(value).map(([key, one]) => `${deeper}${JSON.stringify(key)}: ${python(one, deeper)},\n`).join("")}${indent}}`;
  }
  return JSON.stringify(value);
}

// What the packages have no argument for goes into the body as it is.
const KNOWN = {
  "chat.completions": ["model", "messages", "stream", "temperature", "top_p", "max_completion_tokens", "seed", "stop", "response_format", "tools", "tool_choice"],
  embeddings: ["model", "input", "dimensions", "encoding_format"],
  "images": ["model", "prompt", "n", "size", "stream", "partial_images", "response_format", "output_format"],
};

function split(call, body) {
  const known = Object.entries(body).filter(([key]) => KNOWN[call].includes(key));
  const extra = Object.fromEntries(Object.entries(body).filter(([key]) => !KNOWN[call].includes(key)));
  return [known, extra];
}

const METHOD = { "chat.completions": "chat.completions.create", embeddings: "embeddings.create", images: "images.generate" };

function pythonCode({ call, body, base }) {
  const [known, extra] = split(call, body);
  const given = known.map(([key, value]) => `    ${key}=${python(value, "    ")},\n`).join("");
  const more = Object.keys(extra).length ? `    extra_body=${python(extra, "    ")},\n` : "";
  const use = body.stream ? "for event in answer:\n    print(event)" : "print(answer)";
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(`${base}/v1`)}, api_key=os.environ["OUTPOST_KEY"])\nanswer = client.${METHOD[call]}(\n${given}${more})\n${use}`;
}

function nodeCode({ call, body, base }) {
  const use = body.stream ? "for await (const event of answer) console.log(event);" : "console.log(answer);";
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(`${base}/v1`)}, apiKey: process.env.OUTPOST_KEY });\nconst answer = await client.${METHOD[call]}(${JSON.stringify(body, null, 2)});\n${use}`;
}

const LANGUAGES = { curl, python: pythonCode, node: nodeCode };

/** The text of a request in a language. `call`: `chat.completions`, `embeddings` or `images`. */
export function code(language, { body, ...request }) {
  // What is not set is not sent.
  const sent = JSON.parse(JSON.stringify(body));
  return LANGUAGES[language]({ base: location.origin, body: sent, ...request });
}

export function CodeDialog({ request, close }) {
  const [language, setLanguage] = useState("curl");
  return html`<${Dialog} title=${t.code.title} close=${close}>
    <p class="dim">${t.code.about}</p>
    <${Tabs} label=${t.code.language} at=${language} choose=${setLanguage} tabs=${[["curl", "curl"], ["python", "Python"], ["node", "Node"]]} />
    <${Code} text=${code(language, request)} label=${t.code.title} />
    <div class="actions"><button type="button" onClick=${close}>${t.close}</button></div>
  <//>`;
}
