// The decisions of an engine: filtered, page by page, the newest first; one of them in full.

import { getJson, path } from "./api.js";
import { drawDecision } from "./decisionpanel.js";
import { actionIcon, boundaryWords, overrideWords, seconds } from "./enginewords.js";
import { clean, duration, el, elapsed, integer, known, setText, timeOfDay } from "./format.js";
import { store } from "./store.js";
import { Table } from "./table.js";

const PAGE = 50;
const SOON_MS = 1500;
const LEAST_REGRET_S = 1e-6;
const byId = (id) => document.getElementById(id);
const text = (key, label, def, show, extra = {}) => ({ key, label, def, value: show, update: (node, d) => setText(node, show(d)), ...extra });

export class Decisions {
  #engine; #table; #rows = new Map(); #next = null; #timer = 0; #asked = 0; #selected = null; #detail = null;

  /** `engine()` gives the name of the engine that is shown, null for none. */
  constructor(engine) {
    this.#engine = engine;
    this.#table = new Table(byId("decisions"), [
      { key: "t", label: "time", def: "decision.t_us", value: (d) => d.ord, num: true, update: (node, d) => { setText(node, elapsed(d.t_us - store.startUs, 1e5)); node.title = timeOfDay(d.t_us); } },
      { key: "session", label: "session", head: true, value: (d) => d.session, cell: () => el("span", { class: "cell", "data-text": true }), update: (node, d) => setText(node, clean(d.session, 60)) },
      { key: "action", label: "action", def: "decision.action", value: (d) => d.action, cell: () => el("span", {}), update: (node, d) => { if (!node.childElementCount) node.replaceChildren(actionIcon(d.action, d.enforced), ` ${d.action}`); } },
      text("boundary", "at", "decision.boundary", (d) => boundaryWords(d.boundary), { wide: true }), text("tool", "tool", "decision.tool", (d) => clean(d.tool || "", 30)),
      text("blocks", "blocks", "decision.blocks", (d) => integer(d.blocks), { num: true, value: (d) => d.blocks }), text("margin", "margin", "decision.margin_s", (d) => seconds(d.margin_s), { num: true, value: (d) => d.margin_s, wide: true }),
      text("gap", "came back after", "outcome.gap_us", (d) => (d.outcome ? (d.outcome.returned ? duration(d.outcome.gap_us) : "never") : ""), { num: true, value: (d) => d.outcome?.gap_us }),
      text("served", "from", "outcome.served_from", (d) => (d.outcome?.returned ? clean(d.outcome.served_from, 20) : "")), text("regret", "regret", "outcome.regret_s", (d) => (known(d.outcome?.regret_s) ? seconds(d.outcome.regret_s) : ""), { num: true, value: (d) => d.outcome?.regret_s }),
      text("by", "overridden by", "decision.overridden_by", (d) => (d.overridden_by ? overrideWords(d.overridden_by) : ""), { wide: true }),
    ], { id: (d) => d.ord, open: (ord) => this.select(Number(ord)), sort: ["t", true] });
    byId("filters").addEventListener("change", () => this.load());
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("older").addEventListener("click", () => this.#more());
    this.#drawDetail();
  }

  #query() {
    const form = new FormData(byId("filters")), out = { engine: this.#engine(), limit: PAGE };
    for (const name of ["action", "boundary", "tool", "enforced", "overridden"]) if (form.get(name)) out[name] = form.get(name);
    if (form.get("regret")) out.regret_min_s = LEAST_REGRET_S;
    return out;
  }

  /** Ask anew, from the newest one. */
  async load() {
    clearTimeout(this.#timer); this.#timer = 0;
    if (this.#engine() === null) return;
    const asked = ++this.#asked;
    try {
      const body = await getJson(store.api("/api/kv/decisions", this.#query()));
      if (asked !== this.#asked) return;
      this.#rows = new Map(body.rows.map((row) => [row.ord, row]));
      this.#next = body.next_before_ord;
      this.#tools(body.tools);
      this.#draw();
    } catch (error) { if (asked === this.#asked) { byId("no-decisions").hidden = false; setText(byId("no-decisions"), error.message); } }
  }

  /** There are new ones; who has gone on to older ones is not disturbed. */
  soon() { if (this.#rows.size <= PAGE) this.#timer ||= setTimeout(() => this.load(), SOON_MS); }

  async #more() {
    const asked = this.#asked;
    try {
      const body = await getJson(store.api("/api/kv/decisions", { ...this.#query(), before_ord: this.#next }));
      if (asked !== this.#asked) return;
      for (const row of body.rows) this.#rows.set(row.ord, row);
      this.#next = body.next_before_ord;
      this.#draw();
    } catch (error) { setText(byId("decisions-note"), error.message); }
  }

  #tools(tools) {
    const select = byId("filters").elements.tool, kept = select.value;
    if ([...select.options].slice(1).map((option) => option.value).join("\n") === tools.join("\n")) return;
    select.replaceChildren(el("option", { value: "" }, "all"), ...tools.map((tool) => el("option", { value: tool }, clean(tool, 40))));
    select.value = tools.includes(kept) ? kept : "";
  }

  #draw() {
    this.#table.update([...this.#rows.values()]);
    byId("older").hidden = this.#next === null;
    byId("no-decisions").hidden = this.#rows.size > 0;
    const filtered = Object.keys(this.#query()).length > 2;
    setText(byId("no-decisions"), filtered ? "No decision matches." : "No decision yet. Only vLLM with the plugin takes any, when a session's turn ends.");
    setText(byId("decisions-note"), this.#rows.size ? `${integer(this.#rows.size)}${this.#next === null ? "" : ", more are older"}` : "");
    if (this.#selected !== null && this.#rows.has(this.#selected)) this.select(this.#selected, false);
  }

  async select(ord, focus = true) {
    if (this.#selected !== ord) this.#detail = null;
    this.#selected = ord;
    this.#drawDetail();
    if (focus) byId("decision").focus({ preventScroll: true });
    try {
      const body = await getJson(store.api(`/api/kv/decisions/${ord}`));
      if (this.#selected === ord) { this.#detail = body; this.#drawDetail(); }
    } catch (error) { if (this.#selected === ord && !this.#detail) byId("decision").replaceChildren(el("p", { class: "trouble", text: error.message })); }
  }

  #drawDetail() {
    const node = byId("decision"), row = this.#detail ?? this.#rows.get(this.#selected);
    if (!row) { node.replaceChildren(el("h2", {}, "No decision selected"), el("p", { class: "muted" }, "Click a row, or choose one with the arrow keys and press Enter.")); return; }
    const link = row.session ? el("a", { href: `${path("sessions", row.session)}#decision=${row.ord}`, text: clean(row.session, 60) }) : null;
    drawDecision(node, row, this.#detail, { startUs: store.startUs, link, close: () => { this.#selected = this.#detail = null; this.#drawDetail(); } });
  }
}
