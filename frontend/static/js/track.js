// The playhead's track: the run's extent from left to right, marks of what happened, the position. Click or drag to seek.

import { colour } from "./charts.js";
import { el } from "./format.js";

const NEAR_PX = 8; // marks of a kind closer than this are drawn as one
const SEEK_MS = 60;

/** What is marked, from the least to the most important: shape and colour both tell them apart. */
export const MARKS = [
  { kind: "call", words: "call", sign: "|", colour: "--muted" },
  { kind: "loss", words: "records lost", sign: "///", colour: "--mark-trouble" },
  { kind: "decision", words: "decision", sign: "●", colour: "--muted" },
  { kind: "action", words: "action", sign: "◆", colour: "--link" },
  { kind: "burst", words: "burst", sign: "▼", colour: "--mark-trouble" },
  { kind: "oom", words: "OOM", sign: "✕", colour: "--mark-trouble" },
];

export class Track {
  #node; #canvas; #fill; #knob; #ghost; #model; #dragged = null; #timer = 0; #columns = []; #fresh = []; #key = "";

  /** `model`: {extent() -> [startUs, endUs], at(), label(us) -> text, seek(us, {final, right})}; right: at the track's right end. */
  constructor(model) {
    this.#model = model;
    this.#canvas = el("canvas", { "aria-hidden": "true" });
    this.#fill = el("div", { class: "fill" });
    this.#knob = el("div", { class: "knob" });
    this.#ghost = el("div", { class: "ghost", hidden: true, def: "playhead.at_us" });
    this.#node = el("div", { class: "track", role: "slider", tabindex: 0, "aria-label": "Position in the run", "aria-orientation": "horizontal" }, this.#canvas, this.#fill, this.#knob, this.#ghost);
    this.#node.addEventListener("pointerdown", (event) => this.#down(event));
    this.#node.addEventListener("pointermove", (event) => this.#move(event));
    this.#node.addEventListener("pointerleave", () => { this.#ghost.hidden = true; });
    for (const kind of ["pointerup", "pointercancel"]) this.#node.addEventListener(kind, (event) => this.#up(event));
    new ResizeObserver(() => this.draw()).observe(this.#node);
    document.addEventListener("tidegate:theme", () => { this.#key = ""; this.draw(); });
  }

  get node() { return this.#node; }
  get width() { return this.#node.clientWidth; }
  get dragging() { return this.#dragged !== null; }

  /** The server's marks: {from_us, to_us, px, columns: [{kind, counts: [[column, n]]}]}. */
  setMarks({ from_us: from, to_us: to, px, columns }) {
    this.#columns = columns.map(({ kind, counts }) => [kind, counts.map(([column]) => from + (column + 0.5) / px * (to - from))]);
    this.#fresh = [];
    this.#key = "";
    this.draw();
  }

  /** A mark that came since. */
  add(kind, us) { this.#fresh.push([kind, [us]]); this.#key = ""; }

  draw() {
    const [start, end] = this.#model.extent(), at = this.#dragged ?? this.#model.at();
    const share = end > start ? Math.min(1, Math.max(0, (at - start) / (end - start))) : 1;
    this.#fill.style.width = this.#knob.style.left = `${share * 100}%`;
    this.#marks(start, end);
  }

  /** What a screen reader says of the position; not at each frame of a run that plays. */
  tell() {
    const [start, end] = this.#model.extent(), at = this.#model.at();
    for (const [name, value] of [["valuemin", 0], ["valuemax", Math.round((end - start) / 1e6)], ["valuenow", Math.round((at - start) / 1e6)], ["valuetext", this.#model.label(at)]]) this.#node.setAttribute(`aria-${name}`, value);
  }

  #marks(start, end) {
    const width = this.#node.clientWidth, height = this.#node.clientHeight;
    if (!width || end <= start) return;
    // A live run grows all the time: its marks move only when they move by a pixel.
    const key = [width, height, start, Math.round(Math.log(end - start) * width)].join();
    if (key === this.#key) return;
    this.#key = key;
    const ratio = Math.min(devicePixelRatio || 1, 2), canvas = this.#canvas;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const { kind, colour: variable } of MARKS) {
      const times = [...this.#columns, ...this.#fresh].filter(([name]) => name === kind).flatMap(([, us]) => us).sort((a, b) => a - b);
      context.fillStyle = context.strokeStyle = colour(variable);
      let last = -Infinity;
      for (const us of times) {
        const x = (us - start) / (end - start) * width;
        if (x < 0 || x > width || x - last < (kind === "call" || kind === "loss" ? 1.5 : NEAR_PX)) continue;
        last = x;
        shape(context, kind, Math.min(Math.max(x, 1), width - 1), height);
      }
    }
  }

  #time(event) {
    const box = this.#node.getBoundingClientRect(), [start, end] = this.#model.extent();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return [start + share * (end - start), share >= 1 - 2 / box.width];
  }

  #down(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.#node.setPointerCapture(event.pointerId);
    this.#node.focus({ preventScroll: true });
    [this.#dragged] = this.#time(event);
    this.draw();
  }

  #move(event) {
    const [us] = this.#time(event);
    this.#point(event, us);
    if (this.#dragged === null) return;
    this.#dragged = us;
    this.draw();
    // The pages follow the hand, but not at each pixel.
    this.#timer ||= setTimeout(() => { this.#timer = 0; if (this.#dragged !== null) this.#model.seek(this.#dragged, { final: false, right: false }); }, SEEK_MS);
  }

  #up(event) {
    if (this.#dragged === null) return;
    clearTimeout(this.#timer);
    this.#timer = 0;
    const [us, right] = this.#time(event);
    this.#dragged = null;
    this.#model.seek(us, { final: true, right });
    this.draw();
  }

  #point(event, us) {
    this.#ghost.hidden = event.pointerType === "touch";
    this.#ghost.textContent = this.#model.label(us);
    const box = this.#node.getBoundingClientRect(), half = this.#ghost.offsetWidth / 2;
    this.#ghost.style.left = `${Math.min(Math.max(event.clientX - box.left, half), box.width - half)}px`;
  }
}

// Two rows of signs, below them the ticks of the calls, below those the groove.
function shape(context, kind, x, height) {
  const top = 6, second = 15;
  context.beginPath();
  if (kind === "call") { context.fillRect(x - 0.5, height - 14, 1, 4); return; }
  if (kind === "loss") { for (const dx of [-3, 0, 3]) { context.moveTo(x + dx - 2, second + 4); context.lineTo(x + dx + 2, second - 4); } context.lineWidth = 1.4; context.stroke(); return; }
  if (kind === "burst") { context.moveTo(x - 4, top - 4); context.lineTo(x + 4, top - 4); context.lineTo(x, top + 3); context.fill(); return; }
  if (kind === "action") { context.moveTo(x, second - 4.5); context.lineTo(x + 4, second); context.lineTo(x, second + 4.5); context.lineTo(x - 4, second); context.fill(); return; }
  if (kind === "decision") { context.arc(x, second, 2.6, 0, 2 * Math.PI); context.fill(); return; }
  context.lineWidth = 2;
  context.moveTo(x - 3.5, top - 3.5); context.lineTo(x + 3.5, top + 3.5); context.moveTo(x + 3.5, top - 3.5); context.lineTo(x - 3.5, top + 3.5);
  context.stroke();
}
