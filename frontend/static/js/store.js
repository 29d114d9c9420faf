// What the browser knows of the run at the instant that is shown: /api/state, then the frames folded onto it. No DOM here.
//
// Three ways to be: live (the run is being written and followed), still (an instant of any run), playing (from an instant on,
// the server plays the run to us). A seek is a new state; everything that comes from the API is asked for with `api()`.

import { getJson } from "./api.js";
import { Stream } from "./stream.js";
import { parse, search } from "./where.js";

export const WINDOW_US = 120e6;
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];
const EVENTS_KEPT = 500;
const SLACK_US = 30e6; // what is older than the window is cut off in steps of this
const URL_MS = 1000;
const RESUME_MS = 5000;
const RETRY_MS = 2000;
const PLAY_KEY = "tidegate.play";

/** State of the run. `subscribe(f)` calls f(change) at most once a frame; change = {all, frame, status, place}. */
export class Store {
  run = null; ord = 0; sessions = new Map(); hosts = new Map(); engines = new Map(); lost = { total: 0, by: [] }; sources = [];
  events = []; spark = new Map(); hostPoints = []; unknown = {};
  startUs = 0; live = false; playing = false; speed = 1; failure = ""; refused = false;
  status = "connecting"; lastRecordMs = 0; gapSeen = false;
  #runId; #at; #endUs = 0; #clockOffsetUs = 0; #listeners = new Set(); #stream; #busy = null; #again = false; #held = null; #urlTimer = 0; #retryTimer = 0; #pushedMs = 0;

