// What the engine plane knows of a session: its blocks over time, turns, decisions and transitions; asked for again as it grows.

import { getJson, path } from "./api.js";
import { indexAt } from "./charts.js";
import { STATES } from "./enginewords.js";
import { store } from "./store.js";

const DEBOUNCE_MS = 150;
const LIVE_MS = 1000;

const NOTHING = { t: new Float64Array(0), states: {}, shared: new Float64Array(0) };

/** Numbers with null for unknown, as the charts want them. */
export function column(values) { return Float64Array.from(values || [], (value) => value ?? NaN); }

export class KvData {
  #session; #changed; #failed; #timer = 0; #abort = null; #asked = ""; #loadedMs = -Infinity; #view; #px;
  blocks = NOTHING; turns = []; decisions = []; transitions = []; engine = null; loaded = false; truncated = false;

  constructor(session, changed, failed) { this.#session = session; this.#changed = changed; this.#failed = failed; }

  /** Ask for the view; `fresh`: although it was asked for before, because there is more. */
  request(view, px, fresh = false) {
    this.#view = view; this.#px = px;
    if (fresh) this.#asked = "";
    if (this.#timer) return;
    this.#timer = setTimeout(() => this.#load(), Math.max(DEBOUNCE_MS, fresh ? LIVE_MS - (performance.now() - this.#loadedMs) : 0));
  }

  async #load() {
    this.#timer = 0;
    const [from, to] = this.#view(), px = Math.round(Math.max(100, Math.min(this.#px(), 2000)));
    const asked = [Math.floor(from), Math.ceil(to), px].join();
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#abort?.abort();
    const abort = this.#abort = new AbortController();
    this.#loadedMs = performance.now();
    try {
      const body = await getJson(store.api(`/api${path("sessions", this.#session)}/kv`, { from_us: Math.floor(from), to_us: Math.ceil(to), px }), { signal: abort.signal });
      this.blocks = { t: Float64Array.from(body.blocks.t_us, (us) => us / 1000), states: Object.fromEntries(STATES.map(([state]) => [state, column(body.blocks.states[state])])), shared: column(body.blocks.shared) };
      this.turns = body.turns; this.decisions = body.decisions; this.transitions = body.transitions; this.engine = body.engine; this.truncated = body.truncated;
      this.loaded = true;
      this.#changed();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#asked = "";
      this.#failed(error);
    }
  }

  /** Blocks by state at a time; null where nothing is known. */
  at(us) {
    const i = indexAt(this.blocks.t, us / 1000);
    return i < 0 ? null : Object.fromEntries(STATES.map(([state]) => [state, this.blocks.states[state][i]]));
  }

  /** The turn under a time, of several the one that started last. */
  turnAt(us, nowUs) { return this.turns.findLast((turn) => begin(turn) <= us && us <= turnEnd(turn, nowUs)) ?? null; }

  /** The decision that held at a time: the last one before it. */
  decisionAt(us) { return this.decisions.findLast((decision) => decision.t_us <= us) ?? null; }
}

export function begin(turn) { return turn.started_us ?? turn.first_token_us ?? turn.ended_us ?? 0; }
export function turnEnd(turn, nowUs) { return turn.ended_us ?? (turn.state === "running" ? Math.max(nowUs, begin(turn)) : turn.first_token_us ?? begin(turn)); }

/** Queue, prefill and decode of a turn as spans [[phase, from, to]]; where the engine told nothing, before and after the first token. */
export function phases(turn, nowUs) {
  const from = begin(turn), to = turnEnd(turn, nowUs), first = turn.first_token_us;
  const queued = turn.queue_us === null ? null : Math.min(to, from + turn.queue_us);
  const answered = Math.min(to, queued !== null && turn.prefill_us !== null ? queued + turn.prefill_us : first ?? to);
  const out = [];
  if (queued !== null && queued > from) out.push(["queue", from, queued]);
  out.push(["prefill", queued ?? from, Math.max(queued ?? from, answered)]);
  if (to > answered) out.push(["decode", answered, to]);
  return out;
}
