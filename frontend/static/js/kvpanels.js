// The session page's panels of the engine plane, on the page's one axis: turns in lanes, KV blocks by state, decisions.

import { Chart, greatest, margins, niceTicks, stacked } from "./charts.js";
import { ACTIONS, actionSign, boundaryWords, causeWords, MARKED, servedWords, STATE_WORDS, STATES, seconds } from "./enginewords.js";
import { clean, duration, el, elapsed, integer, known, setText, svg } from "./format.js";
import { begin, phases, turnEnd } from "./kvdata.js";
import { figures } from "./table.js";

const byId = (id) => document.getElementById(id);
const NEAR_PX = 9;
const SHORT_PX = 3;

export class KvPanels {
  #timeline; #model; #chart; #over; #words;
  selectedTurn = null; selectedDecision = null;

  /** `model()` gives {session, kv, startUs, endUs, nowUs}. */
  constructor(timeline, model) {
    this.#timeline = timeline; this.#model = model;
    const node = byId("kv");
    this.#chart = new Chart(node, "KV blocks of the session by state; the numbers are in the table");
    this.#over = svg("svg", { class: "over" });
    this.#words = el("p", { class: "no-data muted", hidden: true });
    node.append(this.#over, this.#words, el("div", { class: "drag" }));
  }

  /** Whether any engine or gateway has spoken of the session. */
  get told() { const { session, kv } = this.#model(); return Boolean(session?.planes?.some((plane) => plane !== "kernel") || kv.turns.length || kv.decisions.length || kv.blocks.t.length); }

  draw() {
    const model = this.#model(), told = this.told;
    for (const panel of document.querySelectorAll(".panel.engine")) panel.hidden = !told;
    document.querySelector(".timeline").classList.toggle("with-engine", told);
    byId("engine-note").hidden = told || !model.session || !model.kv.loaded;
    if (!told) return;
    const view = this.#timeline.view;
    this.#turns(model, view);
    this.#blocks(model, view);
    this.#decisions(model, view);
  }

  #turns({ kv, nowUs }, view) {
    const timeline = this.#timeline, { left, rem } = margins(), right = left + timeline.width;
    const lanes = Math.max(1, ...kv.turns.map((turn) => turn.lane + 1));
    const height = Math.max(4, Math.min(1.5 * rem, 7 * rem / lanes)), gap = height > 10 ? 3 : 1;
    const root = svg("svg", { height: lanes * height + 4, role: "presentation" });
    for (let lane = 0; lane < lanes; lane++) root.append(svg("rect", { class: "track", x: left, width: timeline.width, y: 2 + lane * height, height: height - gap }));
    for (const turn of kv.turns) {
      if (begin(turn) > view[1] || turnEnd(turn, nowUs) < view[0]) continue;
      const y = 2 + turn.lane * height, group = svg("g", { class: `turn${turn.turn === this.selectedTurn ? " sel" : ""}${turn.failed ? " failed" : ""}` });
      let first = null, last = 0;
      for (const [phase, from, to] of phases(turn, nowUs)) {
        const x = Math.max(left, timeline.x(from, view)), end = Math.min(right, timeline.x(to, view));
        if (end < left || x > right) continue;
        const bar = svg("rect", { class: phase, x, y, width: Math.max(1, end - x), height: height - gap });
        bar.dataset.turn = turn.turn;
        group.append(bar);
        first ??= x; last = Math.max(x + 1, end);
      }
      if (first !== null) group.append(svg("rect", { class: "frame", x: first, y, width: Math.max(1, last - first), height: height - gap }));
      root.append(group);
    }
    byId("turns").replaceChildren(root);
    byId("turns").setAttribute("aria-label", `${integer(kv.turns.length)} turns on the time axis; their figures are in the table`);
  }

  #blocks(model, view) {
    const { kv, endUs } = model, { t, states } = kv.blocks;
    const layers = STATES.filter(([state]) => states[state]?.some((value) => value > 0)).map(([state, , variable]) => ({ key: state, colour: variable, values: states[state] }));
    const empty = kv.loaded && !layers.length;
    this.#words.hidden = !empty;
    setText(this.#words, "the engine told nothing of this session's blocks: only the gateway saw it, or the engine runs without the plugin");
    const max = Math.max(4, layers.length ? greatest(stacked(layers).at(-1)) : 0) * 1.12;
    const { ticks } = niceTicks(max, 3);
    if (!byId("kv").hidden) {
      this.#chart.draw({ fromUs: view[0], toUs: view[1], t, endUs: Math.min(view[1], endUs), layers, mode: "stack", yMax: max, yTicks: !layers.length ? [] : ticks.map((value) => ({ value, text: integer(value) })) });
      const now = model.session?.kv;
      this.#chart.describe(`KV blocks of the session: ${now ? STATES.filter(([state]) => now.blocks[state]).map(([state, words]) => `${now.blocks[state]} ${words}`).join(", ") || "none" : "unknown"}; the numbers are in the table`);
    }
    this.#marks(model, view);
  }

  // What nobody decided: evictions, pins that ran out, blocks brought back.
  #marks({ kv }, view) {
    const { pad, rem } = margins(), nodes = [];
    let lastX = -Infinity, lastSign = "";
    for (const moved of kv.transitions) {
      const mark = MARKED[moved.cause];
      if (!mark || moved.t_us < view[0] || moved.t_us > view[1]) continue;
      const x = this.#timeline.x(moved.t_us, view);
      if (mark === lastSign && x - lastX < NEAR_PX) continue;
      lastX = x; lastSign = mark;
      nodes.push(svg("text", { x, y: pad + 0.8 * rem, "text-anchor": "middle", class: `kv-mark ${moved.cause}` }, mark));
    }
    this.#over.replaceChildren(...nodes);
  }

