// The panel of one call: its figures, processes and neighbours.

import { bytes, clean, commandLabel, duration, el, elapsed, exitWords, integer, known, rate, swatch, UNKNOWN } from "./format.js";

const BOUNDARIES = {
  fork: "fork by the runtime", exec: "tidegate exec", wrapper: "tidegate exec or shell shim", hook: "the agent's hook", gateway: "the gateway", import: "an imported trace",
};

function fact(label, def, value) {
  return [el("dt", {}, el("a", { href: `/definitions#${def}`, "data-def": def }, label)), el("dd", { def }, value)];
}

/** What stands in place of a call when none is chosen. */
export function drawNothing(node, calls) {
  node.replaceChildren(el("h2", {}, "No call selected"), el("p", { class: "muted" }, calls ? "Click a bar, or move with the arrow keys and press Enter." : "This session has made no tool call yet."));
}

/** Fill `node`. detail = {call, processes, neighbours}; the latter two are missing until they are loaded. */
export function drawCall(node, detail, { startUs, nowUs, select, close }) {
  const { call, processes, neighbours } = detail;
  const took = call.duration_us ?? (call.state === "running" ? nowUs - call.started_us : null);
  const failed = call.oom || known(call.signal) || (known(call.exit_code) && call.exit_code !== 0) || call.state === "lost";
  const exitDef = known(call.signal) ? "call.signal" : "call.exit_code";
  const exitValue = el("dd", { def: exitDef, class: failed ? "trouble" : null }, exitWords(call));
  const head = el("header", { class: "card-head" },
    el("h2", {}, "Call ", el("span", { def: "call.ordinal" }, integer(call.ordinal)), " · ", el("span", { text: clean(call.tool, 60) }), " · ", swatch(call.category), call.category),
    el("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: close }, "✕"));
  const facts = el("dl", { class: "facts" },
    ...fact("started / took", "call.duration_us", `${elapsed(call.started_us - startUs, 1e5)} / ${duration(took)}`),
    ...fact("memory now", "call.bytes", bytes(call.state === "running" ? call.bytes : 0)),
    ...fact("peak", "call.peak_bytes", bytes(call.peak_bytes)),
    ...fact("spike over its start", "call.spike_bytes", known(call.spike_bytes) ? `+${bytes(call.spike_bytes)}` : UNKNOWN),
    ...fact("steepest rise", "call.rise_bytes_per_s", rate(call.rise_bytes_per_s)),
    ...fact("kept after the end", "call.kept_bytes", bytes(call.kept_bytes)),
    ...fact("charged peak", "call.charged_peak_bytes", bytes(call.charged_peak_bytes)),
    ...fact("CPU / waiting to run", "call.cpu_us", `${duration(call.cpu_us)} / ${duration(call.wait_us)}`),
    ...fact("memory stall", "call.stall_us", duration(call.stall_us)),
    ...fact("bursts", "call.bursts", integer(call.bursts)),
    ...fact("processes", "call.processes", `${integer(call.processes)}, ${call.left_behind ? `${integer(call.left_behind)} left behind` : "none left behind"}`),
    ...fact("exit", exitDef, "").slice(0, 1), exitValue,
    ...(call.hint ? [el("dt", {}, el("a", { href: "/definitions#call.hint_bytes", def: "call.hint_bytes" }, "hint")), el("dd", {}, el("span", { text: clean(call.hint, 80) }), known(call.hint_bytes) ? el("span", { def: "call.hint_bytes" }, ` (${bytes(call.hint_bytes)})`) : "")] : []),
    el("dt", {}, "seen by"), el("dd", {}, BOUNDARIES[call.boundary] || clean(call.boundary, 40)),
    ...agentsWord(call),
    ...(known(call.pid) ? fact("first process", "call.pid", String(call.pid)) : []));
  node.replaceChildren(head, el("pre", { class: "cmd", "data-text": true }, clean(call.command || call.tool, 4096)), facts,
    ...processTree(processes, startUs), ...links(neighbours, select));
}

// What the agent's hooks call it, and how surely that is this call.
function agentsWord(call) {
  if (!call.agent_tool) return [];
  const name = call.agent_call_id ? `${clean(call.agent_tool, 60)} (${clean(call.agent_call_id, 40)})` : clean(call.agent_tool, 60);
  const many = call.match_position > 1 ? `, program ${integer(call.match_position)}` : "";
  const how = call.match_confidence === "none" ? clean(call.match_how, 60) : `matched by ${clean(call.match_how, 80)}${many}: ${clean(call.match_confidence, 10)}`;
  return [...fact("agent's tool", "call.agent_tool", name), ...fact("match", "call.match_confidence", how),
    ...(known(call.result_chars) ? fact("result", "call.result_chars", `${integer(call.result_chars)} characters${call.agent_failed ? ", failed" : ""}`) : [])];
}

function processTree(processes, startUs) {
  if (!processes?.length) return [];
  const byPid = new Map(processes.map((one) => [one.pid, one]));
  const depth = (one, seen = new Set()) => {
    let level = 0;
    for (let at = byPid.get(one.ppid); at && !seen.has(at.pid) && level < 12; at = byPid.get(at.ppid)) { seen.add(at.pid); level++; }
    return level;
  };
  const list = el("ul", { class: "tree" });
  for (const one of ordered(processes, byPid)) {
    const ended = one.left_behind ? "left behind" : exitWords({ ...one, state: one.ended_us ? "ended" : "running", oom: false });
    list.append(el("li", {},
      el("span", {}, " ".repeat(2 * depth(one)), el("span", { text: clean(one.comm, 40) || "?" }), " ", el("small", { class: "muted", def: "process.pid" }, String(one.pid))),
      el("span", { def: "process.hiwater_bytes" }, bytes(one.hiwater_bytes)),
      el("span", { def: one.left_behind ? "process.left_behind" : "process.exit_code", class: one.left_behind ? "trouble" : "muted", title: `started at ${elapsed((one.started_us || startUs) - startUs, 1e5)}` }, ended)));
  }
  return [el("h3", {}, "Processes ", el("small", {}, "highest resident memory, exit")), list];
}

// Parents before their children, in the order of their starts.
function ordered(processes, byPid) {
  const children = new Map();
  const roots = [];
  for (const one of [...processes].sort((a, b) => (a.started_us || 0) - (b.started_us || 0))) {
    const parent = byPid.get(one.ppid);
    if (parent && parent !== one) children.set(parent, [...(children.get(parent) || []), one]); else roots.push(one);
  }
  const out = [], seen = new Set();
  const walk = (one) => { if (seen.has(one)) return; seen.add(one); out.push(one); (children.get(one) || []).forEach(walk); };
  roots.forEach(walk);
  processes.forEach(walk);
  return out;
}

function links(neighbours, select) {
  if (!neighbours) return [];
  const list = el("ul", { class: "links" });
  const add = (label, call) => {
    if (!call) return;
    const link = el("a", { href: `#call=${encodeURIComponent(call.id)}` }, el("span", { def: "call.ordinal" }, integer(call.ordinal)), " ", el("span", { text: commandLabel(call, 60) }));
    link.addEventListener("click", (event) => { event.preventDefault(); select(call.id); });
    list.append(el("li", {}, `${label} `, swatch(call.category), link));
  };
  add("previous", neighbours.previous);
  add("next", neighbours.next);
  for (const call of (neighbours.overlapping || []).slice(0, 20)) add("overlaps", call);
  return list.childElementCount ? [el("h3", {}, "Neighbours"), list] : [];
}
