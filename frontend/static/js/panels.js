// The session page's chart panels: payloads from the series, marks over them, and their table twins.

import { Chart, colour, margins, niceTicks, stacked } from "./charts.js";
import { bytes, clean, commandLabel, duration, el, elapsed, exitWords, integer, setText, svg } from "./format.js";
import { sampled } from "./measured.js";
import { memoryLayers } from "./series.js";
import { figures } from "./table.js";

const byId = (id) => document.getElementById(id);
const TWIN_ROWS = 2000;

export const PRESSURE = [["memory", "--p-memory", "series.pressure.memory_percent"], ["cpu", "--p-cpu", "series.pressure.cpu_percent"], ["io", "--p-io", "series.pressure.io_percent"]];

export class Panels {
  #timeline; #charts = {}; #overs = {}; #words = {}; #twins = {}; #model; #more;

  /** `model()` gives {session, calls, events, series, startUs, endUs, nowUs}; session is null before it began. `more` are makers of further table twins by name: (model, view) -> table. */
  constructor(timeline, model, more = {}) {
    this.#timeline = timeline; this.#model = model; this.#more = more;
    for (const [name, description] of [["memory", "Memory of the session in two layers"], ["wait", "Run-queue wait in percent of a core"], ["pressure", "Pressure in percent of the time"]]) {
      const node = byId(name);
      this.#charts[name] = new Chart(node, `${description}; the numbers are in the table`);
      this.#overs[name] = svg("svg", { class: "over" });
      this.#words[name] = el("p", { class: "no-data muted", hidden: true });
      node.append(this.#overs[name], this.#words[name], el("div", { class: "drag" }));
    }
    for (const button of document.querySelectorAll(".twin")) {
      const box = button.closest(".panel").querySelector(".twin-table");
      this.#twins[button.dataset.twin] = { button, box };
      button.addEventListener("click", () => {
        const on = box.hidden;
        button.setAttribute("aria-pressed", String(on));
        setText(button, on ? "Chart" : "Table");
        box.hidden = !on;
        byId(button.dataset.twin).hidden = on;
        this.draw();
      });
    }
  }

  draw() {
    const model = this.#model(), view = this.#timeline.view;
    const { series, session } = model;
    this.#memory(model, view);
    const wait = series.wait;
    this.#percent("wait", model, view, wait.t, [{ key: "wait", colour: "--wait", values: wait.columns.percent || new Float64Array(0) }], "area");
    const pressure = series.pressure;
    this.#percent("pressure", model, view, pressure.t, PRESSURE.map(([key, variable]) => ({ key, colour: variable, values: pressure.columns[key] || new Float64Array(pressure.t.length) })), "lines");
    if (session) this.#charts.memory.describe(`Memory of the session: peak ${bytes(session.peak_bytes)}, now ${bytes(session.runtime_bytes)} runtime and ${bytes(session.calls_bytes)} calls; the numbers are in the table`);
    this.#fillTwins(model, view);
  }

  #inView(t, values, [from, to]) {
    let max = 0;
    for (let i = 0; i < t.length; i++) {
      // A value holds until the next time: the one before the view counts too.
      if (t[i] * 1000 > to || (i + 1 < t.length && t[i + 1] * 1000 < from)) continue;
      if (values[i] > max) max = values[i];
    }
    return max;
  }

  #memory(model, view) {
    const memory = model.series.memory;
    const layers = memoryLayers(memory);
    const empty = this.#empty("memory", model, layers);
    const total = stacked(layers).at(-1);
    const budget = model.session?.budget_bytes;
    let max = Math.max(1e6, this.#inView(memory.t, total, view));
    if (budget && budget < max * 3) max = Math.max(max, budget);
    max *= 1.12;
    const { ticks } = niceTicks(max / 1e6);
    const payload = { fromUs: view[0], toUs: view[1], t: memory.t, endUs: Math.min(view[1], model.endUs), layers, mode: "stack", yMax: max, yTicks: empty ? [] : ticks.map((value) => ({ value: value * 1e6, text: value.toLocaleString("en-US") })) };
    if (!byId("memory").hidden) this.#charts.memory.draw(payload);
    this.#marks(model, view, max);
  }