  constructor() {
    ({ run: this.#runId, at: this.#at } = parse(globalThis.location?.search ?? ""));
    this.#stream = new Stream({
      hello: (data) => { if (this.live && this.run && data.run !== undefined && runId(data.run) !== this.run.id) this.reload(); },
      frame: (data) => { if (this.#held) this.#held.push(data); else this.#applyFrame(data); },
      gap: () => { this.gapSeen ||= this.live; this.reload(); },
      end: () => this.#ended(),
      // The run went away while it was played: the state is asked for, and that says why.
      failed: () => { this.playing = false; this.#stream.close("still"); this.reload(); },
      status: (status) => { this.status = status; this.#tell({ status: true }); },
      reconnect: () => this.reload(),
    });
  }

  subscribe(listener) { this.#listeners.add(listener); return () => this.#listeners.delete(listener); }

  /** Whether the run is being written; its end is then now. */
  get writing() { return Boolean(this.run?.writing); }
  get endUs() { return this.writing ? Math.max(this.#endUs, this.#clock()) : this.#endUs; }

  /** Microseconds UTC by the server's clock when live, else the position. */
  now() { return this.live ? this.#clock() : this.#at ?? this.#endUs; }
  #clock() { return Date.now() * 1000 + this.#clockOffsetUs; }

  /** What the URL says of run and position; both null for what is shown without. */
  get place() { return { run: this.#runId, at: this.live ? null : this.#at }; }

  /** An API path for the run and instant that are shown. */
  api(path, more = {}) { return path + search(this.place, more); }

  /** Load the state, then follow the stream; it is closed while the tab is hidden. */
  async start() {
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.#stream.close("paused"); else this.reload(); });
    addEventListener("popstate", () => this.#returned());
    addEventListener("pagehide", () => this.#keepPlaying());
    this.playing = this.#wasPlaying();
    await this.reload();
  }

  /** Show another instant, within the run. `push`: a step that Back returns from. */
  seek(atUs, { push = false } = {}) {
    this.#at = Math.round(Math.min(Math.max(atUs, this.startUs), this.endUs));
    this.live = false;
    this.#named();
    this.#stream.close("still");
    this.#writeUrl(push);
    this.#tell({ place: true });
    return this.reload();
  }

  // A position belongs to a run: a link to it must find the same run when another one has become the default.
  #named() { this.#runId ??= this.run?.id ?? null; }

  /** Follow the run that is being written again. */
  goLive() {
    if (!this.writing) return Promise.resolve();
    this.#at = null; this.#runId = null;
    this.playing = false;
    this.#stream.close("connecting");
    this.#writeUrl(true);
    return this.reload();
  }

  /** Play on from the position, from the start when it stands at the end. A live run is played anyway. */
  play() {
    if (this.live || this.playing) return Promise.resolve();
    this.playing = true;
    if (this.now() >= this.endUs && !this.writing) return this.seek(this.startUs);
    this.#at ??= this.#endUs;
    this.#named();
    this.#tell({ place: true });
    this.#follow();
    return Promise.resolve();
  }

  /** Hold still; live, that is to stay behind at this instant. */
  pause() {
    if (this.live) return this.seek(this.#clock(), { push: true });
    this.playing = false;
    this.#stream.close("still");
    this.#writeUrl(false);
    this.#tell({ place: true });
    return Promise.resolve();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.#tell({ place: true });
    if (this.playing && !this.#busy) this.#follow();
  }

  /** Fetch the whole state: at the start, at a seek, after a gap. One request at a time; the last position asked for wins. */
  reload() {
    this.#again = true;
    this.#busy ??= this.#load().finally(() => { this.#busy = null; });
    return this.#busy;
  }

  async #load() {
    while (this.#again) {
      this.#again = false;
      // Frames that arrive meanwhile are applied to what the answer says, not lost under it.
      this.#held = [];
      try {
        const state = await getJson(this.api("/api/state"));
        this.failure = ""; this.refused = false;
        this.#applyState(state);
      } catch (error) {
        this.failure = error.message;
        // What the server refuses it refuses again; one that is away may come back.
        this.refused = error.status >= 400 && error.status < 500;
        if (!this.refused) this.#retryTimer ||= setTimeout(() => { this.#retryTimer = 0; this.reload(); }, RETRY_MS);
        this.#tell({ status: true });
      }
      const held = this.#held;
      this.#held = null;
      for (const frame of held) if (frame.ord > this.ord) this.#applyFrame(frame);
    }
    if (!document.hidden) this.#follow();
  }

  // Open the stream that belongs to how we are; one that is open stays.
  #follow() {
    if (this.live) { if (this.status !== "open") this.#stream.open(() => `/api/stream?after=${this.ord}`); } else if (this.playing) {
      this.#stream.open(() => `/api/stream${search({ run: this.run?.id ?? this.#runId, at: this.now() }, { speed: this.speed })}`);
    } else if (this.status !== "still") this.#stream.close("still");
  }

  #applyState(state) {
    const { playhead } = state;
    this.run = state.run; this.ord = state.ord;
    this.startUs = playhead.start_us; this.#endUs = playhead.end_us;
    this.live = playhead.live && !this.#again;
    this.#clockOffsetUs = playhead.end_us - Date.now() * 1000;
    // A position outside the run was brought into it; a newer one may have been asked for meanwhile.
    if (!this.live && !this.#again && this.#at !== null) this.#at = playhead.at_us;
    this.sessions = new Map(state.sessions.map((session) => [session.id, session]));
    this.hosts = new Map(state.hosts.map((host) => [host.host, host]));
    this.engines = new Map(state.engines.map((engine) => [engine.engine, engine]));
    this.lost = state.lost; this.sources = state.sources; this.events = state.events; this.unknown = state.unknown_types || {};
    this.spark = new Map(Object.entries(state.spark));
    this.hostPoints = [];
    const newest = Math.max(0, ...this.sources.map((source) => source.last_t_us || 0));
    this.lastRecordMs = newest ? Date.now() - Math.max(0, state.now_us - newest) / 1000 : 0;
    this.#tell({ all: true });
  }

  #applyFrame(frame) {
    // Frames also tell that nothing came (sources, losses): only a higher ord is news.
    if (frame.ord > this.ord) { this.ord = frame.ord; this.lastRecordMs = Date.now(); }
    if (frame.now_us) {
      if (this.live) this.#clockOffsetUs = frame.now_us - Date.now() * 1000; else { this.#at = frame.now_us; this.#urlSoon(); }
    }
    for (const session of frame.sessions || []) this.sessions.set(session.id, session);
    for (const engine of frame.engines || []) this.engines.set(engine.engine, engine);
    for (const host of frame.hosts || []) {
      this.hosts.set(host.host, host);
      if (host.mem_available_bytes !== null && host.mem_total_bytes) this.hostPoints.push([host.last_t_us, host.mem_total_bytes - host.mem_available_bytes, host.host]);
    }
    const oldest = this.now() - WINDOW_US;
    trim(this.hostPoints, oldest);
    for (const [id, points] of Object.entries(frame.spark || {})) {
      const kept = this.spark.get(id);
      if (!kept) { this.spark.set(id, points); continue; }
      kept.push(...points);
      trim(kept, oldest);
    }
    if (frame.events?.length) {
      const newest = [...frame.events].sort((a, b) => b.ord - a.ord);
      this.events = [...newest, ...this.events].slice(0, EVENTS_KEPT);
    }
    if (frame.lost) this.lost = frame.lost;
    if (frame.sources) this.sources = frame.sources;
    this.#tell({ frame });
    // At a high speed more may have changed than a frame holds.
    if (frame.gap) this.reload();
  }

  // The player has reached the end of the run; of one that is being written, that is now.
  #ended() {
    if (this.writing) { this.goLive(); return; }
    this.playing = false;
    this.#at = this.#endUs;
    this.#stream.close("still");
    this.#writeUrl(false);
    this.#tell({ place: true });
  }

  #returned() {
    const { run, at } = parse(location.search);
    if (run === this.#runId && at === this.place.at) return;
    this.#runId = run; this.#at = at;
    this.playing = false; this.live = false;
    this.#stream.close("still");
    this.reload();
  }

  // --- the URL: kept current, at most once a second while playing

  #urlSoon() { this.#urlTimer ||= setTimeout(() => this.#writeUrl(false), URL_MS); }

  #writeUrl(push) {
    clearTimeout(this.#urlTimer);
    this.#urlTimer = 0;
    const target = location.pathname + search(this.place) + location.hash;
    if (target === location.pathname + location.search + location.hash) return;
    // Steps in quick succession (a key held down) are one step back.
    const merged = performance.now() - this.#pushedMs < URL_MS;
    if (push) this.#pushedMs = performance.now();
    history[push && !merged ? "pushState" : "replaceState"](null, "", target);
  }

  // --- whoever plays and follows a link goes on playing on the next page

  #keepPlaying() {
    try { sessionStorage.setItem(PLAY_KEY, JSON.stringify({ playing: this.playing, speed: this.speed, run: this.#runId, ms: Date.now() })); } catch { /* storage may be denied: it stands still then */ }
  }

  #wasPlaying() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(PLAY_KEY) || "null");
      sessionStorage.removeItem(PLAY_KEY);
      if (!kept || !SPEEDS.includes(kept.speed)) return false;
      this.speed = kept.speed;
      return kept.playing && kept.run === this.#runId && this.#at !== null && Date.now() - kept.ms < RESUME_MS;
    } catch { return false; }
  }

  // What one listener cannot do must not keep the others from knowing; the error is still reported.
  #tell(change) { for (const listener of this.#listeners) { try { listener(change); } catch (error) { reportError(error); } } }

  /** The last 120 s of a session as [t_us, runtime, calls], oldest first, from one point before the window on. */
  sparkWindow(id, fromUs) {
    const points = this.spark.get(id) || [];
    let first = points.length;
    while (first > 0 && points[first - 1][0] >= fromUs) first--;
    return points.slice(Math.max(first - 1, 0));
  }
}

// Cut in steps: shifting an array of hundreds of points at each frame would cost more than drawing it. One point before the
// window stays, since a value holds until the next.
function trim(points, oldestUs) {
  if (points.length && points[0][0] < oldestUs - SLACK_US) points.splice(0, Math.max(0, points.findIndex((point) => point[0] >= oldestUs) - 1));
}

function runId(run) { return typeof run === "object" && run !== null ? run.id : run; }

export const store = new Store();
