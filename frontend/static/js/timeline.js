// The session page's one axis: what is in view, the crosshair through all panels, zoom by drag and keys.

import { margins } from "./charts.js";
import { elapsed, svg } from "./format.js";

const DRAG_PX = 5;
const MIN_SPAN_US = 2000;
const STEPS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];

/**
 * Events on `document`-independent callbacks: changed(byUser), hover(t_us|null), pick(t_us, target), seek(t_us).
 * `bounds()` gives {startUs, endUs} of the session now; `playhead()` the instant that the page shows, null when it is now.
 */
export class Timeline {
  #panels; #crosshair; #brush; #axis; #callbacks; #bounds; #playhead; #head; #veil; #zoom = null; #drag = null; #dragged = false;
  following = false;

  constructor({ panels, crosshair, brush, head, veil, axis, bounds, playhead, callbacks }) {
    this.#panels = panels; this.#crosshair = crosshair; this.#brush = brush; this.#axis = axis; this.#bounds = bounds; this.#callbacks = callbacks;
    this.#head = head; this.#veil = veil; this.#playhead = playhead;
    panels.addEventListener("pointermove", (event) => this.#move(event));
    panels.addEventListener("pointerleave", () => this.point(null));
    panels.addEventListener("pointerdown", (event) => this.#down(event));
    panels.addEventListener("dblclick", (event) => { if (event.target.closest(".plot")) this.reset(); });
    addEventListener("pointerup", (event) => this.#up(event));
    new ResizeObserver(() => this.#callbacks.changed(false)).observe(panels);
  }

  /** [from, to] in microseconds UTC. The whole session unless zoomed; slides along while following. */
  get view() {
    const { startUs, endUs } = this.#bounds();
    if (!this.#zoom) return [startUs, Math.max(endUs, startUs + 1e6)];
    if (!this.following) return this.#zoom;
    const span = this.#zoom[1] - this.#zoom[0];
    return [endUs - span, endUs];
  }

  get zoomed() { return this.#zoom !== null; }

  /** Plot width in pixels, the same for each panel. */
  get width() { const { left, right } = margins(); return Math.max(50, this.#panels.clientWidth - left - right); }

  x(t, [from, to] = this.view) { return margins().left + (t - from) / (to - from) * this.width; }
  time(x, [from, to] = this.view) { return from + (x - margins().left) / this.width * (to - from); }

  /** Show this span; `byUser` false when it comes from the URL. */
  set(from, to, byUser = true) {
    const { startUs, endUs } = this.#bounds();
    const span = Math.min(Math.max(to - from, MIN_SPAN_US), Math.max(endUs - startUs, 1e6));
    let left = (from + to - span) / 2;
    left = Math.min(Math.max(left, startUs), Math.max(startUs, endUs - span));
    this.#zoom = span >= endUs - startUs ? null : [Math.round(left), Math.round(left + span)];
    if (byUser && this.#zoom && this.#zoom[1] < endUs - 5e5) this.following = false;
    this.#callbacks.changed(byUser);
  }

  reset() { this.#zoom = null; this.#callbacks.changed(true); }

  /** Zoom by a factor around the crosshair, or around the middle. */
  scale(factor) {
    const [from, to] = this.view;
    const middle = this.following ? to : this.pointed ?? (from + to) / 2;
    this.set(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  pan(fraction) { const [from, to] = this.view; const step = (to - from) * fraction; this.set(from + step, to + step); }

  /** Bring a span into view when it is outside. */
  reveal(fromUs, toUs) {
    const [from, to] = this.view;
    if (toUs < from || fromUs > to) { this.following = false; this.set(fromUs - (to - from) / 2, fromUs + (to - from) / 2); }
  }

  /** Put the crosshair at a time, or take it away. */
  point(t) {
    this.pointed = t;
    this.#crosshair.hidden = t === null;
    if (t !== null) this.#crosshair.style.left = `${this.x(t)}px`;
    this.#callbacks.hover(t);
  }

  #inside(event) {
    const x = event.clientX - this.#panels.getBoundingClientRect().left;
    const { left } = margins();
    return x >= left && x <= left + this.width ? x : null;
  }

  #move(event) {
    const x = this.#inside(event);
    if (this.#drag !== null) {
      const { left } = margins();
      const here = Math.max(left, Math.min(left + this.width, event.clientX - this.#panels.getBoundingClientRect().left));
      this.#dragged ||= Math.abs(here - this.#drag) > DRAG_PX;
      if (this.#dragged) {
        this.#brush.hidden = false;
        this.#brush.style.left = `${Math.min(here, this.#drag)}px`;
        this.#brush.style.width = `${Math.abs(here - this.#drag)}px`;
      }
    }
    this.point(x === null || event.target.closest(".twin-table, button") ? null : this.time(x));
  }

  #down(event) {
    const axis = event.target.closest(".axis");
    if (event.button !== 0 || !(axis || event.target.closest(".plot"))) return;
    const x = this.#inside(event);
    if (x === null) return;
    if (axis || event.shiftKey) { event.preventDefault(); this.#callbacks.seek(this.time(x)); return; }
    this.#drag = x;
    this.#dragged = false;
  }

  #up(event) {
    if (this.#drag === null) return;
    const { left } = margins();
    const x = Math.max(left, Math.min(left + this.width, event.clientX - this.#panels.getBoundingClientRect().left));
    const start = this.#drag;
    this.#drag = null;
    this.#brush.hidden = true;
    if (this.#dragged) this.set(this.time(Math.min(start, x)), this.time(Math.max(start, x)));
    else this.#callbacks.pick(this.time(x), event.target);
  }

  /** Put the playhead's line where the page stands, and a veil over what comes after it. */
  drawPlayhead() {
    const t = this.#playhead(), [from, to] = this.view, { left } = margins();
    const inside = t !== null && t >= from && t < to;
    this.#head.hidden = !inside;
    if (inside) this.#head.style.left = `${this.x(t)}px`;
    this.#veil.hidden = t === null || t >= to;
    if (this.#veil.hidden) return;
    const x = Math.max(left, this.x(t));
    this.#veil.style.left = `${x}px`;
    this.#veil.style.width = `${Math.max(0, left + this.width - x)}px`;
  }

  /** Draw the ticks, counted from the session's start. */
  drawAxis() {
    const [from, to] = this.view, { startUs } = this.#bounds();
    const { rem } = margins();
    const wanted = (to - from) / 1e6 / Math.max(3, this.width / (7 * rem));
    const step = (STEPS_S.find((candidate) => candidate >= wanted) ?? STEPS_S.at(-1)) * 1e6;
    const root = svg("svg", { height: Math.round(1.7 * rem) });
    const last = margins().left + this.width;
    for (let at = Math.ceil((from - startUs) / step - 1e-9) * step; at + startUs <= to + 1; at += step) {
      const x = this.x(at + startUs);
      root.append(svg("line", { x1: x, x2: x, y1: 0, y2: 4, class: "edge" }),
        svg("text", { x: Math.min(x, last - 0.6 * rem), y: 1.25 * rem, "text-anchor": "middle" }, elapsed(at, step)));
    }
    this.#axis.replaceChildren(root);
    this.drawPlayhead();
  }
}
