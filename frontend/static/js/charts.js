// Charts. The pages speak ChartPayload; only this module knows Plotly, so another renderer can take its place.
//
// ChartPayload = {
//   fromUs, toUs            the axis, microseconds UTC
//   t: Float64Array         times in milliseconds UTC, rising; each value holds until the next time
//   endUs                   until when the last value holds
//   layers: [{key, colour: CSS variable, values: Float64Array}]   bottom first
//   mode: "stack"|"area"|"lines", yMax, yTicks: [{value, text}]
// }

import { plotlyText } from "./format.js";

/* global Plotly */

const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };

/** Margins of every plot in pixels (pad: above and below), so that all panels share one axis. */
export function margins() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  return { left: Math.round(4.3 * rem), right: Math.round(0.9 * rem), pad: Math.round(0.65 * rem), rem };
}

/** 3 to 6 round steps from 0 to at least `max`. */
export function niceTicks(max, count = 4) {
  const raw = Math.max(max, 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const ticks = [];
  for (let i = 0; i * step <= max * 1.0001; i++) ticks.push(i * step);
  return { ticks, step };
}

export function colour(variable) { return getComputedStyle(document.documentElement).getPropertyValue(variable).trim(); }

/**
 * Sums of the layers, layer by layer: out[i] is the top edge of layer i. A layer that is unknown where others are known
 * counts as nothing; where none is known, neither is the sum.
 */
export function stacked(layers) {
  const edges = [];
  let below = null;
  for (const { values } of layers) {
    const edge = new Float64Array(values.length);
    for (let i = 0; i < values.length; i++) edge[i] = (below ? below[i] : 0) + (values[i] > 0 ? values[i] : 0);
    edges.push(edge);
    below = edge;
  }
  for (let i = 0; i < (below?.length ?? 0); i++) if (layers.every(({ values }) => Number.isNaN(values[i]))) for (const edge of edges) edge[i] = NaN;
  return edges;
}

/** The greatest of the known values; 0 when there is none. */
export function greatest(values) {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}

/** Index of the last time <= t, or -1. */
export function indexAt(times, t) {
  let low = 0, high = times.length;
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] <= t) low = middle + 1; else high = middle; }
  return low - 1;
}

function held(values, extend) {
  if (!extend) return values;
  const out = new Float64Array(values.length + 1);
  out.set(values);
  out[values.length] = values[values.length - 1];
  return out;
}

export class Chart {
  #node; #plot; #payload = null; #size = "";

  /** `description` is what a screen reader hears; the numbers are in the table twin. */
  constructor(node, description) {
    this.#node = node;
    this.#plot = document.createElement("div");
    this.#plot.setAttribute("role", "img");
    this.#plot.setAttribute("aria-label", description);
    this.#plot.style.position = "absolute";
    this.#plot.style.inset = "0";
    node.append(this.#plot);
    document.addEventListener("tidegate:theme", () => this.redraw());
    // Plotly is large and comes after the page: numbers and tables do not wait for it.
    if (typeof Plotly === "undefined") document.getElementById("plotly")?.addEventListener("load", () => this.redraw());
    new ResizeObserver(() => {
      const size = `${node.clientWidth}x${node.clientHeight}`;
      if (size !== this.#size) this.redraw();
    }).observe(node);
  }

  get payload() { return this.#payload; }
  describe(text) { this.#plot.setAttribute("aria-label", text); }
  redraw() { if (this.#payload) this.draw(this.#payload); }

  draw(payload) {
    this.#payload = payload;
    const width = this.#node.clientWidth, height = this.#node.clientHeight;
    if (!width || !height || typeof Plotly === "undefined") return;
    this.#size = `${width}x${height}`;
    const { left, right, pad, rem } = margins();
    const text = colour("--muted"), grid = colour("--grid");
    const layout = {
      width, height, margin: { l: left, r: right, t: pad, b: pad }, showlegend: false, hovermode: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "fixed", bargap: 0,
      font: { family: "Inter, system-ui, 'DejaVu Sans', sans-serif", size: Math.round(0.85 * rem), color: text },
      xaxis: { type: "linear", range: [0, (payload.toUs - payload.fromUs) / 1000], fixedrange: true, showgrid: false, zeroline: false, showticklabels: false, ticks: "" },
      yaxis: {
        range: [0, payload.yMax], fixedrange: true, zeroline: false, gridcolor: grid, gridwidth: 1, ticks: "", automargin: false,
        tickmode: "array", tickvals: payload.yTicks.map((tick) => tick.value), ticktext: payload.yTicks.map((tick) => tick.text),
      },
    };
    Plotly.react(this.#plot, this.#traces(payload), layout, CONFIG);
  }

  #traces(payload) {
    const fromMs = payload.fromUs / 1000;
    const last = payload.t.length ? payload.t[payload.t.length - 1] : 0;
    const endMs = payload.endUs / 1000;
    const extend = payload.t.length > 0 && endMs > last;
    const x = new Float64Array(payload.t.length + (extend ? 1 : 0));
    for (let i = 0; i < payload.t.length; i++) x[i] = payload.t[i] - fromMs;
    if (extend) x[payload.t.length] = endMs - fromMs;
    const line = (layer, width) => ({ shape: "hv", width, color: colour(layer.colour), simplify: true });
    if (payload.mode === "lines") {
      return payload.layers.map((layer) => ({ type: "scatter", mode: "lines", x, y: held(layer.values, extend), line: line(layer, 1.4), name: plotlyText(layer.key), connectgaps: false }));
    }
    // Upper edges first, each filled down to zero and covered by the next: no seams, and unknown spans stay empty.
    const edges = payload.mode === "stack" ? stacked(payload.layers) : payload.layers.map((layer) => layer.values);
    return payload.layers.map((layer, i) => ({
      type: "scatter", mode: "lines", x, y: held(edges[i], extend), fill: "tozeroy", fillcolor: colour(layer.colour), line: line(layer, 0), name: plotlyText(layer.key),
    })).reverse();
  }
}
