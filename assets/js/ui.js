// What pages are made of.

import { html, useCallback, useEffect, useRef, useState } from "./html.js";
import { get, saveBlob } from "./api.js";
import { date, since } from "./format.js";
import { t } from "./strings.js";

/** Loads what a page shows: `[value, error, again]`; loads anew when one of `about` changes. */
export function useLoad(load, about) {
  const [state, setState] = useState({ value: null, error: null });
  const turn = useRef(0);
  const again = useCallback(async () => {
    const mine = ++turn.current;
    try {
      const value = await load();
      if (mine === turn.current) setState({ value, error: null });
    } catch (error) {
      if (mine === turn.current) setState((before) => ({ ...before, error }));
    }
  }, about);
  useEffect(() => {
    again();
    return () => void turn.current++;
  }, [again]);
  return [state.value, state.error, again];
}

/** The rows of a list, page by page, for a `Listing`; anew when one of `about` changes, and by `reload`. */
export function usePages(path, query, about) {
  const [first, error, again] = useLoad(() => get(path, query), about);
  // Later pages belong to one first page, and are gone with it.
  const [rest, setRest] = useState({ first: null, pages: [] });
  const pages = first ? [first, ...(rest.first === first ? rest.pages : [])] : [];
  const last = pages.at(-1);
  const [more, loading, failed] = useAction(async () => {
    const next = await get(path, { ...query, cursor: last.next_cursor });
    setRest({ first, pages: [...pages.slice(1), next] });
  });
  const rows = pages.flatMap((page) => page.data);
  return { rows, waiting: !first && !error, empty: first && !rows.length && !last.has_more, error: error ?? failed, again: error ? again : undefined, hasMore: Boolean(last?.has_more), more, loading, reload: again };
}

/** The models that the key may use: `[models, error, again]`; with a capability, those that have it. */
export function useModels(capability) {
  return useLoad(async () => (await get("/models")).data.filter((model) => !capability || model.capabilities[capability]), []);
}

/** Saves a text as a file of the user's. */
export function save(name, text) {
  saveBlob(name, new Blob([text], { type: "application/json" }));
}

/** Calls `work` every so many milliseconds while the page can be seen. */
export function useEvery(milliseconds, work) {
  const newest = useRef(work);
  newest.current = work;
  useEffect(() => {
    const timer = setInterval(() => document.hidden || newest.current(), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

/** Shows the newest of many values, so many milliseconds apart at least: what comes faster than anybody reads must not hold the page up. */
export function paced(milliseconds, show) {
  let [newest, timer, last] = [null, 0, 0];
  const now = () => {
    last = performance.now();
    timer = 0;
    show(newest);
  };
  const next = (value) => {
    newest = value;
    timer ||= setTimeout(now, Math.max(0, last + milliseconds - performance.now()));
  };
  next.stop = () => clearTimeout(timer);
  return next;
}

/** An action of the user's: `[run, busy, error, clear]`. */
export function useAction(act) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (...given) => {
    setState({ busy: true, error: null });
    try {
      const value = await act(...given);
      setState({ busy: false, error: null });
      return value;
    } catch (error) {
      setState({ busy: false, error: error.name === "AbortError" ? null : error });
      return undefined;
    }
  };
  return [run, state.busy, state.error, () => setState({ busy: false, error: null })];
}

export function Failure({ error, again }) {
  if (!error) return null;
  return html`<div class="failure" role="alert">
    <p>${error.message}</p>
    ${error.requestId && html`<p class="dim">${t.errors.requestId} <code>${error.requestId}</code></p>`}
    ${again && html`<button type="button" onClick=${again}>${t.errors.retry}</button>`}
  </div>`;
}

export const Waiting = () => html`<p class="dim waiting" role="status">${t.loading}</p>`;

/** What stands where there is nothing yet: what to do. */
export const Empty = ({ title, children }) => html`<div class="empty"><h3>${title}</h3>${children}</div>`;

export function Page({ title, about, actions, children }) {
  useEffect(() => void (document.title = `${title} · Outpost`), [title]);
  return html`<header class="page">
      <div>
        <h1 tabindex="-1">${title}</h1>
        ${about && html`<p class="dim">${about}</p>`}
      </div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}`;
}

/** A labelled control: `children` is a function of its id and of the id of what is said below. */
export function Field({ label, hint, error, children }) {
  const id = useRef(`field-${Math.random().toString(36).slice(2)}`).current;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": hint || error ? `${id}-hint` : undefined, "aria-invalid": error ? "true" : undefined })}
    ${(hint || error) && html`<p id=${`${id}-hint`} class=${error ? "wrong" : "dim"}>${error ?? hint}</p>`}
  </div>`;
}

export const Text = ({ label, hint, error, value, onInput, ...more }) => html`<${Field} ...${{ label, hint, error }}>
  ${(ids) => html`<input ...${ids} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)} />`}
<//>`;

export const Area = ({ label, hint, error, value, onInput, ...more }) => html`<${Field} ...${{ label, hint, error }}>
  ${(ids) => html`<textarea ...${ids} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)}></textarea>`}
<//>`;

/** `options`: `[value, text]` each. */
export const Select = ({ label, hint, value, onInput, options, ...more }) => html`<${Field} ...${{ label, hint }}>
  ${(ids) => html`<select ...${ids} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)}>
    ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}
  </select>`}
<//>`;

