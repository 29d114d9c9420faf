// An event in words. Names are text nodes; numbers carry their definition.

import { path } from "./api.js";
import { actionIcon, boundaryWords, MODES, overrideWords } from "./enginewords.js";
import { bytes, clean, commandLabel, duration, el, exitWords, integer, known, swatch, timeOfDay } from "./format.js";

/** The kind that the feed's filter knows. */
export function kind(type) {
  if (type.startsWith("call.")) return "call";
  if (type === "mem.burst") return "burst";
  if (type === "mem.event") return "oom";
  if (type.startsWith("session.")) return "session";
  if (type.startsWith("kv.") || type.startsWith("engine.")) return "engine";
  return type === "loss" ? "loss" : "other";
}

const SIGNS = { call: "▸", burst: "▼", oom: "✕", session: "●", engine: "◆", loss: "⌁", other: "·" };

export function sign(event) { return event.type === "call.end" ? "▪" : event.type === "session.end" ? (event.body?.lost ? "✕" : "○") : SIGNS[kind(event.type)]; }

export function trouble(event) {
  return event.type === "loss" || (event.type === "session.end" && Boolean(event.body.lost)) || event.type === "engine.mode" || (event.type === "engine.end" && event.body.clean === false) || (event.type === "mem.event" && Boolean(event.body.oom_kill || event.body.oom)) || Boolean(event.body.oom);
}

function number(def, text) { return el("span", { def }, text); }

/** Nodes that say what happened, without time and place. */
export function words(event) {
  const body = event.body || {};
  switch (event.type) {
    case "session.start": return ["started ", el("span", { text: body.agent || "" })];
    case "session.end": return body.lost ? ["lost: its end was not seen"] : ["ended: ", el("span", { text: body.reason || "finished" }), ...exit(body)];
    case "call.start": return [swatch(body.category), el("span", { text: commandLabel(body, 160) })];
    case "call.end": {
      const out = [body.lost ? "end not seen" : "ended"];
      if (known(body.duration_us)) out.push(" after ", number("call.duration_us", duration(body.duration_us)));
      if (known(body.peak_bytes)) out.push(", peak ", number("call.peak_bytes", bytes(body.peak_bytes)));
      return [...out, ...exit(body)];
    }
    case "mem.burst": return ["burst ", number("burst.grown_bytes", `+${bytes(body.grown_bytes)}`), " in ", number("burst.window_us", duration(body.window_us)), ", now ", number("burst.total_bytes", bytes(body.total_bytes))];
    case "mem.event": return memoryWords(body);
    case "loss": return lossWords(body);
    case "note": return [el("span", { text: clean(body.text, 300) })];
    case "action": return [el("span", { text: `${body.verb} ${body.target}${body.enforced ? "" : " (observed only)"} ${body.reason || ""}` })];
    case "kv.decision": return [actionIcon(body.action, body.enforced), " ", el("span", { text: decisionWords(body) })];
    case "engine.start": return [el("span", { text: `engine ${clean(body.engine, 60)} started: ${clean(body.name || "vllm", 20)} ${clean(body.version, 20)}${body.model ? `, ${clean(body.model, 60)}` : ""}` })];
    case "engine.end": return [el("span", { text: `engine ${clean(body.engine, 60)} ${body.clean === false ? "is gone: it did not end by itself" : "ended"}` })];
    case "engine.mode": return [el("span", { text: `engine ${clean(body.engine, 60)} is now ${MODES[body.mode] || clean(body.mode, 20)}: ${clean(body.reason, 200)}` })];
    case "capability": return [el("span", { text: `${body.name} ${body.available ? "available" : "not available"}` })];
    default: return [el("span", { text: event.type })];
  }
}

function decisionWords(body) {
  const by = body.overridden_by ? `, overridden by ${overrideWords(body.overridden_by)}` : "";
  return `${body.action}${body.enforced ? "" : " (only observed)"} at ${boundaryWords(body.boundary)}${body.tool ? ` ${clean(body.tool, 40)}` : ""}${by}`;
}

function exit(body) {
  const failed = body.oom || known(body.signal) || (known(body.exit_code) && body.exit_code !== 0);
  return failed ? [", exit ", number(known(body.signal) ? "call.signal" : "call.exit_code", exitWords({ ...body, state: "ended" }))] : [];
}

/** A loss that counts nothing is a stretch of time in which nobody was listening. */
function lossWords({ where, of, count }) {
  if (count) return [number("lost.count", integer(count)), " lost in ", el("span", { text: clean([where, of].filter(Boolean).join(", "), 120) })];
  if (where === "link") return ["collector ", el("span", { text: clean(of, 80) }), " is gone"];
  return [el("span", { text: clean(of || where, 120) }), ": a gap of unknown content"];
}

function memoryWords(body) {
  const out = [];
  for (const [key, label] of [["oom_kill", "killed by OOM"], ["oom", "out of memory"], ["max", "hard limit hit"], ["high", "soft limit hit"]]) {
    if (body[key]) out.push(out.length ? ", " : "", label, " ", number(key.startsWith("oom") ? "session.ooms" : "event.type", `×${integer(body[key])}`));
  }
  return out.length ? out : ["memory event"];
}

/** Links to where it happened. */
export function place(event) {
  if (!event.session) return [];
  const base = path("sessions", event.session);
  const out = [el("a", { href: base, text: event.session }), " "];
  if (event.call) out.push(el("a", { href: `${base}#call=${encodeURIComponent(event.call)}`, text: event.call }), " ");
  return out;
}

/** One line of the feed. */
export function line(event) {
  return el("li", { class: trouble(event) ? "trouble" : null },
    el("time", { def: "event.t_us" }, timeOfDay(event.t_us)), el("span", { "aria-hidden": "true" }, sign(event)), el("span", {}, ...place(event), ...words(event)));
}
