// Host memory of the last 120 s with the sessions stacked. A Plotly chart, at most four times a second.

import { Chart, greatest, margins, niceTicks, stacked } from "./charts.js";
import { bytes, clean, el, elapsed, setText, svg, timeOfDay } from "./format.js";
import { store, WINDOW_US } from "./store.js";
import { figures } from "./table.js";

const STEPS = 240;
const BANDS = 10;
const HOLD_US = 3e6; // samples come at least once a second

export class HostChart {
  #node; #chart; #over; #legend; #twin; #table; #history = []; #shown = null; #drawnMs = 0; #costMs = 20;

  constructor(node, legend, twin) {
    this.#node = node; this.#legend = legend; this.#twin = twin;
    this.#chart = new Chart(node, "Host memory of the last 120 seconds, sessions stacked");
    this.#over = svg("svg", { class: "over" });
    node.append(this.#over);
    this.#table = el("div", { class: "twin-table", hidden: true });
    node.after(this.#table);
    twin.addEventListener("click", () => this.#toggle());
  }

  /** Used host memory as the server knows it: [[t_us, bytes]]; live, what was before the stream began. */
  setHistory(points) { this.#history = points; }

  #toggle() {
    const on = this.#twin.getAttribute("aria-pressed") !== "true";
    this.#twin.setAttribute("aria-pressed", String(on));
    setText(this.#twin, on ? "Chart" : "Table");
    this.#node.hidden = on;
    this.#table.hidden = !on;
    this.draw();
  }

  // A fixed grid of steps ending now; each step takes the last value before it (step-hold).
  #grid(to) {
    const step = WINDOW_US / STEPS;
    // The grid stands on whole steps, so that values do not dance from frame to frame.
    const end = Math.ceil(to / step) * step;
    const t = new Float64Array(STEPS + 1);
    for (let i = 0; i <= STEPS; i++) t[i] = (end - WINDOW_US + i * step) / 1000;
    return t;
  }

  // A value holds until the next one, but not for ever: what nobody reports any more is unknown, and drawn as a gap.
  #hold(t, points, valueOf) {
    const out = new Float64Array(t.length).fill(NaN);
    let at = -1;
    for (let i = 0; i < t.length; i++) {
      while (at + 1 < points.length && points[at + 1][0] <= t[i] * 1000) at++;
      if (at >= 0 && t[i] * 1000 - points[at][0] <= HOLD_US) out[i] = valueOf(points[at]);
    }
    return out;
  }

  #used(t) {
    // Of the past the server has told all, and what is beyond the position is not drawn: the grid ends there.
    if (!store.live) return this.#hold(t, this.#history, (point) => point[1]);
    const known = this.#history.length ? this.#history[this.#history.length - 1][0] : 0;
    const total = new Float64Array(t.length);
    for (const host of new Set(store.hostPoints.map((point) => point[2]))) {
      const points = store.hostPoints.filter((point) => point[2] === host && (point[0] > known || store.hosts.size > 1));
      const values = this.#hold(t, store.hosts.size > 1 ? points : [...this.#history, ...points], (point) => point[1]);
      for (let i = 0; i < t.length; i++) total[i] += values[i];
    }
    return store.hostPoints.length ? total : this.#hold(t, this.#history, (point) => point[1]);
  }

  /** Draw what the store holds; skips a turn when drawing took long, so that it never takes a fifth of the time. */
  draw() {
    const started = performance.now();
    if (started - this.#drawnMs < Math.max(240, this.#costMs * 7)) return;
    this.#drawnMs = started;
    const to = store.now(), t = this.#grid(to);
    const all = [];
    for (const session of store.sessions.values()) {
      const points = store.sparkWindow(session.id, to - WINDOW_US);
      if (!points.length) continue;
      // An ended session holds nothing after its end.
      const end = session.ended_us;
      const values = this.#hold(t, points, (point) => point[1] + point[2]);
      let sum = 0;
      for (let i = 0; i < t.length; i++) { if (end && t[i] * 1000 > end) values[i] = 0; sum += values[i] || 0; }
      if (sum > 0) all.push({ key: session.id, label: session.title || session.id, values, sum, started: session.started_us });
    }
    const kept = [...all].sort((a, b) => b.sum - a.sum).slice(0, BANDS);
    const layers = kept.sort((a, b) => a.started - b.started || (a.key < b.key ? -1 : 1));
    const others = all.filter((one) => !kept.includes(one));
    if (others.length) layers.push({ key: "others", label: `${others.length} other sessions`, values: sums(t, others), sum: 1 });
    const used = this.#used(t);
    const together = sums(t, layers);
    const rest = used.map((value, i) => Math.max(0, value - together[i]));
    layers.forEach((layer, i) => { layer.colour = i % 2 ? "--band-b" : "--band-a"; });
    layers.push({ key: "host", label: "rest of the host", values: rest, colour: "--rest" });
    // Sessions that have ended hold nothing, which says nothing of a host that nobody measures.
    for (let i = 0; i < t.length; i++) if (Number.isNaN(used[i]) && !(together[i] > 0)) for (const layer of layers) layer.values[i] = NaN;
    const max = Math.max(1e6, greatest(stacked(layers).at(-1))) * 1.08;
    const { ticks } = niceTicks(max / 1e6);
    const payload = {
      fromUs: to - WINDOW_US, toUs: to, endUs: to, t, layers, mode: "stack", yMax: max,
      yTicks: ticks.map((value) => ({ value: value * 1e6, text: value >= 1000 ? `${(value / 1000).toLocaleString("en-US")} GB` : `${value} MB` })),
    };
    this.#shown = payload;
    if (this.#table.hidden) { this.#chart.draw(payload); this.#labels(payload); } else this.#fillTable(payload);
    this.#drawLegend();
    this.#costMs = 0.7 * this.#costMs + 0.3 * (performance.now() - started);
  }

  #drawLegend() {
    if (this.#legend.childElementCount) return;
    this.#legend.append(el("span", {}, el("span", { class: "swatch band" }), "a band a session"), el("span", {}, el("span", { class: "swatch rest" }), "rest of the host"));
  }

  #labels(payload) {
    const { left, right, pad, rem } = margins();
    const width = this.#node.clientWidth, height = this.#node.clientHeight;
    const y = (value) => height - pad - value / payload.yMax * (height - 2 * pad);
    const nodes = [];
    let below = 0;
    for (const layer of payload.layers) {
      const value = layer.values.at(-1) || 0;
      if (value / payload.yMax * (height - 2 * pad) > rem * 1.1) {
        nodes.push(svg("text", { x: width - right - 6, y: y(below + value / 2) + rem * 0.3, "text-anchor": "end", "data-text": true }, `${clean(layer.label, 40)} ${bytes(value)}`));
      }
      below += value;
    }
    for (let s = 0; s <= 120; s += 30) {
      const x = left + (width - left - right) * (1 - s / 120);
      nodes.push(svg("line", { x1: x, x2: x, y1: height - pad, y2: height - pad + 4, class: "edge" }));
      if (s) nodes.push(svg("text", { x: x + 3, y: 0.95 * rem, "data-def": "axis.time_us" }, elapsed(-s * 1e6)));
    }
    this.#over.replaceChildren(...nodes);
  }

  #fillTable(payload) {
    const head = [{ label: "time", def: "axis.time_us" }, ...payload.layers.map((layer) => ({ label: clean(layer.label, 40), def: layer.key === "host" ? "host.mem_used_bytes" : "session.used_bytes" }))];
    const rows = [];
    for (let i = payload.t.length - 1; i >= 0; i -= 4) rows.push([[timeOfDay(payload.t[i] * 1000), payload.t[i]], ...payload.layers.map((layer) => [bytes(layer.values[i]), layer.values[i]])]);
    const table = figures("Host memory", head, rows);
    table.tHead.setAttribute("data-text", "");
    this.#table.replaceChildren(table);
  }
}

function sums(t, layers) {
  const out = new Float64Array(t.length);
  for (const layer of layers) for (let i = 0; i < t.length; i++) out[i] += layer.values[i] || 0;
  return out;
}
