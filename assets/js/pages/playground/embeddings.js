// Embeddings: the similarity of texts as a matrix.

import { html, useState } from "../../html.js";
import { post } from "../../api.js";
import { t } from "../../strings.js";
import { TextArea, ErrorAlert, Foldable, SelectField, TextField, useAction } from "../../ui.js";

const MAX_TEXTS = 16;
// Color strength of a cell with similarity 1, in percent. The number must stay readable.
const MAX_HEAT = 55;

/** The cosine similarity of each pair of vectors. The server normalizes them to length one. */
const cosines = (vectors) => vectors.map((a) => vectors.map((b) => a.reduce((sum, value, at) => sum + value * b[at], 0)));

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export function Embeddings({ models, showCode }) {
  const [model, setModel] = useState(models[0].id);
  const [text, setText] = useState(t.embeddings.example);
  const [dimensions, setDimensions] = useState("");
  const [result, setResult] = useState(null);
  const body = () => ({ model, input: lines(text), dimensions: dimensions ? Number(dimensions) : undefined });
  const [compare, busy, error] = useAction(async () => {
    const request = body();
    const { data } = await post("/embeddings", request);
    const vectors = data.map((item) => item.embedding);
    setResult({ texts: request.input, cosines: cosines(vectors), size: vectors[0].length });
  });
  const submit = (event) => {
    event.preventDefault();
    compare();
  };
  const count = lines(text).length;
  return html`<form class="playground" onSubmit=${submit}>
    <div>
      <${TextArea} label=${t.embeddings.texts} hint=${t.embeddings.textsHint} value=${text} onInput=${setText} rows="6" />
      <div class="actions">
        <button class="primary" disabled=${busy || count < 2 || count > MAX_TEXTS}>${t.embeddings.compare}</button>
        <button type="button" onClick=${() => showCode({ call: "embeddings", path: "/embeddings", body: body() })}>${t.playground.viewCode}</button>
      </div>
      <${ErrorAlert} error=${error} />
      ${result && html`<${Matrix} ...${result} />`}
    </div>
    <${Foldable} label=${t.chat.settings} icon="tuning" className="card settings">
      <${SelectField} label=${t.playground.model} value=${model} onInput=${setModel} options=${models.map(({ id }) => [id, id])} />
      <${TextField} label=${t.embeddings.dimensions} type="number" min="1" value=${dimensions} onInput=${setDimensions} placeholder=${t.embeddings.default} />
    <//>
  </form>`;
}

function Matrix({ texts, cosines, size }) {
  return html`<section class="matrix"><h2>${t.embeddings.matrix}</h2>
    <p class="muted">${t.embeddings.summary(texts.length, size)} ${t.embeddings.cosine}</p>
    <div class="table" role="region" tabindex="0" aria-label=${t.embeddings.matrix}><table>
      <thead><tr><td></td>${texts.map((text, at) => html`<th scope="col" key=${at} title=${text}>${at + 1}</th>`)}</tr></thead>
      <tbody>${texts.map((text, row) => html`<tr key=${row}><th scope="row" title=${text}>${row + 1} <span>${text}</span></th>
        ${cosines[row].map((value, at) => html`<td key=${at} style=${{ "--heat": `${Math.round(Math.max(0, value) * MAX_HEAT)}%` }}>${(Math.abs(value) < 0.005 ? 0 : value).toFixed(2)}</td>`)}</tr>`)}</tbody>
    </table></div></section>`;
}
