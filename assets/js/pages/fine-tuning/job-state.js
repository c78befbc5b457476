// The state and the progress of a job.

import { html } from "../../html.js";
import { number } from "../../format.js";
import { t } from "../../strings.js";
import { Badge } from "../../ui.js";

const BADGES = { succeeded: "success", failed: "danger", cancelled: "warning", paused: "warning", running: "success" };

/** Whether the server trains a job now or soon. */
export const isActive = (job) => ["queued", "running"].includes(job?.state);

export const JobState = ({ job }) => html`<${Badge} kind=${BADGES[job.state] ?? ""}>${t.tuning.states[job.state] ?? job.state}<//>`;

/** The steps done, as a bar; nothing before the first step. `format`: the text of a step and the number of steps. */
export function JobProgress({ job: { progress }, format = t.tuning.progressOf }) {
  if (!progress) return null;
  const { step, steps } = progress;
  return html`<div class="job-progress"><progress max=${steps} value=${step} aria-label=${t.tuning.progressLabel(step, steps)}></progress>
    <span class="muted nowrap">${format(number(step), number(steps))}</span></div>`;
}
