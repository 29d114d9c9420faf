// The charts of an engine over time: its pool, where prompts' tokens came from, its batch, what was computed again, waits.

import { getJson } from "./api.js";
import { clean, el, integer } from "./format.js";
import { column } from "./kvdata.js";
import { store } from "./store.js";
import { TimeChart } from "./timechart.js";

const byId = (id) => document.getElementById(id);
const button = (name) => document.querySelector(`[data-chart="${name}"]`);

const POOL = [["active", "active", "--kv-active", "engine.blocks_active"], ["pinned", "pinned", "--kv-pinned", "engine.blocks_pinned"], ["used", "in use", "--kv-active", "engine.blocks_used"], ["cached", "cached", "--kv-cached", "engine.blocks_cached"], ["free", "free", "--kv-free", "engine.blocks_free"]];
const HITS = [["device", "found on the device", "--kv-cached", "engine.device_tokens"], ["host", "fetched from the host", "--kv-host", "engine.host_tokens"], ["missed", "computed", "--runtime", "engine.missed_tokens"]];
const REASONS = ["--kv-active", "--wait", "--c-search", "--c-edit", "--c-build", "--c-network", "--c-other"];

export class PoolCharts {
  #engine; #charts; #data = null; #asked = 0; #busy = false; #again = false;

  /** `engine()` gives the EngineView that is shown, null for none. */
  constructor(engine) {
    this.#engine = engine;
    const names = { pool: "Blocks of the pool by state", hits: "Prompt tokens a second by where they came from", batch: "Requests running and waiting", again: "Tokens computed again a second, and requests thrown out of the batch", waits: "Waiting requests by reason" };
    this.#charts = Object.fromEntries(Object.entries(names).map(([name, words]) => [name, new TimeChart(byId(name), words, button(name))]));
  }

  /** Ask for the view; one request at a time. */
  async load(now = false) {
    if (this.#busy) { this.#again ||= now; return; }
    const shown = this.#engine();
    if (!shown) return;
    this.#busy = true;
    try {
      const [from, to] = this.#span();
      const body = await getJson(store.api("/api/kv/series", { engine: shown.engine, from_us: Math.floor(from), to_us: Math.ceil(to), px: 800 }));
      this.#data = { ...body, engine: shown.engine, t: Float64Array.from(body.t_us || [], (us) => us / 1000) };
      this.draw();
    } catch (error) { console.info(`engine series: ${error.message}`); } finally { this.#busy = false; }
    if (this.#again) { this.#again = false; this.load(); }
  }

  // Live, the last minutes up to now; of the past all of it, or a stretch around the position.
  #span() {
    const length = Number(byId("range").value) * 1e6, end = store.endUs + 1;
    if (!length || end - store.startUs <= length) return [store.startUs, Math.max(end, store.startUs + 1e6)];
    const to = store.live ? end : Math.min(end, store.now() + length / 2);
    return [Math.max(store.startUs, to - length), to];
  }

  draw() {
    const data = this.#data;
    if (!data || data.engine !== this.#engine()?.engine || !data.blocks) return;
    const shown = this.#engine();
    const base = { fromUs: data.from_us, toUs: data.to_us, originUs: store.startUs, nowUs: store.live ? null : store.now(), t: data.t, gaps: data.gaps, endUs: shown.ended_us ?? undefined };
    const layers = (list, source) => list.map(([key, label, colour, def]) => ({ key, label, colour, def, values: column(source[key]) }));
    // The gauge alone does not tell what is held for sessions that wait: it is drawn where nothing better is known.
    const split = data.blocks.active?.some((value) => value !== null);
    const pool = layers(POOL, data.blocks).filter(({ key }) => (key === "used" ? !split : split || !["active", "pinned"].includes(key))).filter(({ values }) => !data.t.length || values.some(Number.isFinite));
    this.#draw("pool", { ...base, layers: pool, mode: "stack", show: integer, least: shown.pool_blocks ?? 4, empty: "the engine tells nothing of its blocks" });
    this.#draw("hits", { ...base, layers: layers(HITS, data.hit_tokens_per_s), mode: "stack", show: (value) => `${integer(value)}/s`, empty: "the engine tells nothing of what it found" });
    this.#draw("batch", { ...base, layers: [{ key: "running", label: "running", colour: "--kv-active", def: "engine.running", values: column(data.running) }, { key: "waiting", label: "waiting", colour: "--wait", def: "engine.waiting", values: column(data.waiting) }], mode: "lines", show: integer, least: 4 });
    this.#draw("again", { ...base, layers: [{ key: "again", label: "tokens computed again a second", colour: "--wait", def: "engine.recomputed_tokens", values: column(data.recomputed_tokens_per_s) }, { key: "out", label: "thrown out", colour: "--mark-trouble", def: "engine.preemptions", values: column(data.preemptions) }], mode: "lines", show: integer, empty: "only the plugin knows what a session had before" });
    const reasons = Object.keys(data.waiting_by_reason);
    this.#draw("waits", { ...base, layers: reasons.map((key, i) => ({ key, label: clean(key, 30), colour: REASONS[i % REASONS.length], def: "engine.waiting_by_reason", values: column(data.waiting_by_reason[key]) })), mode: "stack", show: integer, least: 4, empty: "no request has waited" });
  }

  #draw(name, data) {
    this.#charts[name].draw(data);
    byId(`${name}-legend`).replaceChildren(...data.layers.map(({ label, colour, def }) => el("span", { def }, el("span", { class: "swatch", style: `background: var(${colour})` }), label)));
  }
}
