// The events of a job, and the measurements in them.

import { apiPath, get } from "../../api.js";

// The API's largest page, and one that holds what happens between two polls.
const [PAGE, UPDATE] = [100, 20];

/** Reads a job's events, newest first. `known`: those that were read before, which are not requested again. */
export async function readEvents(id, known = []) {
  const path = apiPath`/fine_tuning/jobs/${id}/events`;
  const added = [];
  let cursor;
  for (;;) {
    const page = await get(path, { limit: known.length && !cursor ? UPDATE : PAGE, cursor });
    const at = page.data.findIndex((event) => event.id === known[0]?.id);
    added.push(...(at < 0 ? page.data : page.data.slice(0, at)));
    if (at >= 0 || !page.has_more) break;
    cursor = page.next_cursor;
  }
  return added.length ? [...added, ...known] : known;
}

/**
 * The measurements of each step, ascending, from events that are newest first. After a restart of the server, a training repeats the steps since its last saved state.
 * Events of the earlier attempt are then out of date, also those of steps that the new one has not reached yet.
 */
export function measurements(events) {
  const rows = new Map();
  const add = (data) => rows.set(data.step, { ...data, ...rows.get(data.step) });
  let [trained, validated] = [Infinity, Infinity];
  for (const data of events.map((event) => event.data ?? {})) {
    if (Number.isFinite(data.train_loss) && data.step < trained) {
      trained = data.step;
      add(data);
    } else if (Number.isFinite(data.full_valid_loss) && data.step < validated && data.step <= trained) {
      validated = data.step;
      add(data);
    }
  }
  return [...rows.values()].sort((a, b) => a.step - b.step);
}
