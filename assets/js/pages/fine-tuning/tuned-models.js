// Models that jobs have trained.

import { html } from "../../html.js";
import { apiPath, get, remove } from "../../api.js";
import { t } from "../../strings.js";
import { ConfirmDialog } from "../../ui.js";

/** Whether a model was trained by a job of this server. */
export const isTuned = (model) => model.id.startsWith("ft:");

/** Whether a model of this name exists; null if the key may not know. */
export async function modelExists(id) {
  try {
    return Boolean(await get(apiPath`/models/${id}`));
  } catch (error) {
    return error.status === 404 ? false : null;
  }
}

export const DeleteModel = ({ id, close }) => html`<${ConfirmDialog} title=${t.tuning.deleteModelTitle(id)} action=${t.delete} close=${() => close(false)}
  run=${() => remove(apiPath`/models/${id}`)} onDone=${() => close(true)}>${t.tuning.deleteModelAbout}<//>`;
