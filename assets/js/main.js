// The dashboard: who is signed in, where they are, and the page that belongs there.

import { html, render, useEffect, useState } from "./html.js";
import { all, get } from "./api.js";
import { session } from "./session.js";
import { t } from "./strings.js";
import { Failure, Select, useLoad, Waiting } from "./ui.js";
import { Agents } from "./pages/agents.js";
import { Audit } from "./pages/audit.js";
import { Conversations } from "./pages/conversations.js";
import { Keys } from "./pages/keys.js";
import { Live } from "./pages/live.js";
import { Models } from "./pages/models.js";
import { Playground } from "./pages/playground.js";
import { Projects } from "./pages/projects.js";
import { SignIn } from "./pages/signin.js";
import { Start } from "./pages/start.js";
import { Tuning } from "./pages/tuning.js";
import { Usage } from "./pages/usage.js";

// Name, page, and the scope without which it is not shown. The first is where everybody arrives.
const PAGES = [
  ["start", Start],
  ["playground", Playground, "inference"],
  ["models", Models],
  ["conversations", Conversations, "project"],
  ["agents", Agents, "project"],
  ["tuning", Tuning, "project"],
  ["keys", Keys, "project"],
  ["usage", Usage, "project"],
  ["live", Live, "admin"],
  ["projects", Projects, "project"],
  ["audit", Audit, "project"],
];
const PROJECT = "outpost.project";

/** A part of the address; as it stands where it was not written by us. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `#/keys/key_1` is the page `keys` and the rest `["key_1"]`. */
function place() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { name: name || PAGES[0][0], rest };
}

function usePlace() {
  const [at, setAt] = useState(place);
  useEffect(() => {
    const moved = () => {
      setAt(place());
      // As with a page that is loaded: what follows is read from its heading on.
      requestAnimationFrame(() => document.querySelector("main h1")?.focus());
      scrollTo(0, 0);
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

/** The project that is looked at: the key's own, or for an administrator any. */
function useProject(me) {
  const [chosen, setChosen] = useState(() => sessionStorage.getItem(PROJECT));
  const admin = session.may("admin");
  const [projects, error, again] = useLoad(async () => (admin ? all("/projects") : [me.project]), [me, admin]);
  const project = projects?.find((one) => one.id === chosen) ?? projects?.find((one) => one.id === me.project_id) ?? projects?.[0];
  const choose = (id) => {
    sessionStorage.setItem(PROJECT, id);
    setChosen(id);
  };
  return { project, projects, error, again, choose };
}

function Frame({ me }) {
  const at = usePlace();
  const [open, setOpen] = useState(false);
  const { project, projects, error, again, choose } = useProject(me);
  const shown = PAGES.filter(([, , scope]) => !scope || session.may(scope));
  const [name, Shown] = shown.find(([name]) => name === at.name) ?? [];
  useEffect(() => setOpen(false), [at]);
  return html`<a class="skip" href="#app" onClick=${(event) => (event.preventDefault(), document.querySelector("main h1")?.focus())}>${t.skipToContent}</a>
    <div class="frame">
      <div class=${`side ${open ? "open" : ""}`}>
        <div class="top">
          <a class="brand" href="#/start"><img src="/assets/icon.svg" alt="" />Outpost</a>
          <button class="menu" type="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>${t.menu}</button>
        </div>
        ${projects?.length > 1 && html`<${Select} label=${t.project} value=${project?.id} onInput=${choose}
          options=${projects.map((one) => [one.id, one.archived_at ? t.archivedName(one.name) : one.name])} />`}
        <nav aria-label=${t.pages.label}>
          <ul>${shown.map(([one]) => html`<li key=${one}><a href=${`#/${one}`} aria-current=${one === name ? "page" : undefined}>${t.pages[one]}</a></li>`)}</ul>
        </nav>
        <div class="who">
          <p><span class="dim">${t.signedInWith}</span><br />${me.name}</p>
          <button type="button" class="plain" onClick=${() => session.end()}>${t.signOut}</button>
        </div>
      </div>
      <main>
        <${Failure} error=${error} again=${again} />
        ${!project && !error && html`<${Waiting} />`}
        ${project && !Shown && html`<h1 tabindex="-1">${t.pageNotFound}</h1><p><a href="#/start">${t.home}</a></p>`}
        ${project && Shown && html`<${Shown} key=${`${name} ${project.id}`} ...${{ project, projects, rest: at.rest, me, refresh: again }} />`}
      </main>
    </div>`;
}

function App() {
  const [me, setMe] = useState(session.me);
  const [error, setError] = useState(null);
  const begin = async () => {
    setError(null);
    try {
      session.begin(session.key, await get("/me"));
    } catch (problem) {
      problem.status === 401 ? session.end() : setError(problem);
    }
  };
  useEffect(() => {
    const stop = session.watch(() => setMe(session.me));
    if (session.key && !session.me) begin();
    return stop;
  }, []);
  if (me) return html`<${Frame} me=${me} />`;
  if (error) return html`<div class="door"><${Failure} error=${error} again=${begin} /></div>`;
  return session.key ? html`<div class="door"><${Waiting} /></div>` : html`<${SignIn} />`;
}

render(html`<${App} />`, document.getElementById("app"));
