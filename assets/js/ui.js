// Hooks and components that the pages share.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "./html.js";
import { downloadBlob, get } from "./api.js";
import { date, relativeTime, toDate } from "./format.js";
import { Icon } from "./icons.js";
import { t } from "./strings.js";
import { colored } from "./syntax.js";

// The pause after the rendering of a value, as a multiple of the time that it took.
const RENDERING_PAUSE = 2;

/** Loads a value: `[value, error, reload]`. Loads again when one of `deps` changes. */
export function useLoad(load, deps) {
  const [state, setState] = useState({ value: null, error: null });
  const latest = useRef(0);
  const reload = useCallback(async () => {
    const current = ++latest.current;
    try {
      const value = await load();
      if (current === latest.current) setState({ value, error: null });
    } catch (error) {
      if (current === latest.current) setState((before) => ({ ...before, error }));
    }
  }, deps);
  useEffect(() => {
    reload();
    return () => void latest.current++;
  }, [reload]);
  return [state.value, state.error, reload];
}

/** Loads a list page by page, for a `PagedTable`. Starts again when one of `deps` changes, and on `reload`. */
export function usePagedList(path, query, deps) {
  const [first, error, reload] = useLoad(() => get(path, query), deps);
  // Later pages belong to a first page and are dropped with it.
  const [rest, setRest] = useState({ first: null, pages: [] });
  const pages = first ? [first, ...(rest.first === first ? rest.pages : [])] : [];
  const last = pages.at(-1);
  const [loadMore, loadingMore, moreError] = useAction(async () => {
    const next = await get(path, { ...query, cursor: last.next_cursor });
    setRest({ first, pages: [...pages.slice(1), next] });
  });
  const rows = pages.flatMap((page) => page.data);
  const empty = first && !rows.length && !last.has_more;
  return { rows, loading: !first && !error, empty, error: error ?? moreError, retry: error ? reload : undefined, hasMore: Boolean(last?.has_more), loadMore, loadingMore, reload };
}

/** Loads the models that the key can use, optionally only those with a capability: `[models, error, reload]`. */
export function useModels(capability) {
  return useLoad(async () => (await get("/models")).data.filter((model) => !capability || model.capabilities[capability]), []);
}

/** Downloads a JSON text as a file. */
export function downloadJson(name, text) {
  downloadBlob(name, new Blob([text], { type: "application/json" }));
}