  #decisions({ kv }, view) {
    const timeline = this.#timeline, { left, rem } = margins();
    const height = 1.5 * rem, root = svg("svg", { height, role: "presentation" }, svg("rect", { class: "track", x: left, width: timeline.width, y: 2, height: height - 4 }));
    let lastX = -Infinity, lastAction = "";
    for (const decision of kv.decisions) {
      if (decision.t_us < view[0] || decision.t_us > view[1]) continue;
      const x = timeline.x(decision.t_us, view), chosen = decision.ord === this.selectedDecision, kind = `${decision.action}${decision.enforced}`;
      // Marks of one kind that would lie on each other are drawn once.
      if (!chosen && kind === lastAction && x - lastX < SHORT_PX) continue;
      lastX = x; lastAction = kind;
      const sign = actionSign(decision.action, decision.enforced, 0.42 * rem);
      const group = svg("g", { transform: `translate(${x} ${height / 2})`, class: chosen ? "sel" : "" }, sign, svg("title", {}, decisionWords(decision)));
      sign.dataset.decision = decision.ord;
      root.append(group);
    }
    byId("decisions").replaceChildren(root);
  }

  /** What is marked near a time over the blocks, in words; "" when nothing is. */
  marked(us) {
    const { kv } = this.#model(), x = this.#timeline.x(us);
    const moved = kv.transitions.filter((one) => MARKED[one.cause] && Math.abs(this.#timeline.x(one.t_us) - x) <= NEAR_PX).at(-1);
    return moved ? movedWords(moved) : "";
  }

  /** The decision nearest to a time, within a few pixels. */
  near(us) {
    const { kv } = this.#model(), x = this.#timeline.x(us);
    let best = null, distance = NEAR_PX * 2;
    for (const decision of kv.decisions) {
      const away = Math.abs(this.#timeline.x(decision.t_us) - x);
      if (away < distance) { best = decision; distance = away; }
    }
    return best;
  }

  /** Makers of the table twins by name. */
  get tables() { return { turns: turnsTable, kv: transitionsTable, decisions: decisionsTable }; }
}

function movedWords(moved) {
  const who = moved.victim_of ? ` for ${clean(moved.victim_of, 40)}` : "";
  return `${integer(moved.blocks)} blocks ${STATE_WORDS[moved.from] || ""} → ${STATE_WORDS[moved.to] || ""}: ${causeWords(moved.cause)}${who}`;
}

export function decisionWords(decision) {
  const result = decision.outcome ? `; served from ${servedWords(decision.outcome.served_from)}` : "";
  return `${decision.action}${decision.enforced ? "" : " (only observed)"} at ${boundaryWords(decision.boundary)}${decision.tool ? ` (${clean(decision.tool, 40)})` : ""}${result}`;
}

// A link of the page's own: the hash opens the panel, also by the keyboard.
const link = (hash, text) => el("a", { href: `#${hash}` }, text);
const count = (value) => [integer(value), known(value) ? value : null];
const span = (value) => [duration(value), known(value) ? value : null];

function turnsTable({ kv, startUs }, [from, to]) {
  const head = [{ label: "started", def: "turn.started_us" }, { label: "took", def: "turn.duration_us" }, { label: "queue", def: "turn.queue_us" }, { label: "prefill", def: "turn.prefill_us" }, { label: "decode", def: "turn.decode_us" },
    { label: "prompt", def: "turn.prompt_tokens" }, { label: "device", def: "turn.cached_device_tokens" }, { label: "host", def: "turn.cached_host_tokens" }, { label: "again", def: "turn.recomputed_tokens" }, { label: "answer", def: "turn.output_tokens" }, { label: "finish", text: true }];
  return figures("Engine turns", head, kv.turns.filter((turn) => begin(turn) <= to && (turn.ended_us ?? to) >= from).map((turn) => [[link(`turn=${encodeURIComponent(turn.turn)}`, elapsed(begin(turn) - startUs, 1e5)), begin(turn)], span(turn.ended_us === null ? null : turn.ended_us - begin(turn)), span(turn.queue_us), span(turn.prefill_us), span(turn.decode_us),
    count(turn.prompt_tokens), count(turn.cached_device_tokens), count(turn.cached_host_tokens), count(turn.recomputed_tokens), count(turn.output_tokens), [clean(turn.finish_reason || turn.state, 40), null]]));
}

function transitionsTable({ kv, startUs }, [from, to]) {
  const head = [{ label: "time", def: "axis.time_us" }, { label: "blocks", def: "kv.moved_blocks" }, { label: "from", text: true }, { label: "to", text: true }, { label: "why", text: true }, { label: "for", text: true }];
  return figures("KV blocks that changed their state", head, kv.transitions.filter((moved) => moved.t_us >= from && moved.t_us <= to).slice(-2000).map((moved) => [[elapsed(moved.t_us - startUs, 1e4), moved.t_us], count(moved.blocks), [STATE_WORDS[moved.from] || "", null], [STATE_WORDS[moved.to] || "", null], [causeWords(moved.cause), null], [clean(moved.victim_of || "", 60), null]]));
}

function decisionsTable({ kv, startUs }, [from, to]) {
  const head = [{ label: "time", def: "decision.t_us" }, { label: "action", text: true, def: "decision.action" }, { label: "at", text: true, def: "decision.boundary" }, { label: "tool", text: true, def: "decision.tool" }, { label: "blocks", def: "decision.blocks" }, { label: "margin", def: "decision.margin_s" }, { label: "came back after", def: "outcome.gap_us" }, { label: "served from", text: true, def: "outcome.served_from" }, { label: "regret", def: "outcome.regret_s" }];
  return figures("Decisions", head, kv.decisions.filter((one) => one.t_us >= from && one.t_us <= to).map((one) => [[link(`decision=${one.ord}`, elapsed(one.t_us - startUs, 1e5)), one.t_us], [`${one.action}${one.enforced ? "" : " (observed)"}`, null], [boundaryWords(one.boundary), null], [clean(one.tool || "", 40), null], count(one.blocks), [seconds(one.margin_s), one.margin_s],
    span(one.outcome?.gap_us), [one.outcome ? clean(one.outcome.served_from, 20) : "", null], [seconds(one.outcome?.regret_s), one.outcome?.regret_s ?? null]]));
}

export const PHASES = [["queue", "queue"], ["prefill", "prefill"], ["decode", "decode"]];
export const ACTION_NAMES = Object.keys(ACTIONS);
