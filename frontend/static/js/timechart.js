// A chart over time that stands alone: its own ticks, the playhead's line and veil, hatched gaps, and its numbers as a table.

import { Chart, greatest, margins, niceTicks, stacked } from "./charts.js";
import { clean, el, elapsed, setText, svg } from "./format.js";
import { figures } from "./table.js";

const TWIN_ROWS = 500;

export class TimeChart {
  #node; #chart; #over; #words; #button; #box; #data = null; #name;

  /** `button` shows the table instead. */
  constructor(node, name, button) {
    this.#node = node; this.#name = name; this.#button = button;
    this.#chart = new Chart(node, `${name}; the numbers are in the table`);
    this.#over = svg("svg", { class: "over" });
    this.#words = el("p", { class: "no-data muted", hidden: true });
    node.append(this.#over, this.#words);
    this.#box = node.nextElementSibling;
    button.addEventListener("click", () => {
      const on = this.#box.hidden;
      button.setAttribute("aria-pressed", String(on));
      setText(button, on ? "Chart" : "Table");
      this.#box.hidden = !on; node.hidden = on;
      this.draw(this.#data);
    });
  }

  /** data = {fromUs, toUs, originUs, nowUs, t (ms), layers: [{key, label, def, colour, values}], mode, show(value), gaps: [[from, to]], empty: words, least: the axis reaches at least so far}. */
  draw(data) {
    if (!data) return;
    this.#data = data;
    const { layers, t, fromUs, toUs } = data;
    const known = layers.some((layer) => layer.values.some((value) => Number.isFinite(value)));
    this.#words.hidden = known;
    setText(this.#words, data.empty || "nothing was told of this");
    const sums = data.mode === "stack" ? [stacked(layers).at(-1) ?? new Float64Array(0)] : layers.map((layer) => layer.values);
    const max = Math.max(data.least ?? 1, ...sums.map(greatest)) * 1.08;
    const { ticks } = niceTicks(max, 3);
    if (!this.#node.hidden) {
      this.#chart.draw({ fromUs, toUs, t, endUs: Math.min(toUs, data.endUs ?? toUs), layers, mode: data.mode, yMax: max, yTicks: known ? ticks.map((value) => ({ value, text: data.show(value) })) : [] });
      this.#marks(data);
    } else if (!this.#box.matches(":hover, :focus-within")) this.#box.replaceChildren(this.#table(data));
  }

  #marks({ fromUs, toUs, originUs, nowUs, gaps }) {
    const { left, right, pad, rem } = margins(), width = this.#node.clientWidth - left - right, height = this.#node.clientHeight;
    if (width <= 0) return;
    const x = (us) => left + (us - fromUs) / (toUs - fromUs) * width;
    const nodes = [svg("defs", {}, svg("pattern", { id: `hatch-${this.#node.id}`, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 0, x2: 0, y1: 0, y2: 7, class: "hatchline" })))];
    for (const [from, to] of gaps || []) {
      const start = Math.max(left, x(from)), end = Math.min(left + width, x(to));
      if (end > start) nodes.push(svg("rect", { class: "gap", x: start, y: pad, width: end - start, height: Math.max(0, height - 2 * pad), fill: `url(#hatch-${this.#node.id})` }));
    }
    const { step } = niceTicks((toUs - fromUs) / 1e6, Math.max(2, Math.floor(width / (8 * rem))));
    for (let s = Math.ceil((fromUs - originUs) / 1e6 / step) * step; s * 1e6 + originUs <= toUs; s += step) {
      const at = x(s * 1e6 + originUs);
      nodes.push(svg("line", { x1: at, x2: at, y1: height - pad, y2: height - pad + 4, class: "edge" }));
      if (at < left + width - 2.6 * rem) nodes.push(svg("text", { x: at + 3, y: 0.95 * rem, "data-def": "axis.time_us" }, elapsed(s * 1e6, step * 1e6)));
    }
    if (nowUs !== null && nowUs < toUs) {
      const at = Math.max(left, x(nowUs));
      nodes.push(svg("rect", { class: "veil", x: at, y: pad, width: Math.max(0, left + width - at), height: Math.max(0, height - 2 * pad) }), svg("line", { class: "now", x1: at, x2: at, y1: pad, y2: height - pad }));
    }
    this.#over.replaceChildren(...nodes);
  }

  #table({ t, layers, originUs, nowUs, show }) {
    const head = [{ label: "time", def: "axis.time_us" }, ...layers.map((layer) => ({ label: clean(layer.label, 40), def: layer.def }))];
    const rows = [];
    for (let i = t.length - 1; i >= 0 && rows.length < TWIN_ROWS; i--) if (nowUs === null || t[i] * 1000 <= nowUs) rows.push([[elapsed(t[i] * 1000 - originUs, 1e5), t[i]], ...layers.map(({ values }) => [Number.isFinite(values[i]) ? show(values[i]) : "–", Number.isFinite(values[i]) ? values[i] : null])]);
    return figures(this.#name, head, rows);
  }
}