/** Calls `callback` at an interval while the tab is visible. */
export function useInterval(milliseconds, callback) {
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => {
    const timer = setInterval(() => document.hidden || latest.current(), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

/**
 * Passes the latest of many values to `show`, at most once per interval. If rendering a value takes long, the next one waits longer, so
 * that a fast stream leaves most of the time to the user.
 */
export function throttle(milliseconds, show) {
  let [latest, pending, timer, next] = [null, false, 0, 0];
  const wait = () => (timer = setTimeout(flush, Math.max(0, next - performance.now())));
  const flush = () => {
    const began = performance.now();
    pending = false;
    show(latest);
    // Preact renders before the next task.
    timer = setTimeout(() => {
      const rendered = performance.now();
      next = Math.max(began + milliseconds, rendered + RENDERING_PAUSE * (rendered - began));
      timer = 0;
      if (pending) wait();
    });
  };
  const push = (value) => {
    latest = value;
    pending = true;
    if (!timer) wait();
  };
  push.cancel = () => clearTimeout(timer);
  return push;
}

/** An asynchronous user action: `[run, busy, error, clearError]`. */
export function useAction(action) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (...args) => {
    setState({ busy: true, error: null });
    try {
      const value = await action(...args);
      setState({ busy: false, error: null });
      return value;
    } catch (error) {
      setState({ busy: false, error: error.name === "AbortError" ? null : error });
      return undefined;
    }
  };
  return [run, state.busy, state.error, () => setState({ busy: false, error: null })];
}

export function ErrorAlert({ error, retry }) {
  if (!error) return null;
  return html`<div class="alert" role="alert">
    <p>${error.message}</p>
    ${error.requestId && html`<p class="muted">${t.errors.requestId} <code>${error.requestId}</code></p>`}
    ${retry && html`<button type="button" onClick=${retry}>${t.errors.retry}</button>`}
  </div>`;
}

export const Loading = () => html`<p class="muted loading" role="status">${t.loading}</p>`;

/** Shown in place of an empty list; says what to do next. */
export const EmptyState = ({ title, children }) => html`<div class="empty-state"><h3>${title}</h3>${children}</div>`;

/** A page with its heading. `nested`: the content of a tab, whose page has the heading. */
export function Page({ title, about, actions, nested, children }) {
  useEffect(() => void (nested || (document.title = `${title} · Outpost`)), [title, nested]);
  return html`<header class=${nested ? "nested" : "page"}>
      <div>
        ${!nested && html`<h1 tabindex="-1">${title}</h1>`}
        ${about && html`<p class="muted">${about}</p>`}
      </div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}`;
}

/** Content that small screens fold under a button. `count`: the number of settings in it that are not at their default. */
export function Foldable({ label, icon, count = 0, className = "", children }) {
  const [open, setOpen] = useState(false);
  return html`<section class=${`foldable ${open ? "open" : ""} ${className}`} aria-label=${label}>
    <button type="button" class="fold-button" aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name=${icon} />${label}${count > 0 && ` (${count})`}</button>
    <div class="fold-content">${children}</div>
  </section>`;
}

/** Content that is shown on request. `open`: whether it is shown at first, or from now on. */
export function Disclosure({ label, open = false, children }) {
  const [isOpen, setOpen] = useState(open);
  useEffect(() => void (open && setOpen(true)), [open]);
  return html`<details class="disclosure" open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>${label}</summary>
    ${isOpen && children}
  </details>`;
}

/** Fields that filter what the page shows. */
export const Filters = ({ count, children }) => html`<${Foldable} label=${t.filters} icon="filter" count=${count} className="card filters">${children}<//>`;

/** A labeled control. `children` is a function of the control's attributes. */
export function Field({ label, hint, error, children }) {
  const id = useRef(`field-${Math.random().toString(36).slice(2)}`).current;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": hint || error ? `${id}-hint` : undefined, "aria-invalid": error ? "true" : undefined })}
    ${(hint || error) && html`<p id=${`${id}-hint`} class=${error ? "error" : "muted"}>${error ?? hint}</p>`}
  </div>`;
}

export const TextField = ({ label, hint, error, value, onInput, ...more }) => html`<${Field} ...${{ label, hint, error }}>
  ${(attributes) => html`<input ...${attributes} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)} />`}
<//>`;

export const TextArea = ({ label, hint, error, value, onInput, ...more }) => html`<${Field} ...${{ label, hint, error }}>
  ${(attributes) => html`<textarea ...${attributes} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)}></textarea>`}
<//>`;

/** `options`: a list of `[value, text]`. */
export const SelectField = ({ label, hint, error, value, onInput, options, ...more }) => html`<${Field} ...${{ label, hint, error }}>
  ${(attributes) => html`<select ...${attributes} ...${more} value=${value} onInput=${(event) => onInput(event.target.value)}>
    ${options.map(([option, text]) => html`<option key=${option} value=${option} selected=${option === value}>${text}</option>`)}
  </select>`}
<//>`;

/** A modal dialog that keeps the keyboard focus inside. */
export function Dialog({ title, close, wide, children }) {
  const dialog = useRef();
  useEffect(() => {
    dialog.current.showModal();
    return () => dialog.current?.close();
  }, []);
  const headingId = useRef(`dialog-${Math.random().toString(36).slice(2)}`).current;
  // The browser may close the dialog itself. A dialog that has left the page needs no further handling.
  const closed = (event) => event.target.isConnected && close();
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby=${headingId} onCancel=${(event) => (event.preventDefault(), close())} onClose=${closed}>
    <h2 id=${headingId}>${title}</h2>
    ${children}
  </dialog>`;
}

/** A dialog with a form. `submit` takes no arguments and closes the dialog itself. `dismiss`: the text of the button that closes it. */
export function FormDialog({ title, close, submit, action, dismiss = t.cancel, busy, error, danger, children }) {
  const send = (event) => {
    event.preventDefault();
    submit();
  };
  return html`<${Dialog} ...${{ title, close }}>
    <form onSubmit=${send}>
      ${children}
      <${ErrorAlert} error=${error} />
      <div class="actions">
        <button type="button" onClick=${close}>${dismiss}</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${action}</button>
      </div>
    </form>
  <//>`;
}

/** Asks before an irreversible action. `run` performs it; `onDone` is called after success. */
export function ConfirmDialog({ title, action, dismiss, run, onDone, close, children }) {
  const [confirm, busy, error] = useAction(run);
  const submit = async () => (await confirm()) && onDone();
  return html`<${FormDialog} danger ...${{ title, action, dismiss, close, submit, busy, error }}><p>${children}</p><//>`;
}

/**
 * Assigns an error of the API to the field of a dialog that it names: `[errorOf, other]`, the message for a field, and the error if it belongs to none of `names`. The end
 * of its `param`, which is a path, is the name of the field. The field gets the focus.
 */
export function useFieldErrors(error, names) {
  const name = error?.param?.replace(/\[\d+\]$/, "").split(".").at(-1);
  const found = names.includes(name);
  useEffect(() => {
    // The field may have been hidden until now.
    const frame = found && requestAnimationFrame(() => document.querySelector("dialog [aria-invalid=true]")?.focus());
    return () => cancelAnimationFrame(frame);
  }, [error]);
  // The field's own name is enough there.
  return [(one) => (found && one === name ? error.message.replace(error.param, name) : undefined), found ? null : error];
}

export function CopyButton({ text, label = t.copy }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await writeClipboard(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-live="polite"><${Icon} name=${copied ? "check" : "copy"} />${copied ? t.copied : label}</button>`;
}

/** Copies a text. Without TLS browsers offer no clipboard API, so a selected text area is copied instead. */
async function writeClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A time relative to now; `none` stands for a missing one. */
export const RelativeTime = ({ value, none = "–" }) => (value ? html`<time datetime=${toDate(value).toISOString()} title=${date(value)}>${relativeTime(value)}</time>` : html`<span class="muted">${none}</span>`);

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

/** A number with its label. `unit` follows the number; `children` follow the hint. */
export const Stat = ({ label, value, unit, hint, children }) => html`<div class="stat"><span class="muted">${label}</span>
  <span class="stat-value"><strong>${value}</strong>${unit && html` <span class="unit">${unit}</span>`}</span>
  ${hint && html`<span class="muted">${hint}</span>`}${children}</div>`;

/** A bar that shows how much of `max` is used. */
export function Meter({ label, value, max }) {
  const share = max ? Math.min(1, value / max) : 0;
  return html`<div class=${`meter ${share >= 0.9 ? "full" : ""}`} role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${max || 1} aria-valuenow=${Math.min(value, max || 1)}>
    <div style=${{ width: `${share * 100}%` }}></div></div>`;
}

export function Tabs({ label, tabs, selected, onSelect }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const index = tabs.findIndex(([name]) => name === selected);
    const [name] = tabs[(index + step + tabs.length) % tabs.length];
    onSelect(name);
    event.currentTarget.querySelector(`[data-tab="${name}"]`).focus();
  };
  const list = useRef();
  // On small screens, the tabs may not all be visible.
  useEffect(() => list.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [selected]);
  return html`<div class="tabs" ref=${list} role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(([name, text]) => html`<button key=${name} type="button" role="tab" data-tab=${name} aria-selected=${name === selected}
      tabindex=${name === selected ? 0 : -1} onClick=${() => onSelect(name)}>${text}</button>`)}
  </div>`;
}

/** Code that can be copied. A `language` is shown above it; `syntax` selects the colors. With `wrap`, a command is visible as a whole. */
export function CodeBlock({ text, label, language, syntax = language, wrap }) {
  const code = useMemo(() => colored(text, syntax), [text, syntax]);
  return html`<div class=${`code-block ${wrap ? "wrap" : ""} ${language === undefined ? "" : "titled"}`}>
    ${language !== undefined && html`<span class="muted">${language}</span>`}
    <pre tabindex="0" aria-label=${label}><code>${code}</code></pre><${CopyButton} text=${text} /></div>`;
}
