// The numbers above a session's timeline, and what its colours and signs mean.

import { actionLegend, shares, STATES, stateLegend } from "./enginewords.js";
import { bytesPair, CATEGORIES, clean, duration, el, elapsed, exitWords, integer, known, percent, setText, stateWords, swatch, UNKNOWN } from "./format.js";
import { bursts, ooms } from "./measured.js";
import { PRESSURE } from "./panels.js";

let cells = null;

/** How long it has run; unknown where its start is. */
function length(s, now) { return known(s.started_us) ? Math.max(0, (s.ended_us ?? now) - s.started_us) : null; }
function lengthWords(us) { return known(us) && us >= 6e7 ? elapsed(us) : duration(us); }

/** Where its prompts' tokens came from; nothing where no engine has told. */
function returned({ turns }) {
  const parts = [turns.cached_device_tokens, turns.cached_host_tokens, turns.recomputed_tokens];
  return turns.total && parts.some(Boolean) ? shares(parts) : "";
}

/** Draw the numbers of a session as it stands at `now`. */
export function drawStrip(node, session, now) {
  const spans = [
    ["session", "session.id", (s) => clean(s.title || s.id, 60), true], ["state", "session.exit_code", (s) => s.state === "ended" && (s.exit_code || known(s.signal)) ? `○ ended, exit ${exitWords({ ...s, oom: false })}` : stateWords(s.state)],
    ["priority", "session.priority", (s) => s.planes.includes("kernel") ? s.priority : ""],
    ["duration", "session.duration_us", (s) => lengthWords(length(s, now))],
    ["runtime / peak", "session.peak_bytes", (s) => s.planes.includes("kernel") ? bytesPair(s.runtime_bytes, s.peak_bytes) : ""],
    ["tool time (union)", "session.tool_time_ratio", (s) => s.planes.includes("kernel") ? percent(s.tool_time_us / Math.max(1, length(s, now) ?? NaN)) : ""],
    ["bursts in calls", "session.bursts_in_calls", (s) => s.planes.includes("kernel") ? (known(bursts(s)) ? `${integer(s.bursts_in_calls)} of ${integer(s.bursts)}` : UNKNOWN) : ""],
    ["calls", "session.calls_total", (s) => integer(s.calls_total)],
    ["CPU", "session.cpu_us", (s) => s.planes.includes("kernel") ? duration(s.cpu_us) : ""], ["waits", "session.wait_us", (s) => s.planes.includes("kernel") ? duration(s.wait_us) : ""], ["memory stall", "session.stall_us", (s) => (known(s.stall_us) ? duration(s.stall_us) : "")],
    ["turns", "session.turns", (s) => s.turns.total ? integer(s.turns.total) : ""],
    ["device / host / again", "session.returned_tokens", returned],
    ["turns failed", "session.turn_errors", (s) => s.turns.errors ? integer(s.turns.errors) : ""],
    ["OOM", "session.ooms", (s) => (known(ooms(s)) && !s.ooms ? "" : integer(ooms(s)))], ["left behind", "session.left_behind", (s) => s.left_behind ? integer(s.left_behind) : ""],
  ];
  if (!cells) {
    cells = spans.map(([label, def, , text]) => el("div", { def }, el("a", { class: "label", href: `/definitions#${def}` }, label), el("b", { "data-text": text })));
    node.replaceChildren(...cells);
  }
  spans.forEach(([label, , show], i) => {
    const words = show(session);
    setText(cells[i].lastChild, words);
    cells[i].hidden = words === "";
    if (label === "session") cells[i].lastChild.title = clean(session.id, 200);
    if (((label === "OOM" || label === "left behind" || label === "turns failed") && words !== UNKNOWN) || (label === "state" && words.includes("exit"))) cells[i].lastChild.classList.add("trouble");
  });
  document.title = `${clean(session.title || session.id, 60)} · Tidegate`;
}

let legendKeys = "";
/** Legends of the panels: of the categories and states that occur. */
export function drawLegends(calls, blocks) {
  const byId = (id) => document.getElementById(id);
  const used = new Set(calls.map((call) => (CATEGORIES.includes(call.category) ? call.category : "other")));
  const names = CATEGORIES.filter((name) => used.has(name)), both = Boolean(blocks.device_and_host?.some((value) => value > 0));
  const keys = [...names, both].join();
  if (keys === legendKeys) return;
  legendKeys = keys;
  byId("legend").replaceChildren(el("span", {}, el("span", { class: "swatch runtime" }), "runtime"), ...names.map((name) => el("span", {}, swatch(name), name)), el("span", {}, el("span", { class: "trouble" }, "▼ "), "burst"), el("span", {}, el("span", { class: "trouble" }, "✕ "), "OOM"));
  byId("turns-legend").replaceChildren(...["queue", "prefill", "decode"].map((phase) => el("span", { def: `turn.${phase}_us` }, el("span", { class: `swatch ${phase}` }), phase)));
  byId("kv-legend").replaceChildren(...stateLegend(STATES.filter(([state]) => state !== "device_and_host" || both)));
  byId("decisions-legend").replaceChildren(...actionLegend());
  byId("pressure-legend").replaceChildren(...PRESSURE.map(([key]) => el("span", {}, el("span", { class: `swatch p-${key}` }), key === "cpu" ? "CPU" : key === "io" ? "I/O" : key)));
}
