// The session's measured series: the server's answer for the view, and what the stream added since.

import { decodeF8, getJson, path } from "./api.js";
import { indexAt } from "./charts.js";
import { CATEGORIES, category } from "./format.js";
import { store } from "./store.js";

const DEBOUNCE_MS = 150;
const TAIL_MAX = 600;
const REFRESH_MS = 15000;

/** One set of columns over one time column. */
class Columns {
  constructor(t, columns) { this.t = t; this.columns = columns; }

  /**
   * The columns with newer points in the place of whatever lies behind the first of them: points = [[t_ms, {key: value}]].
   * Missing keys count 0 when `zero`. (An answer reaches to the end of the view, which may lie after what it was made from.)
   */
  with(later, zero) {
    if (!later.length) return this;
    let n = this.t.length;
    while (n > 0 && this.t[n - 1] >= later[0][0]) n--;
    const t = new Float64Array(n + later.length);
    t.set(this.t.subarray(0, n));
    later.forEach((point, i) => { t[n + i] = point[0]; });
    const keys = new Set([...Object.keys(this.columns), ...later.flatMap((point) => Object.keys(point[1]))]);
    const columns = {};
    for (const key of keys) {
      const out = new Float64Array(t.length).fill(zero ? 0 : NaN);
      if (this.columns[key]) out.set(this.columns[key].subarray(0, n));
      later.forEach((point, i) => { const value = point[1][key]; if (value !== undefined) out[n + i] = value; });
      columns[key] = out;
    }
    return new Columns(t, columns);
  }

  at(us) {
    const i = indexAt(this.t, us / 1000);
    return i < 0 ? null : Object.fromEntries(Object.entries(this.columns).map(([key, values]) => [key, values[i]]));
  }
}

const EMPTY = new Columns(new Float64Array(0), {});

export class Series {
  #session; #changed; #failed; #timer = 0; #abort = null; #loadedMs = 0; #asked = ""; #fresh = false; #tail = { mem: [], wait: [] }; #base = { memory: EMPTY, wait: EMPTY, pressure: EMPTY };
  gaps = []; resolutionUs = null; requests = 0; loaded = null;

  constructor(session, changed, failed) { this.#session = session; this.#changed = changed; this.#failed = failed; }

  /** Ask for the view after a pause of 150 ms; a request that is under way is given up. `fresh`: at once, even for the same view. */
  request(view, px, fresh = false) {
    clearTimeout(this.#timer);
    this.#fresh ||= fresh;
    this.#timer = setTimeout(() => this.#load(view(), px()), this.#fresh ? 0 : DEBOUNCE_MS);
  }

  async #load([from, to], px) {
    const asked = [Math.floor(from), Math.ceil(to), Math.round(px)].join();
    if (asked === this.#asked && !this.#fresh && !this.stale) return;
    this.#asked = asked;
    this.#fresh = false;
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.requests++;
    // What the stream has brought by now is stored, so it is in the answer; what it brings from here on may not be.
    const known = { mem: this.#tail.mem.length, wait: this.#tail.wait.length };
    try {
      const query = { from_us: Math.floor(from), to_us: Math.ceil(to), px: Math.round(Math.max(100, Math.min(px, 2000))) };
      const body = await getJson(store.api(`/api${path("sessions", this.#session)}/series`, query), { signal: abort.signal });
      const calls = {};
      for (const [name, column] of Object.entries(body.memory.calls)) {
        const key = category(name), values = decodeF8(column);
        if (calls[key]) for (let i = 0; i < values.length; i++) calls[key][i] += values[i]; else calls[key] = values;
      }
      this.#base = {
        memory: new Columns(decodeF8(body.memory.t_ms), { runtime: decodeF8(body.memory.runtime_bytes), ...calls }),
        wait: new Columns(decodeF8(body.wait.t_ms), { percent: decodeF8(body.wait.percent) }),
        pressure: new Columns(decodeF8(body.pressure.t_ms), { memory: decodeF8(body.pressure.memory_percent), cpu: decodeF8(body.pressure.cpu_percent), io: decodeF8(body.pressure.io_percent) }),
      };
      this.gaps = body.gaps; this.resolutionUs = body.resolution_us; this.loaded = [body.from_us, body.to_us];
      this.#loadedMs = performance.now();
      for (const key of ["mem", "wait"]) this.#tail[key] = this.#tail[key].slice(known[key]);
      this.#changed();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#asked = "";
      this.#failed(error);
    }
  }

  /** What a frame brought for this session. */
  add(frame) {
    for (const [t, runtime, calls] of frame.mem || []) {
      const values = { runtime };
      for (const [name, value] of Object.entries(calls)) values[category(name)] = (values[category(name)] || 0) + value;
      this.#tail.mem.push([t / 1000, values]);
    }
    for (const [t, percent] of frame.wait || []) this.#tail.wait.push([t / 1000, { percent }]);
  }

  /** Whether the tail has grown so long (or the pressure so old) that the server should be asked again. */
  get stale() { return this.#tail.mem.length > TAIL_MAX || performance.now() - this.#loadedMs > REFRESH_MS; }

  get memory() { return this.#base.memory.with(this.#tail.mem, true); }
  get wait() { return this.#base.wait.with(this.#tail.wait, false); }
  get pressure() { return this.#base.pressure; }
}

/** Memory layers bottom first: the runtime, then the categories that occur, in one fixed order. */
export function memoryLayers(memory) {
  const keys = ["runtime", ...CATEGORIES].filter((key) => memory.columns[key]?.some((value) => value > 0) || key === "runtime");
  return keys.map((key) => ({ key, colour: key === "runtime" ? "--runtime" : `--c-${key}`, values: memory.columns[key] || new Float64Array(memory.t.length) }));
}
