// Installs models: what there is to choose from, and the progress of the download. Loaded when an administrator opens the page
// Models.

import { html, useEffect, useRef, useState } from "../../html.js";
import { apiPath, get, post, remove } from "../../api.js";
import { bytes, compact, duration, number } from "../../format.js";
import { t } from "../../strings.js";
import { Badge, Dialog, ErrorAlert, Loading, TextField, useAction, useInterval, useLoad } from "../../ui.js";
import { s } from "./strings.js";

const POLL_MS = 1000;

const hasEnded = (pull) => ["succeeded", "failed", "cancelled"].includes(pull.state);

/** The button that opens the dialog. It shows a pull that runs already. `onInstalled` is called when a model was installed. */
export function InstallModel({ onInstalled }) {
  const [pulls, error, reload] = useLoad(async () => (await get("/model-pulls")).data, []);
  const [open, setOpen] = useState(false);
  const running = pulls?.find((pull) => !hasEnded({ state: pull.status }));
  const isOff = error?.code === "pulls_disabled";
  const close = () => {
    setOpen(false);
    reload();
  };
  return html`${isOff && html`<span id="pulls-off" class="muted">${s.off}</span>`}
    <button type="button" class="primary" disabled=${isOff} aria-describedby=${isOff ? "pulls-off" : undefined} onClick=${() => setOpen(true)}>${running ? s.running(running.name ?? running.model) : s.install}</button>
    ${open && html`<${InstallDialog} running=${running?.id} ...${{ onInstalled, close }} />`}`;
}

/** First the choice, then the progress. `running`: the ID of a pull that has not ended. */
function InstallDialog({ running, onInstalled, close }) {
  const [id, setId] = useState(running);
  return html`<${Dialog} wide title=${s.install} close=${close}>
    ${id ? html`<${PullProgress} ...${{ id, onInstalled, close }} />` : html`<${Choice} onStart=${setId} close=${close} />`}
  <//>`;
}

function Choice({ onStart, close }) {
  const [model, setModel] = useState("");
  const [plan, setPlan] = useState(null);
  const [look, looking, lookError, clearLook] = useAction(async () => setPlan(await post("/models/pull", { model: model.trim(), dry_run: true })));
  const change = (text) => {
    setModel(text);
    setPlan(null);
    clearLook();
  };
  const submit = (event) => {
    event.preventDefault();
    look();
  };
  return html`<form onSubmit=${submit}>
      <${TextField} label=${s.model} hint=${s.hint} value=${model} onInput=${change} placeholder=${s.placeholder} required autofocus autocomplete="off" spellcheck=${false} />
      <${ErrorAlert} error=${lookError} />
      ${!plan && html`<div class="actions"><button type="button" onClick=${close}>${t.cancel}</button>
        <button type="submit" class="primary" disabled=${looking || !model.trim()}>${looking ? s.looking : s.look}</button></div>`}
    </form>
    ${plan && html`<${Plan} key=${plan.id} plan=${plan} ...${{ onStart, close }} />`}`;
}

/** The repository without the file: `hf:USER/REPO@REVISION`. */
const repositoryOf = (model) => model.split(":").slice(0, 2).join(":");