  // An axis from 0 to 1 over nothing looks like a measured zero: in its place stands why there is nothing.
  #empty(name, { series, imported, session }, layers) {
    // The server's memory begins at zero; of a session that was never sampled that is no measurement.
    const some = name === "memory" && session && !sampled(session) ? (value) => value > 0 : Number.isFinite;
    const empty = Boolean(series.loaded) && !layers.some((layer) => layer.values.some((value) => some(value)));
    this.#words[name].hidden = !empty;
    setText(this.#words[name], imported && !this.#timeline.zoomed ? "not in this trace" : "no samples");
    return empty;
  }

  #percent(name, model, view, t, layers, mode) {
    const empty = this.#empty(name, model, layers);
    const top = Math.max(...layers.map((layer) => this.#inView(t, layer.values, view)), 0);
    const max = niceTicks(Math.max(top, 1), 2).ticks.at(-1) < top ? top * 1.1 : Math.max(top * 1.1, 1);
    const { ticks } = niceTicks(max, 2);
    if (!byId(name).hidden) {
      this.#charts[name].draw({ fromUs: view[0], toUs: view[1], t, endUs: Math.min(view[1], model.endUs), layers, mode, yMax: max, yTicks: empty ? [] : ticks.map((value) => ({ value, text: String(Math.round(value * 100) / 100) })) });
    }
    this.#overs[name].replaceChildren(...this.#gaps(model, view, byId(name).clientHeight));
  }

  #gaps(model, view, height) {
    const out = [], { left, pad } = margins(), right = left + this.#timeline.width;
    for (const [from, to] of model.series.gaps) {
      if (to < view[0] || from > view[1]) continue;
      const x = Math.max(left, this.#timeline.x(from, view)), end = Math.min(right, this.#timeline.x(to, view));
      out.push(svg("rect", { class: "gap", x, y: pad, width: Math.max(2, end - x), height: Math.max(0, height - 2 * pad), fill: "url(#hatch)" }));
    }
    return out.length ? [hatch(), ...out] : [];
  }

  #marks(model, view, yMax) {
    const node = byId("memory"), height = node.clientHeight;
    const { left, pad, rem } = margins(), right = left + this.#timeline.width;
    const y = (value) => height - pad - Math.min(1, value / yMax) * (height - 2 * pad);
    const nodes = this.#gaps(model, view, height);
    const gapText = model.series.gaps.find(([from, to]) => to > view[0] && from < view[1] && this.#timeline.x(to, view) - this.#timeline.x(from, view) > 6 * rem);
    if (gapText) nodes.push(svg("text", { x: this.#timeline.x((Math.max(gapText[0], view[0]) + Math.min(gapText[1], view[1])) / 2, view), y: height / 2, "text-anchor": "middle" }, "not measured"));
    const budget = model.session?.budget_bytes;
    if (budget && budget <= yMax) {
      nodes.push(svg("line", { class: "limit", x1: left, x2: right, y1: y(budget), y2: y(budget) }),
        svg("text", { x: right - 4, y: y(budget) - 4, "text-anchor": "end", "data-def": "session.budget_bytes" }, `session budget ${bytes(budget)}`));
    }
    const marks = model.events.filter((event) => event.type === "mem.burst" || (event.type === "mem.event" && (event.body.oom_kill || event.body.oom)));
    const at = marks.map((event) => this.#timeline.x(event.t_us, view));
    const size = 0.36 * rem, top = pad;
    for (const [i, event] of marks.entries()) {
      const oom = event.type === "mem.event";
      if (event.t_us < view[0] || event.t_us > view[1]) continue;
      const x = at[i];
      if (oom) {
        nodes.push(svg("path", { class: "oom", d: `M${x - size} ${top}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}` }));
        if (!at.some((other) => other > x && other < x + 3 * rem)) nodes.push(svg("text", { x: x + 2 * size, y: top + 1.9 * size }, "OOM"));
        continue;
      }
      nodes.push(svg("path", { class: "mark", d: `M${x - size} ${top}h${2 * size}l${-size} ${1.6 * size}z` }, svg("title", {}, `burst +${bytes(event.body.grown_bytes)}, now ${bytes(event.body.total_bytes)}`)));
      // A label only where the next mark leaves room for it.
      if (x < right - 7 * rem && !at.some((other) => other > x && other < x + 7 * rem)) {
        nodes.push(svg("text", { x: x + 1.8 * size, y: top + 1.7 * size, "data-def": "burst.total_bytes" }, bytes(event.body.total_bytes)));
      }
    }
    this.#overs.memory.replaceChildren(...nodes);
  }

  // --- table twins: the numbers of what is drawn

  #fillTwins(model, whole) {
    // The charts show the whole session, the tables what there was up to the instant that is shown.
    const view = [whole[0], Math.min(whole[1], model.nowUs)];
    const time = (ms) => [elapsed(ms * 1000 - model.startUs, 1e3), ms];
    const inView = (t) => { const out = []; for (let i = 0; i < t.length && out.length < TWIN_ROWS; i++) if (t[i] * 1000 <= view[1] && (i + 1 >= t.length || t[i + 1] * 1000 > view[0])) out.push(i); return out; };
    const fill = (name, make) => { const { box } = this.#twins[name]; if (!box.hidden && !box.matches(":hover, :focus-within")) box.replaceChildren(make()); else if (!box.hidden && !box.childElementCount) box.replaceChildren(make()); };
    fill("lanes", () => callsTable(model));
    for (const [name, make] of Object.entries(this.#more)) fill(name, () => make(model, view));
    fill("memory", () => {
      const { t } = model.series.memory, layers = memoryLayers(model.series.memory);
      return figures("Memory in MB", [{ label: "time", def: "axis.time_us" }, ...layers.map(({ key }) => ({ label: `${key}, MB`, def: key === "runtime" ? "series.memory.runtime_bytes" : "series.memory.calls" })), { label: "together, MB", def: "session.used_bytes" }],
        inView(t).map((i) => { const values = layers.map((layer) => layer.values[i]); const sum = values.reduce((a, b) => a + (b > 0 ? b : 0), 0); return [time(t[i]), ...values.map(megabytes), megabytes(sum)]; }));
    });
    fill("wait", () => {
      const { t, columns } = model.series.wait;
      return figures("Run-queue wait", [{ label: "time", def: "axis.time_us" }, { label: "wait, % of a core", def: "series.wait.percent" }], inView(t).map((i) => [time(t[i]), share(columns.percent?.[i])]));
    });
    fill("pressure", () => {
      const { t, columns } = model.series.pressure;
      return figures("Pressure", [{ label: "time", def: "axis.time_us" }, ...PRESSURE.map(([key, , def]) => ({ label: `${key}, %`, def }))], inView(t).map((i) => [time(t[i]), ...PRESSURE.map(([key]) => share(columns[key]?.[i]))]));
    });
  }
}

const megabytes = (value) => [Number.isFinite(value) ? (value / 1e6).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) : "–", value];
const share = (value) => [Number.isFinite(value) ? value.toFixed(1) : "–", value];

function callsTable(model) {
  const head = [{ label: "call", def: "call.ordinal" }, { label: "started", def: "call.started_us" }, { label: "took", def: "call.duration_us" }, { label: "category", text: true }, { label: "command", text: true },
    { label: "peak", def: "call.peak_bytes" }, { label: "CPU", def: "call.cpu_us" }, { label: "waiting", def: "call.wait_us" }, { label: "exit", def: "call.exit_code" }];
  return figures("Tool calls", head, model.calls.map((call) => [
    [integer(call.ordinal), call.ordinal], [elapsed(call.started_us - model.startUs, 1e5), call.started_us], [duration(call.duration_us), call.duration_us], [call.category, null], [call.agent_tool ? `${clean(call.agent_tool, 40)}: ${commandLabel(call)}` : commandLabel(call), null],
    [bytes(call.peak_bytes), call.peak_bytes], [duration(call.cpu_us), call.cpu_us], [duration(call.wait_us), call.wait_us], [exitWords(call), call.exit_code]]));
}

function hatch() {
  const background = colour("--card");
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 7, height: 7, fill: background }), svg("line", { x1: 0, x2: 0, y1: 0, y2: 7, class: "hatchline" })));
}
