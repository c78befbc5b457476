// The dashboard's entry point: session, routing and layout.

import { html, render, useEffect, useLayoutEffect, useState } from "./html.js";
import { all, get } from "./api.js";
import { Icon } from "./icons.js";
import { session } from "./session.js";
import { t } from "./strings.js";
import { ErrorAlert, SelectField, useLoad, Loading } from "./ui.js";
import { Agents } from "./pages/agents.js";
import { AuditLog } from "./pages/audit-log.js";
import { Conversations } from "./pages/conversations.js";
import { ApiKeys } from "./pages/api-keys.js";
import { LiveMetrics } from "./pages/live-metrics.js";
import { Models } from "./pages/models.js";
import { Playground } from "./pages/playground.js";
import { Projects } from "./pages/projects.js";
import { SignIn, signInWith, signOut, takeToken } from "./pages/sign-in.js";
import { GetStarted } from "./pages/get-started.js";
import { FineTuning } from "./pages/fine-tuning.js";
import { Usage } from "./pages/usage.js";

// Sections of the navigation. A page: URL hash, component, and the scope that it requires. The first page is the default.
const SECTIONS = [
  ["", [["start", GetStarted], ["playground", Playground, "inference"]]],
  ["build", [["models", Models], ["conversations", Conversations, "project"], ["agents", Agents, "project"], ["tuning", FineTuning, "project"]]],
  ["manage", [["keys", ApiKeys, "project"], ["usage", Usage, "project"], ["live", LiveMetrics, "admin"], ["projects", Projects, "project"], ["audit", AuditLog, "project"]]],
];
const PAGES = SECTIONS.flatMap(([, pages]) => pages);
const isAllowed = ([, , scope]) => !scope || session.hasScope(scope);
const PROJECT_KEY = "outpost.project";

/** Decodes a part of the hash. Malformed input is returned unchanged. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `#/agents/agent_1` is the page `agents` with the rest `["agent_1"]`. */
function currentRoute() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  return { name: name || PAGES[0][0], rest };
}

function useRoute() {
  const [route, setRoute] = useState(currentRoute);
  // An effect would run after the first paint and miss a change of the address before it.
  useLayoutEffect(() => {
    const update = () => {
      setRoute(currentRoute());
      // The keyboard stays on a tab that was just selected.
      if (document.activeElement?.closest("[role=tablist]")) return;
      // Screen readers continue from the heading, as after a page load.
      requestAnimationFrame(() => document.querySelector("main h1")?.focus());
      scrollTo(0, 0);
    };
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}

/** The selected project. Administrators can select any; other keys have one. */
function useProject(me) {
  const [selected, setSelected] = useState(() => sessionStorage.getItem(PROJECT_KEY));
  const admin = session.hasScope("admin");
  const [projects, error, reload] = useLoad(async () => (admin ? all("/projects") : [me.project]), [me, admin]);
  const project = projects?.find((one) => one.id === selected) ?? projects?.find((one) => one.id === me.project_id) ?? projects?.[0];
  const select = (id) => {
    sessionStorage.setItem(PROJECT_KEY, id);
    setSelected(id);
  };
  return { project, projects, error, reload, select };
}

/** The links to the pages that the key may use. */
function Navigation({ current }) {
  const sections = SECTIONS.map(([name, pages]) => [name, pages.filter(isAllowed)]).filter(([, pages]) => pages.length);
  return html`<nav aria-label=${t.pages.label}>${sections.map(([name, pages]) => html`<div class="nav-section" key=${name}>
    ${name && html`<div class="nav-title">${t.sections[name]}</div>`}
    <ul>${pages.map(([page]) => html`<li key=${page}><a href=${`#/${page}`} aria-current=${page === current ? "page" : undefined}><${Icon} name=${page} />${t.pages[page]}</a></li>`)}</ul>
  </div>`)}</nav>`;
}

function Layout({ me }) {
  const route = useRoute();
  const [menuOpen, setMenuOpen] = useState(false);
  const { project, projects, error, reload, select } = useProject(me);
  const [name, View] = PAGES.filter(isAllowed).find(([name]) => name === route.name) ?? [];
  useEffect(() => setMenuOpen(false), [route]);
  return html`<a class="skip-link" href="#app" onClick=${(event) => (event.preventDefault(), document.querySelector("main h1")?.focus())}>${t.skipToContent}</a>
    <div class="layout">
      <div class="sidebar"><div class=${`sidebar-content ${menuOpen ? "open" : ""}`}>
        <div class="sidebar-top">
          <a class="brand" href="#/start"><img src="/assets/icon.svg" alt="" />Outpost</a>
          <button class="menu-button" type="button" aria-expanded=${menuOpen} onClick=${() => setMenuOpen(!menuOpen)}><${Icon} name="menu" />${t.menu}</button>
        </div>
        ${projects?.length > 1 && html`<${SelectField} label=${t.project} value=${project?.id} onInput=${select}
          options=${projects.map((one) => [one.id, one.archived_at ? t.archivedName(one.name) : one.name])} />`}
        <${Navigation} current=${name} />
        <div class="account">
          <p><span class="muted">${t.signedInWith}</span><br />${me.name}</p>
          <button type="button" class="text-button" onClick=${signOut}><${Icon} name="signOut" />${t.signOut}</button>
        </div>
      </div></div>
      <main>
        <${ErrorAlert} error=${error} retry=${reload} />
        ${!project && !error && html`<${Loading} />`}
        ${project && !View && html`<h1 tabindex="-1">${t.pageNotFound}</h1><p><a href="#/start">${t.home}</a></p>`}
        ${project && View && html`<${View} key=${`${name} ${project.id}`} ...${{ project, projects, rest: route.rest, me, refresh: reload }} />`}
      </main>
    </div>`;
}

// First of all, so that nobody sees the token.
const firstToken = takeToken();

function App() {
  const [me, setMe] = useState(session.me);
  const [error, setError] = useState(null);
  const [linkState, setLinkState] = useState({ isOpening: firstToken !== null });
  const openLink = async (token) => {
    setLinkState({ isOpening: true });
    try {
      await signInWith(token);
      setLinkState({});
    } catch (problem) {
      // Whoever is signed in stays it.
      setLinkState({ error: session.key ? undefined : problem });
      if (session.key && !session.me) resume();
    }
  };
  const resume = async () => {
    setError(null);
    try {
      session.signIn(session.key, await get("/me"));
    } catch (problem) {
      problem.status === 401 ? session.signOut() : setError(problem);
    }
  };
  useEffect(() => {
    const unsubscribe = session.subscribe(() => {
      setMe(session.me);
      setLinkState({});
    });
    const followLink = () => {
      const token = takeToken();
      if (token !== null) openLink(token);
    };
    // A link that is opened in this tab later does not load the page again.
    addEventListener("hashchange", followLink);
    if (firstToken !== null) openLink(firstToken);
    else if (session.key && !session.me) resume();
    return () => {
      unsubscribe();
      removeEventListener("hashchange", followLink);
    };
  }, []);
  if (linkState.isOpening) return html`<div class="sign-in"><${Loading} /></div>`;
  if (me) return html`<${Layout} me=${me} />`;
  if (error) return html`<div class="sign-in"><${ErrorAlert} error=${error} retry=${resume} /></div>`;
  return session.key ? html`<div class="sign-in"><${Loading} /></div>` : html`<${SignIn} linkError=${linkState.error} />`;
}

render(html`<${App} />`, document.getElementById("app"));
