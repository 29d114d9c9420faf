// The panel of one decision: what it looked at, what each action would have cost, why, and what came of it.

import { ACTIONS, actionIcon, boundaryWords, overrideWords, probability, seconds, servedWords } from "./enginewords.js";
import { clean, dateTime, duration, el, elapsed, integer, known, timeOfDay, UNKNOWN } from "./format.js";

const COSTS = { KEEP: "keep_s", PIN: "pin_s", OFFLOAD: "offload_s", DROP: "drop_s" };
const CANNOT = { OFFLOAD: "no host tier, or no room in it", PIN: "no room under the cap", DROP: "only of a session that ends" };
const BAR = 100;

function fact(label, def, ...value) { return [el("dt", {}, el("a", { href: `/definitions#${def}`, "data-def": def }, label)), el("dd", { def }, ...value)]; }

/** Inputs in words: [key, label, how to write it]. */
const INPUTS = [
  ["reusable_tokens", "tokens to use again", integer], ["unsaved_tokens", "of them not on the host", integer], ["p_return", "comes back", probability], ["p_evict", "evicted before, if kept", probability], ["p_host", "still on the host then", probability],
  ["rebuild_s", "rebuild", seconds], ["restore_s", "restore", seconds], ["save_s", "save", seconds], ["free_value_s", "worth of the space", seconds], ["queue_s", "wait of others", seconds], ["tool_samples", "times this tool was seen", integer],
];

/** Fill `node`. `row` is what is known at once, `detail` the whole decision, null until it is loaded. */
export function drawDecision(node, given, detail, { startUs = null, close = null, link = null } = {}) {
  const row = { ...given, ...(detail || {}) };
  const when = startUs === null ? timeOfDay(row.t_us) : elapsed(row.t_us - startUs, 1e5);
  const head = el("header", { class: "card-head" },
    el("h2", {}, "Decision at ", el("span", { def: "decision.t_us", title: dateTime(row.t_us) }, when), ": ", actionIcon(row.action, row.enforced), " ", el("span", { def: "decision.action" }, row.action)),
    ...(close ? [el("button", { type: "button", class: "quiet", "aria-label": "Close the decision", onclick: close }, "✕")] : []));
  const facts = el("dl", { class: "facts" },
    ...fact("at", "decision.boundary", boundaryWords(row.boundary)),
    ...(row.tool ? fact("tool", "decision.tool", el("span", { text: clean(row.tool, 60) })) : []),
    ...fact("done", "decision.enforced", doneWords(row)),
    ...(row.overridden_by ? fact("overridden by", "decision.overridden_by", overrideWords(row.overridden_by)) : []),
    ...(link ? fact("session", "session.id", link) : []),
    ...(known(row.ttl_s) ? fact("pin lasts", "decision.ttl_s", seconds(row.ttl_s)) : []));
  node.replaceChildren(head, facts, ...(detail ? bars(row, detail) : [el("p", { class: "muted" }, "…")]), ...(detail ? why(row, detail) : []), ...outcome(row.outcome, row.boundary), ...(detail ? inputs(detail) : []));
}

function doneWords(row) {
  const blocks = known(row.blocks) ? `${integer(row.blocks)} blocks` : "";
  if (!row.enforced) return `only observed${blocks ? `, ${blocks}` : ""}`;
  return known(row.done_blocks) && row.done_blocks < row.blocks ? `${integer(row.done_blocks)} of ${blocks}` : blocks || "yes";
}

// Costs may be negative (to free the space can be worth more than a rebuild), so the bars stand on a zero line.
function bars(row, { costs, inputs }) {
  const values = Object.entries(COSTS).filter(([action]) => action !== "DROP" || inputs?.terminal !== false).map(([, key]) => costs[key]).filter(known);
  const low = Math.min(0, ...values), high = Math.max(0, ...values), width = high - low || 1;
  const rows = Object.keys(ACTIONS).map((action) => {
    const value = action === "DROP" && inputs?.terminal === false ? null : costs[COSTS[action]];
    const line = el("li", { class: action === row.action ? "chosen" : null }, el("span", {}, action));
    if (!known(value)) { line.append(el("span", { class: "muted" }, CANNOT[action] || "cannot be done here"), el("span", { def: "decision.cost_s" }, UNKNOWN)); return line; }
    const from = (Math.min(0, value) - low) / width * BAR, size = Math.max(0.6, Math.abs(value) / width * BAR);
    line.append(el("span", { class: "cost", "aria-hidden": "true" }, el("i", { class: "zero", style: `left: ${-low / width * BAR}%` }), el("i", { style: `left: ${from}%; width: ${size}%; background: var(${ACTIONS[action][0]})` })), el("span", { def: "decision.cost_s" }, seconds(value)));
    return line;
  });
  return [el("h3", {}, "Expected delay ", el("small", {}, "of each action; the least is taken")), el("ul", { class: "costs" }, ...rows)];
}

function why(row, detail) {
  const out = [];
  if (detail.words) out.push(el("p", { class: "words", "data-text": true }, clean(detail.words, 600)));
  if (row.overridden_by && detail.rule_action && detail.rule_action !== row.action) out.push(el("p", {}, `The rule alone would have chosen ${detail.rule_action}.`));
  out.push(el("dl", { class: "facts" }, ...fact("rule", "decision.rule", clean(row.rule, 30) || UNKNOWN), ...fact("margin", "decision.margin_s", seconds(row.margin_s)),
    ...(detail.parity === false ? fact("taken again", "decision.parity", el("span", { class: "trouble" }, "comes out otherwise")) : detail.parity ? fact("taken again", "decision.parity", "the same") : [])));
  return out;
}

function outcome(result, boundary) {
  if (!result) return [el("h3", {}, "What came of it"), el("p", { class: "muted" }, boundary === "terminal" ? "Nobody waits for it: the session had said that it ends." : "Not known: the session had not come back.")];
  if (!result.returned) return [el("h3", {}, "What came of it"), el("p", {}, "The session did not come back, as far as anybody waited: ", el("span", { def: "outcome.gap_us" }, duration(result.gap_us)), ".")];
  return [el("h3", {}, "What came of it"), el("dl", { class: "facts" },
    ...fact("came back after", "outcome.gap_us", duration(result.gap_us)), ...fact("served from", "outcome.served_from", servedWords(result.served_from)),
    ...fact("device / host / again", "outcome.tokens", [result.cached_device_tokens, result.cached_host_tokens, result.recomputed_tokens].map(integer).join(" / ")),
    ...(known(result.retrieval_us) ? fact("took", "outcome.retrieval_us", duration(result.retrieval_us)) : []),
    ...fact("best in hindsight", "outcome.hindsight_best", result.hindsight_best || UNKNOWN), ...fact("regret", "outcome.regret_s", seconds(result.regret_s)))];
}

function inputs({ inputs: given, predicted }) {
  const rows = INPUTS.filter(([key]) => known(given?.[key])).flatMap(([key, label, show]) => fact(label, `input.${key}`, show(given[key])));
  if (known(predicted?.p50_s)) rows.push(...fact("expected away", "input.predicted", `${seconds(predicted.p50_s)}, at most ${seconds(predicted.p90_s)} in 9 of 10`));
  const details = el("details", { class: "inputs" }, el("summary", {}, "What it looked at"), el("dl", { class: "facts" }, ...rows));
  details.open = opened;
  details.addEventListener("toggle", () => { if (details.isConnected) opened = details.open; });
  return rows.length ? [details] : [];
}

// The panel is drawn anew while it is looked at: what was opened stays open.
let opened = false;
