// The playhead: where in the run the page stands, and everything that moves it.

import { getJson } from "./api.js";
import { place, sign, words } from "./events.js";
import { el, elapsed, setText, svg, timeOfDay } from "./format.js";
import { HELP, playKeys } from "./playkeys.js";
import { SPEEDS } from "./store.js";
import { HINT, parseTime } from "./timegrammar.js";
import { MARKS, Track } from "./track.js";

const STEP_US = 1e6;
const MARKS_MS = 15000;
const NOTE_MS = 8000;
const FRESH_MARKS = 400;
const KINDS = [["", "all events"], ["burst", "bursts"], ["call", "calls"], ["oom", "OOM"], ["action", "actions"], ["decision", "decisions"]];
const ICONS = { play: "M3 1l11 7-11 7z", pause: "M3 1h3.5v14H3zM9.5 1H13v14H9.5z", previous: "M2 1h2v14H2zM14 1v14L5 8z", next: "M12 1h2v14h-2zM2 1v14l9-7z" };

function icon(name) { return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] })); }

export class Playhead {
  #node; #store; #session; #track; #parts = {}; #noteTimer = 0; #marksMs = 0; #marksOf = ""; #fresh = 0; #toldMs = 0;

  /** `session`: steps go from event to event of this session only; null: of the run. */
  constructor(node, store, { session = null } = {}) {
    this.#node = node; this.#store = store; this.#session = session;
    this.#track = new Track({
      extent: () => [store.startUs, store.endUs], at: () => store.now(), label: (us) => this.#label(us),
      seek: (us, { final, right }) => (final && right && store.writing ? this.#do("live") : this.#seek(us, final)),
    });
    this.#build();
    playKeys((name, event) => this.#do(name, event.shiftKey));
    document.addEventListener("keydown", (event) => {
      // Before the page's own Escape: what lies on top goes first.
      if (event.key === "Escape" && !this.#parts.help.hidden) { event.stopImmediatePropagation(); this.#toggleHelp(); }
    }, true);
    store.subscribe((change) => this.#changed(change));
    new ResizeObserver(() => this.#loadMarks()).observe(this.#track.node);
    setInterval(() => { if (store.writing && !document.hidden) { this.#draw(); if (this.#fresh && performance.now() - this.#marksMs > MARKS_MS) this.#loadMarks(true); } }, 1000);
  }

  #build() {
    const button = (name, label, act, ...content) => (this.#parts[name] = el("button", { type: "button", "aria-label": label, title: label, onclick: act }, ...content));
    const options = (list) => list.map(([value, text]) => el("option", { value }, text));
    this.#parts.kinds = el("select", { "aria-label": "Kind of event that a step goes to" }, ...options(KINDS));
    this.#parts.speed = el("select", { "aria-label": "Speed", title: "Speed ([ slower, ] faster)" }, ...options(SPEEDS.map((speed) => [speed, `${speed}×`])));
    this.#parts.speed.addEventListener("change", () => this.#store.setSpeed(Number(this.#parts.speed.value)));
    this.#parts.field = el("input", { type: "text", "aria-label": "Go to a time", placeholder: "2m, -30s, 14:05:30", title: HINT, autocomplete: "off", spellcheck: "false", "aria-describedby": "playhead-note" });
    const form = el("form", { class: "goto" }, this.#parts.field);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.#typed(); });
    this.#parts.field.addEventListener("keydown", (event) => { if (event.key === "Escape") { this.#parts.field.value = ""; this.#note(); this.#parts.field.blur(); } });
    this.#parts.field.addEventListener("focus", () => this.#note([el("span", { "data-text": true }, HINT)], true));
    this.#parts.at = el("b", { def: "playhead.at_us" });
    this.#parts.clock = el("small", { def: "playhead.clock" });
    this.#parts.end = el("small", { def: "playhead.end_us" });
    this.#parts.note = el("p", { class: "note", id: "playhead-note", role: "status", hidden: true });
    this.#parts.help = this.#help();
    this.#node.append(
      this.#parts.help,
      el("div", { class: "bar" },
        el("span", { class: "group" }, button("previous", "Previous event (,)", () => this.#do("previous"), icon("previous")), button("toggle", "Play (Space)", () => this.#do("toggle"), icon("play")), button("next", "Next event (.)", () => this.#do("next"), icon("next")), this.#parts.kinds),
        el("span", { class: "at" }, this.#parts.at, this.#parts.clock), this.#track.node, el("span", { class: "end" }, this.#parts.end),
        el("span", { class: "group" }, this.#parts.speed, form, button("live", "Go live (L)", () => this.#do("live"), "Live"), button("question", "Keys and marks (?)", () => this.#do("help"), "?"))),
      this.#parts.note);
    this.#parts.question.setAttribute("aria-expanded", "false");
    this.#parts.question.setAttribute("aria-controls", "playhead-help");
  }

  #help() {
    const keys = el("dl", {}, ...HELP.flatMap(([names, what]) => [el("dt", {}, ...names.map((name) => el("kbd", {}, name))), el("dd", {}, what)]));
    const marks = el("p", { class: "legend" }, ...MARKS.map(({ sign, words: text, kind: name }) => el("span", {}, el("span", { class: `sign ${name}` }, sign), ` ${text}`)));
    return el("div", { class: "help", id: "playhead-help", hidden: true }, el("h2", {}, "Keys"), keys, el("h2", {}, "Marks on the track"), marks);
  }

  #label(us) { return `${elapsed(us - this.#store.startUs, 1e5)} · ${timeOfDay(us)}`; }

  // --- what moves it

  #seek(us, push = true) { this.#note(); return this.#store.seek(us, { push }); }

  #do(name, shift = false) {
    const store = this.#store;
    if (!store.run && name !== "help") return;
    switch (name) {
      case "toggle": this.#note(); if (store.live || store.playing) store.pause(); else store.play(); break;
      case "back": this.#seek(store.now() - (shift ? 10 : 1) * STEP_US, store.live); break;
      case "forward": if (!store.live) this.#seek(store.now() + (shift ? 10 : 1) * STEP_US, false); break;
      case "start": this.#seek(store.startUs); break;
      case "end": if (store.writing) this.#do("live"); else this.#seek(store.endUs); break;
      case "live": this.#live(); break;
      case "slower": case "faster": this.#speed(name === "faster" ? 1 : -1); break;
      case "previous": case "next": this.#step(name); break;
      case "field": this.#parts.field.focus({ preventScroll: true }); this.#parts.field.select(); break;
      case "help": this.#toggleHelp(); break;
    }
  }

  #live() {
    if (this.#store.writing) { this.#note(); this.#store.goLive(); } else this.#note(["This run has ended: there is nothing to catch up with."]);
  }

  #speed(by) {
    const at = SPEEDS.indexOf(this.#store.speed) + by;
    if (at >= 0 && at < SPEEDS.length) this.#store.setSpeed(SPEEDS[at]);
  }

  async #step(direction) {
    const store = this.#store, kinds = this.#parts.kinds.value;
    const from = Math.round(store.now());
    try {
      const found = await getJson(store.api("/api/step", { direction, kinds, session: this.#session, at: from }));
      if (!found.event) {
        const what = kinds ? KINDS.find(([value]) => value === kinds)[1] : "events";
        this.#note([`No ${direction === "next" ? "later" : "earlier"} ${what}${this.#session === null ? "" : " of this session"}.`]);
        return;
      }
      await store.seek(found.at_us, { push: true });
      const { event } = found;
      this.#note([el("span", { def: "event.t_us" }, timeOfDay(event.t_us)), " ", sign(event), " ", ...place(event), ...words(event)]);
    } catch (error) { this.#note([error.message]); }
  }

  #typed() {
    const store = this.#store, { field } = this.#parts;
    try {
      const to = parseTime(field.value, { startUs: store.startUs, endUs: store.endUs, atUs: store.now(), writing: store.writing }, timeOfDay);
      field.value = "";
      field.removeAttribute("aria-invalid");
      field.blur();
      if (to.live) this.#do("live"); else this.#seek(to.atUs);
    } catch (error) {
      if (error.name !== "TimeError") throw error;
      field.setAttribute("aria-invalid", "true");
      this.#note([el("span", { class: "trouble", "data-text": true }, error.message)], true);
    }
  }

  #toggleHelp() {
    this.#parts.help.hidden = !this.#parts.help.hidden;
    this.#parts.question.setAttribute("aria-expanded", String(!this.#parts.help.hidden));
  }

  // Words under the bar for a while, or until the next ones (`stay`).
  #note(parts = [], stay = false) {
    clearTimeout(this.#noteTimer);
    this.#parts.note.hidden = !parts.length;
    this.#parts.note.replaceChildren(...parts.map((part) => (typeof part === "string" ? el("span", { text: part }) : part)));
    if (parts.length && !stay) this.#noteTimer = setTimeout(() => this.#note(), NOTE_MS);
  }

  // --- what is shown

  #changed(change) {
    if (change.all) this.#loadMarks();
    for (const event of change.frame?.events || []) this.#mark(event);
    if (change.all || change.place || change.frame || change.status) this.#draw();
  }

  // Only of a run that is being written do events come that the server's marks did not have.
  #mark(event) {
    if (!this.#store.live || this.#fresh > FRESH_MARKS) return;
    const name = kindOf(event);
    if (!name) return;
    this.#fresh++;
    this.#track.add(name, event.t_us);
  }

  #draw() {
    const store = this.#store;
    if (!store.run) return;
    const running = store.live || store.playing, { toggle, live, speed, at, clock, end } = this.#parts;
    this.#node.classList.toggle("live", store.live);
    setText(at, elapsed(store.now() - store.startUs, store.live ? 1e6 : 1e5));
    setText(clock, timeOfDay(store.now()));
    setText(end, store.writing ? "now" : elapsed(store.endUs - store.startUs, 1e5));
    if (toggle.dataset.running !== String(running)) {
      toggle.dataset.running = String(running);
      toggle.replaceChildren(icon(running ? "pause" : "play"));
      const label = running ? "Pause (Space)" : "Play (Space)";
      toggle.setAttribute("aria-label", label);
      toggle.title = label;
    }
    live.hidden = !store.writing;
    live.setAttribute("aria-pressed", String(store.live));
    speed.value = String(store.speed);
    speed.disabled = store.live;
    this.#track.draw();
    const now = performance.now();
    if (!running || now - this.#toldMs > 5000) { this.#toldMs = now; this.#track.tell(); }
  }

  async #loadMarks(again = false) {
    const store = this.#store, px = Math.round(Math.min(Math.max(this.#track.width, 100), 2000));
    const of = `${store.run?.id} ${px}`;
    if (!store.run || (of === this.#marksOf && !again)) return;
    this.#marksOf = of;
    this.#marksMs = performance.now();
    this.#fresh = 0;
    try { this.#track.setMarks(await getJson(store.api("/api/marks", { px }))); } catch (error) { this.#marksOf = ""; console.info(`marks: ${error.message}`); }
  }
}

function kindOf({ type, body }) {
  if (type === "call.start") return "call";
  if (type === "mem.burst") return "burst";
  if (type === "mem.event") return body.oom || body.oom_kill ? "oom" : null;
  return { action: "action", "kv.decision": "decision", loss: "loss" }[type] ?? null;
}
