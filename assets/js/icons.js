// Line icons on a grid of 20 by 20 units.

import { html } from "./html.js";

const PATHS = {
  start: "M5 17.5V3M5 4h10.5l-2.5 3.5 2.5 3.5H5",
  playground: "M3.5 4.5h13v9H9L5.5 17v-3.5h-2zM7 8h6M7 10.5h4",
  models: "M10 2.5 16.5 6v8L10 17.5 3.5 14V6zM3.5 6 10 9.7 16.5 6M10 9.7v7.8",
  conversations: "M3 4h9.5v6.5H8L5.5 13v-2.5H3zM15 7.5h2v6.3h-1.8V16l-2.4-2.2H9.5",
  agents: "M4.5 7.5h11v8h-11zM10 7.5V4.5M8 11v1.5M12 11v1.5M2.5 10.5v2M17.5 10.5v2M10 4.5h.01",
  tuning: "M3 6h6.5M13.5 6H17M3 14h3.5M10.5 14H17M11.5 4v4M8.5 12v4",
  keys: "M10.6 9.4 16.5 3.5M14 6l2 2M12.3 7.7l1.5 1.5M11.5 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0z",
  usage: "M3 17h14M5.5 14V9.5M10 14V4M14.5 14V7",
  live: "M2.5 10.5h3.5l2.2-6 3.8 11 2.2-5h3.3",
  projects: "M3 5h5l1.7 2.2H17V16H3z",
  audit: "M5 2.5h6.5L15 6v11.5H5zM11.5 2.5V6H15M7.5 10h5M7.5 13.3h5",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  copy: "M7.5 7.5h9v9h-9zM12.5 7.5v-4h-9v9h4",
  check: "M4 10.5l4 4 8-9",
  filter: "M3 4.5h14L11.6 11v5l-3.2-1.6V11z",
  signOut: "M11.5 3.5H4v13h7.5M8.5 10h8.5M14 7l3 3-3 3",
  send: "M10 16.5v-13M4.5 9 10 3.5 15.5 9",
  down: "M10 3.5v13M4.5 11l5.5 5.5 5.5-5.5",
  up: "M10 16.5v-13M4.5 9 10 3.5 15.5 9",
  stop: "M6 6h8v8H6z",
  redo: "M15.8 10.5a6 6 0 1 1-1.9-4.8l2 1.9M16 3.5v4.2h-4.2",
  microphone: "M10 2.5a2.2 2.2 0 0 1 2.2 2.2v5a2.2 2.2 0 0 1-4.4 0v-5A2.2 2.2 0 0 1 10 2.5zM5 9.5a5 5 0 0 0 10 0M10 14.5v3M7.5 17.5h5",
  plus: "M10 4v12M4 10h12",
  code: "M6.8 5.5 2.5 10l4.3 4.5M13.2 5.5l4.3 4.5-4.3 4.5",
};

/** Decorative: the text beside it is the name. */
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