function Plan({ plan, onStart, close }) {
  const chosen = plan.candidates.find((one) => one.chosen);
  const [selected, setSelected] = useState(chosen);
  const [name, setName] = useState(plan.name);
  const [force, setForce] = useState(false);
  const isOfHub = plan.model.includes(":");
  // Other references have no part for a file.
  const canChoose = plan.model.startsWith("hf:") && plan.candidates.length > 1;
  const [size, memory] = selected ? [selected.bytes, selected.memory_bytes] : [plan.bytes, plan.memory_bytes];
  const fits = memory === null || memory <= plan.memory_limit_bytes;
  const isTaken = plan.installed && name === plan.name;
  const needsConsent = isOfHub && (isTaken || !fits);
  // The name follows the file unless the user has changed it.
  const select = (one) => {
    setSelected(one);
    if (name === nameOf(selected)) setName(nameOf(one));
  };
  const nameOf = (one) => (!one || one.chosen ? plan.name : one.file.split("/").at(-1).replace(/\.gguf$/, "").toLowerCase());
  const [start, busy, error] = useAction(async () => {
    const model = !selected || selected.chosen ? plan.model : `${repositoryOf(plan.model)}:${selected.file}`;
    const { id } = await post("/models/pull", { model, ...(isOfHub && { name, force: needsConsent && force }) });
    onStart(id);
  });
  const submit = (event) => {
    event.preventDefault();
    start();
  };
  const kind = [plan.architecture, plan.parameters && s.parameters(compact(plan.parameters)), plan.context_window && s.context(number(plan.context_window))].filter(Boolean).join(" · ");
  return html`<form onSubmit=${submit}>
    <dl>
      <dt>${s.license}</dt><dd>${plan.license ?? s.unknown}${plan.gated && html` <span class="muted">${s.gated}</span>`}</dd>
      ${kind && html`<dt>${s.kind}</dt><dd>${kind}</dd>`}
      <dt>${s.disk}</dt><dd>${bytes(size)}${plan.disk_free_bytes !== null && html` <span class="muted">${s.free(bytes(plan.disk_free_bytes))}</span>`}</dd>
      <dt>${s.memory}</dt><dd>${memory === null ? s.later : html`${s.of(bytes(memory), bytes(plan.memory_limit_bytes))} <${Badge} kind=${fits ? "success" : "danger"}>${fits ? s.fits : s.tooLarge}<//>`}</dd>
    </dl>
    ${canChoose && html`<${Candidates} ...${{ plan, selected, select }} />`}
    ${isOfHub && html`<${TextField} label=${s.installAs} hint=${s.nameHint} value=${name} onInput=${setName} required autocomplete="off" spellcheck=${false} />`}
    ${needsConsent && html`<label class="check"><input type="checkbox" checked=${force} onChange=${(event) => setForce(event.target.checked)} /> ${isTaken ? s.replace : s.force}</label>`}
    <${ErrorAlert} error=${error} />
    <div class="actions"><button type="button" onClick=${close}>${t.cancel}</button>
      <button type="submit" class="primary" disabled=${busy || (needsConsent && !force)}>${s.start}</button></div>
  </form>`;
}

/** The files of the repository, of which one is selected. */
function Candidates({ plan, selected, select }) {
  const note = (one) => (one.unsupported ? html`<${Badge}>${s.unsupported}<//> <span class="muted">${one.unsupported}</span>` : html`<${Badge} kind=${one.fits ? "success" : "danger"}>${one.fits ? s.fits : s.tooLarge}<//>`);
  return html`<fieldset class="candidates"><legend>${s.files}</legend><div class="table" tabindex="0" role="region" aria-label=${s.files}><table>
    <thead><tr><th scope="col">${s.file}</th><th scope="col" class="numeric">${s.size}</th><th scope="col" class="numeric">${s.memory}</th><th scope="col"></th></tr></thead>
    <tbody>${plan.candidates.map((one) => html`<tr key=${one.file}>
      <td><label class="check"><input type="radio" name="candidate" checked=${one === selected} disabled=${Boolean(one.unsupported)} onChange=${() => select(one)} /> <span title=${one.file}>${one.quantization ?? one.file}</span></label></td>
      <td class="numeric nowrap">${bytes(one.bytes)}</td><td class="numeric nowrap">${one.unsupported ? "–" : `${one.chosen ? "" : "~"}${bytes(one.memory_bytes)}`}</td><td>${note(one)}</td>
    </tr>`)}</tbody></table></div></fieldset>`;
}

function PullProgress({ id, onInstalled, close }) {
  const [pull, error, reload] = useLoad(() => get(apiPath`/model-pulls/${id}`), [id]);
  const [stop, stopping, stopError] = useAction(async () => {
    await remove(apiPath`/model-pulls/${id}`);
    await reload();
  });
  const ended = pull !== null && hasEnded(pull);
  useInterval(POLL_MS, () => !ended && reload());
  const told = useRef(false);
  useEffect(() => {
    if (pull?.state !== "succeeded" || told.current) return;
    told.current = true;
    onInstalled();
  }, [pull]);
  const buttons = html`<div class="actions">
    ${pull && !ended && html`<button type="button" class="text-button error" disabled=${stopping} onClick=${stop}>${s.stop}</button>`}
    <button type="button" class=${ended ? "primary" : ""} onClick=${close}>${ended ? t.done : s.background}</button></div>`;
  if (!pull) return html`<${ErrorAlert} error=${error} retry=${reload} />${!error && html`<${Loading} />`}${buttons}`;
  return html`<p><strong class="long-id">${pull.name ?? pull.model}</strong>${pull.license && html` <span class="muted">${pull.license}</span>`}</p>
    <div role="status">
      ${pull.state === "succeeded" && html`<p>${s.installed(pull.name)}</p>`}
      ${pull.state === "cancelled" && html`<p>${pull.error.message}</p>`}
      ${!ended && html`<p>${s.states[pull.state]}${["downloading", "verifying"].includes(pull.state) && pull.file && ` ${pull.file}`}</p>`}
    </div>
    ${!ended && html`<${Bar} pull=${pull} />`}
    ${pull.message && html`<p class="muted">${pull.message}</p>`}
    ${pull.state === "failed" && html`<${ErrorAlert} error=${pull.error} />`}
    <${ErrorAlert} error=${error ?? stopError} />
    ${!ended && html`<p class="muted">${s.goesOn}</p>`}
    ${buttons}`;
}

function Bar({ pull }) {
  const { total_bytes: total, completed_bytes: done, bytes_per_second: speed, state } = pull;
  const isMeasured = state === "downloading" && total > 0;
  const facts = isMeasured ? [s.of(bytes(done), bytes(total)), speed && s.speed(bytes(speed)), speed && s.left(duration((total - done) / speed))] : [];
  return html`<progress aria-label=${s.progress} max=${isMeasured ? total : 1} value=${isMeasured ? done : undefined}></progress>
    <p class="muted">${facts.filter(Boolean).join(" · ")}</p>`;
}
