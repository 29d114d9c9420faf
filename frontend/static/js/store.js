// What the browser knows: /api/state, then the frames folded onto it. No DOM here.

import { getJson } from "./api.js";
import { Stream } from "./stream.js";

export const WINDOW_US = 120e6;
const EVENTS_KEPT = 500;
const SPARK_KEPT = 1500;

/** State of the run. `subscribe(f)` calls f(change) at most once a frame; change = {all, frame, status}. */
export class Store {
  run = null; ord = 0; sessions = new Map(); hosts = new Map(); lost = { total: 0, by: [] }; sources = [];
  events = []; spark = new Map(); hostPoints = []; unknown = {};
  status = "connecting"; lastRecordMs = 0; gapSeen = false;
  #clockOffsetUs = 0; #listeners = new Set(); #stream; #paused = false; #failed = "";

  constructor() {
    this.#stream = new Stream({
      hello: (data) => { if (this.run && data.run !== undefined && runId(data.run) !== this.run.id) this.reload(); },
      frame: (data) => this.#applyFrame(data),
      gap: () => { this.gapSeen = true; this.reload(); },
      status: (status) => { this.status = status; this.#tell({ status: true }); },
      reconnect: () => this.reload(false),
    });
  }

  subscribe(listener) { this.#listeners.add(listener); return () => this.#listeners.delete(listener); }
  get replay() { return Boolean(this.run?.replay); }
  get paused() { return this.#paused; }
  get failure() { return this.#failed; }

  /** Microseconds UTC by the server's clock; the end of the run in a replay. */
  now() { return this.replay ? this.#clockOffsetUs : Date.now() * 1000 + this.#clockOffsetUs; }

  /** Load the state, then follow the stream; closes it while the tab is hidden. */
  async start() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#stream.close("paused"); else if (!this.#paused) this.#resume();
    });
    await this.#resume();
  }

  pause() { this.#paused = true; this.#stream.close("paused"); }
  resume() { this.#paused = false; return this.#resume(); }

  async #resume() {
    try { await this.reload(false); } catch (error) { this.#failed = error.message; this.#tell({ status: true }); }
    if (!document.hidden && !this.#paused) this.#stream.open(this.ord);
  }

  /** Fetch the whole state again: at the start, after a gap, after a reconnect. */
  async reload() {
    const state = await getJson("/api/state");
    this.#failed = "";
    this.run = state.run; this.ord = state.ord; this.#stream.ord = state.ord;
    this.#clock(state.now_us);
    this.sessions = new Map(state.sessions.map((session) => [session.id, session]));
    this.hosts = new Map(state.hosts.map((host) => [host.host, host]));
    this.lost = state.lost; this.sources = state.sources; this.events = state.events; this.unknown = state.unknown_types || {};
    this.spark = new Map(Object.entries(state.spark).map(([id, points]) => [id, points.slice(-SPARK_KEPT)]));
    const newest = Math.max(0, ...this.sources.map((source) => source.last_t_us || 0));
    this.lastRecordMs = newest ? Date.now() - Math.max(0, state.now_us - newest) / 1000 : 0;
    this.#tell({ all: true });
  }

  #clock(nowUs) { this.#clockOffsetUs = this.replay ? nowUs : nowUs - Date.now() * 1000; }

  #applyFrame(frame) {
    // Frames also tell that nothing came (sources, losses): only a higher ord is news.
    if (frame.ord > this.ord) { this.ord = frame.ord; this.lastRecordMs = Date.now(); }
    if (frame.now_us) this.#clock(frame.now_us);
    for (const session of frame.sessions || []) this.sessions.set(session.id, session);
    for (const host of frame.hosts || []) {
      this.hosts.set(host.host, host);
      if (host.mem_available_bytes !== null && host.mem_total_bytes) this.hostPoints.push([host.last_t_us, host.mem_total_bytes - host.mem_available_bytes, host.host]);
    }
    if (this.hostPoints.length > 2 * SPARK_KEPT) this.hostPoints.splice(0, SPARK_KEPT);
    for (const [id, points] of Object.entries(frame.spark || {})) {
      const kept = this.spark.get(id);
      if (!kept) { this.spark.set(id, points); continue; }
      kept.push(...points);
      const oldest = this.now() - WINDOW_US;
      // Cut in steps: shifting an array of a thousand points at each frame would cost more than drawing it.
      if (kept.length > SPARK_KEPT) kept.splice(0, Math.max(kept.findIndex((point) => point[0] >= oldest) - 1, SPARK_KEPT / 4));
    }
    if (frame.events?.length) {
      const newest = [...frame.events].sort((a, b) => b.ord - a.ord);
      this.events = [...newest, ...this.events].slice(0, EVENTS_KEPT);
    }
    if (frame.lost) this.lost = frame.lost;
    if (frame.sources) this.sources = frame.sources;
    this.#tell({ frame });
  }

  #tell(change) { for (const listener of this.#listeners) listener(change); }

  /** The last 120 s of a session as [t_us, runtime, calls], oldest first, from one point before the window on. */
  sparkWindow(id, fromUs) {
    const points = this.spark.get(id) || [];
    let first = points.length;
    while (first > 0 && points[first - 1][0] >= fromUs) first--;
    return points.slice(Math.max(first - 1, 0));
  }
}

function runId(run) { return typeof run === "object" && run !== null ? run.id : run; }

export const store = new Store();
