// Texts as vectors: how alike they are, as a picture.

import { html, useState } from "../../html.js";
import { post } from "../../api.js";
import { t } from "../../strings.js";
import { Area, Failure, Select, Text, useAction } from "../../ui.js";

const MOST = 16;
// How much of the colour the hottest cell has, in percent: its number must stay readable.
const HEAT = 55;

/** The cosine of each pair of vectors, which the server has made of length one. */
const cosines = (vectors) => vectors.map((a) => vectors.map((b) => a.reduce((sum, value, at) => sum + value * b[at], 0)));

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export function Embeddings({ models, show }) {
  const [model, setModel] = useState(models[0].id);
  const [text, setText] = useState(t.embeddings.example);
  const [dimensions, setDimensions] = useState("");
  const [shown, setShown] = useState(null);
  const body = () => ({ model, input: lines(text), dimensions: dimensions ? Number(dimensions) : undefined });
  const [compare, busy, error] = useAction(async () => {
    const asked = body();
    const { data } = await post("/embeddings", asked);
    const vectors = data.map((item) => item.embedding);
    setShown({ texts: asked.input, cosines: cosines(vectors), size: vectors[0].length });
  });
  const submit = (event) => {
    event.preventDefault();
    compare();
  };
  const count = lines(text).length;
  return html`<form class="bench" onSubmit=${submit}>
    <div>
      <${Area} label=${t.embeddings.texts} hint=${t.embeddings.textsHint} value=${text} onInput=${setText} rows="6" />
      <div class="actions">
        <button class="first" disabled=${busy || count < 2 || count > MOST}>${t.embeddings.compare}</button>
        <button type="button" onClick=${() => show({ call: "embeddings", path: "/v1/embeddings", body: body() })}>${t.playground.viewCode}</button>
      </div>
      <${Failure} error=${error} />
      ${shown && html`<${Matrix} ...${shown} />`}
    </div>
    <section class="card" aria-label=${t.chat.settings}>
      <${Select} label=${t.playground.model} value=${model} onInput=${setModel} options=${models.map((one) => [one.id, one.id])} />
      <${Text} label=${t.embeddings.dimensions} type="number" min="1" value=${dimensions} onInput=${setDimensions} placeholder=${t.embeddings.default} />
    </section>
  </form>`;
}

function Matrix({ texts, cosines, size }) {
  return html`<section class="matrix"><h2>${t.embeddings.matrix}</h2>
    <p class="dim">${t.embeddings.summary(texts.length, size)} ${t.embeddings.cosine}</p>
    <div class="table" role="region" tabindex="0" aria-label=${t.embeddings.matrix}><table>
      <thead><tr><td></td>${texts.map((text, at) => html`<th scope="col" key=${at} title=${text}>${at + 1}</th>`)}</tr></thead>
      <tbody>${texts.map((text, row) => html`<tr key=${row}><th scope="row" title=${text}>${row + 1} <span>${text}</span></th>
        ${cosines[row].map((value, at) => html`<td key=${at} style=${{ "--heat": `${Math.round(Math.max(0, value) * HEAT)}%` }}>${(Math.abs(value) < 0.005 ? 0 : value).toFixed(2)}</td>`)}</tr>`)}</tbody>
    </table></div></section>`;
}
