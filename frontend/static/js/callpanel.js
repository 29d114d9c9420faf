// The panel of one call: its figures, processes and neighbours.

import { bytes, clean, commandLabel, duration, el, elapsed, exitWords, integer, known, rate, swatch, UNKNOWN } from "./format.js";
import { bursts, sampled, why } from "./measured.js";

const BOUNDARIES = {
  fork: "fork by the runtime", exec: "tidegate exec", wrapper: "tidegate exec or shell shim", hook: "the agent's hook", gateway: "the gateway", import: "an imported trace",
};

const PROCESSES_SHOWN = 10;
// The call whose whole list is open: the panel is drawn anew each second.
let unfolded = null;

function fact(label, def, value) {
  return [el("dt", {}, el("a", { href: `/definitions#${def}`, "data-def": def }, label)), el("dd", { def }, value)];
}

/** What stands in place of a call when none is chosen. */
export function drawNothing(node, calls) {
  node.replaceChildren(el("h2", {}, "No call selected"), el("p", { class: "muted" }, calls ? "Click a bar. Or go to the bars with Tab, choose with the arrow keys and press Enter." : "This session has made no tool call yet."));
}

/** Fill `node`. detail = {call, processes, neighbours}; the latter two are missing until they are loaded. */
export function drawCall(node, detail, { session, startUs, nowUs, select, close }) {
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
    ...fact("memory now", "call.bytes", bytes(memoryNow(call, session))),
    ...fact("peak", "call.peak_bytes", bytes(call.peak_bytes)),
    ...fact("spike over its start", "call.spike_bytes", known(call.spike_bytes) ? `+${bytes(call.spike_bytes)}` : UNKNOWN),
    ...fact("steepest rise", "call.rise_bytes_per_s", rate(call.rise_bytes_per_s)),
    ...fact("kept after the end", "call.kept_bytes", bytes(call.kept_bytes)),
    ...fact("charged peak", "call.charged_peak_bytes", bytes(call.charged_peak_bytes)),
    ...fact("CPU / waiting to run", "call.cpu_us", `${duration(call.cpu_us)} / ${duration(call.wait_us)}`),
    ...fact("memory stall", "call.stall_us", duration(call.stall_us)),
    ...fact("bursts", "call.bursts", integer(bursts(session, call.bursts))),
    ...fact("processes", "call.processes", processWords(call)),
    ...fact("exit", exitDef, "").slice(0, 1), exitValue,
    ...(call.hint ? [el("dt", {}, el("a", { href: "/definitions#call.hint_bytes", def: "call.hint_bytes" }, "hint")), el("dd", {}, el("span", { text: clean(call.hint, 80) }), known(call.hint_bytes) ? el("span", { def: "call.hint_bytes" }, ` (${bytes(call.hint_bytes)})`) : "")] : []),
    el("dt", {}, "seen by"), el("dd", {}, BOUNDARIES[call.boundary] || clean(call.boundary, 40)),
    ...agentsWord(call),
    ...(known(call.pid) ? fact("first process", "call.pid", String(call.pid)) : []));
  node.replaceChildren(head, el("pre", { class: "cmd", "data-text": true }, clean(call.command || call.tool, 4096)), facts,
    ...processList(processes, startUs, call), ...links(neighbours, select));
}

// A call that has ended holds nothing, if it was measured at all.
function memoryNow(call, session) {
  if (call.state === "running") return call.bytes;
  return known(call.peak_bytes) || (sampled(session) && !why("memory.calls")) ? 0 : null;
}

function processWords({ processes, left_behind: left }) {
  if (!known(processes) && !left) return UNKNOWN;
  return `${integer(processes)}, ${left ? `${integer(left)} left behind` : "none left behind"}`;
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

// The biggest first: what a call is looked at for is who took the memory. The rest is folded, and counted.
function processList(processes, startUs, call) {
  if (!processes?.length) return [];
  const byPid = new Map(processes.map((one) => [one.pid, one]));
  const sorted = [...processes].sort((a, b) => (b.hiwater_bytes ?? -1) - (a.hiwater_bytes ?? -1) || (a.started_us ?? 0) - (b.started_us ?? 0));
  const row = (one) => {
    const ended = one.left_behind ? "left behind" : exitWords({ ...one, state: one.ended_us ? "ended" : "running", oom: false });
    return el("li", {},
      el("span", {}, el("span", { text: processName(one, byPid) }), " ", el("small", { class: "muted", def: "process.pid" }, String(one.pid))),
      el("span", { def: "process.hiwater_bytes" }, bytes(one.hiwater_bytes)),
      el("span", { def: one.left_behind ? "process.left_behind" : "process.exit_code", class: one.left_behind ? "trouble" : "muted", title: `started at ${elapsed((one.started_us || startUs) - startUs, 1e5)}` }, ended));
  };
  const list = (some) => el("ul", { class: "tree" }, ...some.map(row));
  const out = [el("h3", {}, "Processes ", el("small", {}, "highest resident memory, exit")), list(sorted.slice(0, PROCESSES_SHOWN))];
  const rest = sorted.slice(PROCESSES_SHOWN);
  if (rest.length) {
    const more = el("details", { open: unfolded === call.id }, el("summary", {}, el("span", { def: "call.processes" }, `${integer(rest.length)} more`)), list(rest));
    more.addEventListener("toggle", () => { if (more.isConnected) unfolded = more.open ? call.id : null; });
    out.push(more);
  }
  const beyond = (call.processes ?? 0) - processes.length;
  if (beyond > 0) out.push(el("p", { class: "muted" }, el("span", { def: "call.processes" }, integer(beyond)), " more are not listed"));
  return out;
}

// A process that never called exec has no name of its own yet: it is a fork of the nearest one that has.
function processName(one, byPid) {
  if (one.comm) return clean(one.comm, 40);
  const seen = new Set([one.pid]);
  for (let at = byPid.get(one.ppid); at && !seen.has(at.pid); at = byPid.get(at.ppid)) {
    if (at.comm) return `fork of ${clean(at.comm, 40)}`;
    seen.add(at.pid);
  }
  return "fork, no exec seen";
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
