// Tool calls as bars in lanes: overlapping calls lie in different lanes. A listbox: arrows choose, Enter opens.

import { category, commandLabel, duration, known, svg } from "./format.js";
import { margins } from "./charts.js";

const LIGHT_TEXT = new Set(["git"]);

export class Lanes {
  #node; #timeline; #calls = []; #cursor = null; #selected = null; #open;

  /** `open(id)` is called for a click on a bar or Enter. */
  constructor(node, timeline, open) {
    this.#node = node; this.#timeline = timeline; this.#open = open;
    node.addEventListener("keydown", (event) => this.#key(event));
  }

  set calls(calls) { this.#calls = [...calls].sort((a, b) => a.started_us - b.started_us || a.ordinal - b.ordinal); }
  get calls() { return this.#calls; }
  set selected(id) { this.#selected = id; if (id) this.#cursor = id; }

  #end(call, now) { return call.ended_us ?? (call.state === "running" ? now : call.started_us + (call.duration_us || 0)); }

  /** The call under a time: of several the one that started last. */
  at(t, now) { return this.#calls.findLast((call) => call.started_us <= t && t <= this.#end(call, now)) ?? null; }

  draw(now) {
    const timeline = this.#timeline, view = timeline.view, { left, rem } = margins();
    const [from, to] = view, right = left + timeline.width;
    const seen = this.#calls.filter((call) => call.started_us <= to && this.#end(call, now) >= from);
    const lanes = Math.max(1, ...this.#calls.map((call) => (call.lane || 0) + 1));
    const height = Math.max(4, Math.min(1.75 * rem, 13 * rem / lanes));
    const gap = height > 10 ? 3 : 1;
    const root = svg("svg", { height: lanes * height + 4, role: "presentation" });
    for (let lane = 0; lane < lanes; lane++) root.append(svg("rect", { class: "track", x: left, width: timeline.width, y: 2 + lane * height, height: height - gap }));
    const drawn = new Set();
    for (const call of seen) {
      const chosen = call.id === this.#selected || call.id === this.#cursor;
      const x = Math.max(left, timeline.x(call.started_us, view)), end = Math.min(right, timeline.x(this.#end(call, now), view));
      const width = Math.max(2, end - x);
      // Calls narrower than a pixel at the same place look like one; thousands of them need not be drawn.
      const spot = `${call.lane}:${Math.round(x)}`;
      if (width <= 2 && !chosen && drawn.has(spot)) continue;
      drawn.add(spot);
      const bar = svg("rect", {
        id: `bar-${call.ordinal}`, class: `bar${call.id === this.#selected ? " sel" : call.id === this.#cursor ? " cursor" : ""}${call.state === "lost" ? " lost" : ""}`,
        x, width, y: 2 + (call.lane || 0) * height, height: height - gap, rx: Math.min(2, width / 2), style: `fill: var(--c-${category(call.category)})`,
        role: "option", "aria-selected": String(call.id === this.#selected), "aria-label": this.#label(call),
      });
      bar.dataset.call = call.id;
      const group = [bar];
      const room = Math.floor((width - 0.9 * rem) / (0.52 * rem));
      if (room >= 3 && height > 0.95 * rem) {
        // An inner svg cuts what is wider than the bar.
        group.push(svg("svg", { x, y: 2 + (call.lane || 0) * height, width: width - 2, height: height - gap, class: "cut", "aria-hidden": "true" },
          svg("text", { class: `on-bar${LIGHT_TEXT.has(call.category) ? " light" : ""}`, x: 0.45 * rem, y: (height - gap) / 2 + 0.3 * rem }, commandLabel(call, 400).slice(0, room))));
      }
      root.append(...group);
    }
    this.#node.replaceChildren(root);
    const cursor = this.#calls.find((call) => call.id === this.#cursor);
    const active = cursor && this.#node.querySelector(`#bar-${cursor.ordinal}`);
    if (active) this.#node.setAttribute("aria-activedescendant", active.id); else this.#node.removeAttribute("aria-activedescendant");
  }

  #label(call) {
    return `call ${call.ordinal}, ${call.category}, ${commandLabel(call, 80)}${known(call.duration_us) ? `, ${duration(call.duration_us)}` : ""}`;
  }

  #key(event) {
    const at = this.#calls.findIndex((call) => call.id === this.#cursor);
    const last = this.#calls.length - 1;
    if (last < 0) return;
    let to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (event.key === "ArrowUp" || event.key === "ArrowDown") to = this.#neighbourLane(at, event.key === "ArrowUp" ? -1 : 1);
    if (to !== undefined) {
      event.preventDefault();
      const call = this.#calls[Math.max(0, Math.min(last, to))];
      this.#cursor = call.id;
      this.#timeline.reveal(call.started_us, call.ended_us ?? call.started_us);
      this.#timeline.point(Math.max(call.started_us, this.#timeline.view[0]));
      this.draw(this.#timeline.view[1]);
    } else if ((event.key === "Enter" || event.key === " ") && this.#cursor) {
      event.preventDefault();
      this.#open(this.#cursor);
    }
  }

  // The call of the next lane up or down that overlaps in time, else stay.
  #neighbourLane(at, step) {
    const here = this.#calls[Math.max(at, 0)];
    const end = here.ended_us ?? Infinity;
    const found = this.#calls.findIndex((call) => (call.lane || 0) === (here.lane || 0) + step && call.started_us <= end && (call.ended_us ?? Infinity) >= here.started_us);
    return found < 0 ? Math.max(at, 0) : found;
  }
}
