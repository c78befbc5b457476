// The state and the progress of a job.

import { html } from "../../html.js";
import { number } from "../../format.js";
import { t } from "../../strings.js";
import { Badge } from "../../ui.js";

const BADGES = { succeeded: "success", failed: "danger", cancelled: "warning", paused: "warning", running: "success" };

/** Whether the server trains a job now or soon. */
export const isActive = (job) => ["queued", "running"].includes(job?.state);

export const JobState = ({ job }) => html`<${Badge} kind=${BADGES[job.state] ?? ""}>${t.tuning.states[job.state] ?? job.state}<//>`;

/** The steps done, as a bar; nothing before the first step. */
export function JobProgress({ job: { progress } }) {
  if (!progress) return null;
  const { step, steps } = progress;
  return html`<div class="job-progress"><progress max=${steps} value=${step} aria-label=${t.tuning.progressLabel(step, steps)}></progress>
    <span class="muted nowrap">${t.tuning.progressOf(number(step), number(steps))}</span></div>`;
}
