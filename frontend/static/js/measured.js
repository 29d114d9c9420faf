// What the shown run can tell: a count of what nobody could see is unknown, and drawn as a dash, never as zero.

import { getJson } from "./api.js";
import { known } from "./format.js";
import { store } from "./store.js";
import { search } from "./where.js";

let missing = new Map();
let ofRun = null;

/** Why the shown run cannot tell `name`, as it says itself; undefined when it can. An imported run alone is asked. */
export function why(name) { return missing.get(name) ?? (name.includes(".") ? missing.get(name.split(".")[0]) : undefined); }

/** Whether any memory of the session was ever seen; without it, nobody was there who could see bursts, OOM or leftovers. */
export function sampled(session) { return known(session?.peak_bytes) || known(session?.runtime_bytes); }

/** A count of bursts: what was seen is told, none seen is told only where one would have been seen. */
export function bursts(session, count = session.bursts) { return count || (sampled(session) && !why("memory.bursts") ? count : null); }

/** The count of OOM kills, on the same terms. */
export function ooms(session) { return session.ooms || (sampled(session) ? session.ooms : null); }

/** Ask the run for what it lacks; `changed()` is called when the answer is another one. */
export async function learn(changed) {
  const run = store.run?.id ?? null;
  if (run === ofRun) return;
  ofRun = run;
  const before = missing.size;
  missing = new Map();
  if (store.run?.kind === "imported") {
    try {
      const { capabilities } = await getJson(`/api/capabilities${search({ run, at: null })}`);
      if (ofRun !== run) return;
      missing = new Map(capabilities.filter((one) => !one.available).map((one) => [one.name, one.reason || "not available"]));
    } catch (error) { ofRun = null; console.info(`capabilities: ${error.message}`); return; }
  }
  if (before || missing.size) changed();
}
