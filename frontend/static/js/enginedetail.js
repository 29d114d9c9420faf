// The second panel beside a session's timeline: the turn or the decision that is chosen.

import { getJson } from "./api.js";
import { drawDecision } from "./decisionpanel.js";
import { el } from "./format.js";
import { begin, turnEnd } from "./kvdata.js";
import { store } from "./store.js";
import { drawTurn } from "./turnpanel.js";

const FOCUSABLE = "button, a[href], summary";

export class EngineDetail {
  #node; #kv; #panels; #model; #selectCall; #changed; #reveal; #loaded = null; #wanted = null;

  /** `model()` gives {startUs, nowUs, calls}; `changed()` is called when another one is chosen. */
  constructor(node, kv, panels, { model, selectCall, changed, reveal }) {
    this.#node = node; this.#kv = kv; this.#panels = panels; this.#model = model; this.#selectCall = selectCall; this.#changed = changed; this.#reveal = reveal;
  }

  get chosen() { return this.#panels.selectedTurn !== null || this.#panels.selectedDecision !== null; }

  turn(id) { this.#choose(id, null); }
  decision(ord) { this.#choose(null, ord); }
  close() { this.#choose(null, null); }

  /** What a link names; it may not be loaded yet. */
  named(turn, decision) { if ((turn ?? null) !== this.#panels.selectedTurn || decision !== this.#panels.selectedDecision) { if (turn !== null || decision !== null || this.chosen) this.#choose(turn, decision, false); } }

  /** The lists were loaded (again). */
  known() { this.draw(); if (this.#panels.selectedDecision !== null) this.#load(); }

  #choose(turn, decision, byUser = true) {
    this.#panels.selectedTurn = turn; this.#panels.selectedDecision = decision;
    this.#loaded = null;
    const at = turn !== null ? this.#turn() : this.#row();
    if (at && byUser) this.#reveal(at.t_us ?? begin(at), at.t_us ?? turnEnd(at, this.#model().nowUs));
    this.draw();
    this.#load();
    this.#changed();
    if (byUser && this.chosen) this.#node.focus({ preventScroll: true });
  }

  #turn() { return this.#kv.turns.find((turn) => turn.turn === this.#panels.selectedTurn) ?? null; }
  #row() { return this.#kv.decisions.find((one) => one.ord === this.#panels.selectedDecision) ?? null; }

  async #load() {
    const ord = this.#panels.selectedDecision;
    if (ord === null || this.#wanted === ord) return;
    this.#wanted = ord;
    try {
      // A decision is shown with what came of it, whenever that was: without the position.
      const body = await getJson(`/api/kv/decisions/${ord}${store.place.run ? `?run=${encodeURIComponent(store.place.run)}` : ""}`);
      if (this.#panels.selectedDecision === ord) { this.#loaded = body; this.draw(); }
    } catch (error) { if (this.#panels.selectedDecision === ord && !this.#loaded) this.#node.replaceChildren(el("p", { class: "trouble", text: error.message })); } finally { this.#wanted = null; }
  }

  draw() {
    const { startUs, nowUs, calls } = this.#model(), close = () => this.close();
    // What is drawn anew loses the focus: it stays on the same button, link or summary, else on the panel.
    const held = this.#node.contains(document.activeElement) ? [...this.#node.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : null;
    this.#node.hidden = !this.chosen;
    if (this.#panels.selectedTurn !== null) {
      const turn = this.#turn();
      if (turn) drawTurn(this.#node, turn, { startUs, nowUs, calls, select: this.#selectCall, close });
      else this.#node.replaceChildren(el("p", { class: "muted" }, this.#kv.loaded ? "That turn is not in view." : "…"));
    } else if (this.#panels.selectedDecision !== null) {
      const row = this.#loaded ?? this.#row();
      if (row) drawDecision(this.#node, row, this.#loaded, { startUs, close });
    }
    if (held !== null && this.chosen) ([...this.#node.querySelectorAll(FOCUSABLE)][held] ?? this.#node).focus({ preventScroll: true });
  }
}