/** A box over the page, with the keyboard's focus kept inside it. */
export function Dialog({ title, close, children }) {
  const box = useRef();
  useEffect(() => {
    box.current.showModal();
    return () => box.current?.close();
  }, []);
  const heading = useRef(`dialog-${Math.random().toString(36).slice(2)}`).current;
  // A browser may close it by itself; one that was taken off the page by us is done with.
  const closed = (event) => event.target.isConnected && close();
  return html`<dialog ref=${box} aria-labelledby=${heading} onCancel=${(event) => (event.preventDefault(), close())} onClose=${closed}>
    <h2 id=${heading}>${title}</h2>
    ${children}
  </dialog>`;
}

/** A dialog with a form: `submit` is called with nothing, and closes what it wants to. */
export function FormDialog({ title, close, submit, action, busy, error, danger, children }) {
  const send = (event) => {
    event.preventDefault();
    submit();
  };
  return html`<${Dialog} ...${{ title, close }}>
    <form onSubmit=${send}>
      ${children}
      <${Failure} error=${error} />
      <div class="actions">
        <button type="button" onClick=${close}>${t.cancel}</button>
        <button type="submit" class=${danger ? "danger" : "first"} disabled=${busy}>${action}</button>
      </div>
    </form>
  <//>`;
}

/** Asks before something is done that cannot be undone: `act` does it, `done` is called when it is. */
export function Confirm({ title, action, act, done, close, children }) {
  const [run, busy, error] = useAction(act);
  const submit = async () => (await run()) && done();
  return html`<${FormDialog} danger ...${{ title, action, close, submit, busy, error }}><p>${children}</p><//>`;
}

export function Copy({ text, label = t.copy }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await put(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-live="polite">${copied ? t.copied : label}</button>`;
}

/** Into the clipboard, also where there is no TLS, when browsers offer no clipboard to scripts. */
async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const place = document.createElement("textarea");
  place.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(place);
  place.select();
  document.execCommand("copy");
  place.remove();
}

/** `columns`: `{title, cell(row), right}`; a table that scrolls sideways where it is too wide. */
export function Table({ label, columns, rows, keyed }) {
  return html`<div class="table" role="region" aria-label=${label} tabindex="0">
    <table>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.right ? "right" : ""}>${column.title}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${keyed(row)}>
        ${columns.map((column) => html`<td class=${column.right ? "right" : ""}>${column.cell(row)}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** What `usePages` gives, as a table with what stands around it; `empty`: what is said where there is nothing. */
export const Listing = ({ list, empty, further = t.showMore, ...table }) => html`
  <${Failure} error=${list.error} again=${list.again} />
  ${list.waiting && html`<${Waiting} />`}
  ${list.empty && empty}
  ${list.rows.length > 0 && html`<${Table} ...${table} rows=${list.rows} keyed=${(row) => row.id} />`}
  ${list.hasMore && html`<button type="button" disabled=${list.loading} onClick=${list.more}>${further}</button>`}`;

/** A time relative to now; `none` stands for a missing one. */
export const Time = ({ value, none = "–" }) => (value ? html`<time datetime=${value} title=${date(value)}>${since(value)}</time>` : html`<span class="dim">${none}</span>`);

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

/** A figure with what it means. */
export const Figure = ({ label, value, hint }) => html`<div class="figure"><span class="dim">${label}</span><strong>${value}</strong>
  ${hint && html`<span class="dim">${hint}</span>`}</div>`;

export function Tabs({ label, tabs, at, choose }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const place = tabs.findIndex(([name]) => name === at);
    const [name] = tabs[(place + step + tabs.length) % tabs.length];
    choose(name);
    event.currentTarget.querySelector(`[data-tab="${name}"]`).focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(([name, text]) => html`<button key=${name} type="button" role="tab" data-tab=${name} aria-selected=${name === at}
      tabindex=${name === at ? 0 : -1} onClick=${() => choose(name)}>${text}</button>`)}
  </div>`;
}

export const Code = ({ text, label }) => html`<div class="source"><pre tabindex="0" aria-label=${label}><code>${text}</code></pre><${Copy} text=${text} /></div>`;
