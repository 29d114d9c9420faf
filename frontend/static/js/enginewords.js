// The engine plane in words, signs and colours: states of KV blocks, actions, causes, boundaries.

import { clean, el, integer, known, svg, UNKNOWN } from "./format.js";

/** States of a block, bottom of the area first: [key, words, CSS variable, definition]. */
export const STATES = [
  ["device_active", "active", "--kv-active", "kv.device_active"], ["device_pinned", "pinned", "--kv-pinned", "kv.device_pinned"], ["device_cached", "cached", "--kv-cached", "kv.device_cached"],
  ["device_and_host", "device and host", "--kv-both", "kv.device_and_host"], ["host", "host", "--kv-host", "kv.host"],
];
export const STATE_WORDS = { ...Object.fromEntries(STATES.map(([key, words]) => [key, words])), gone: "gone" };

/** Actions: [name, CSS variable, path of its sign around 0 0 for a half size of 1]. */
export const ACTIONS = {
  KEEP: ["--kv-cached", "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z"],
  PIN: ["--kv-pinned", "M-.9 -.9h1.8v1.8h-1.8z"],
  OFFLOAD: ["--kv-host", "M-1 -.8h2l-1 1.7z"],
  DROP: ["--muted", "M0 -1.1l1.1 1.1l-1.1 1.1l-1.1 -1.1z"],
};

/** The sign of an action; hollow when it was not done. */
export function actionSign(action, enforced, size = 5) {
  const [variable, d] = ACTIONS[action] || ACTIONS.KEEP;
  return svg("path", { d, transform: `scale(${size})`, class: `decision-sign${enforced ? "" : " hollow"}`, style: `--sign: var(${variable})` });
}

export function actionIcon(action, enforced) {
  return svg("svg", { class: "icon", viewBox: "-7 -7 14 14", "aria-hidden": "true" }, actionSign(action, enforced));
}

export const BOUNDARIES = { call: "a tool call", turn_end: "the end of a turn", pressure: "pressure", ttl: "a pin that ran out", compaction: "a compaction", terminal: "the end of the session" };
export function boundaryWords(boundary) { return BOUNDARIES[boundary] || clean(boundary, 40); }

const OVERRIDES = { request: "the request itself (vllm_xargs)", cap: "the cap on pins", "no-tier": "no host tier to offload to", "host-full": "the host tier is smaller than the session", command: "a command" };
export function overrideWords(by) { return OVERRIDES[by] || clean(by, 60); }

export const CAUSES = {
  computed: "computed", admitted: "taken by a request", restored: "brought back from the host", finished: "the request ended", decision: "as decided", lru: "others took the space", ttl: "the pin ran out",
  pressure: "a request could not run otherwise", preemption: "thrown out of the batch", superseded: "not in the next prompt", reset: "the cache was emptied", command: "by command", aborted: "the request was aborted",
  host_full: "the host tier is full", host_evicted: "left the host tier", failed: "a copy failed", restart: "the engine restarted", forgotten: "not remembered any more",
};
export function causeWords(cause) { return CAUSES[cause] || clean(cause, 40); }

/** Causes that are marked over the area: what nobody decided. [sign, words] */
export const MARKED = { lru: "✕", pressure: "✕", preemption: "✕", reset: "✕", restart: "✕", host_evicted: "✕", host_full: "✕", ttl: "◷", restored: "▲" };

const SERVED = { device: "the device", host: "the host tier", recompute: "nowhere: it was computed again", mixed: "several places", none: "nothing could be used again" };
export function servedWords(where) { return SERVED[where] || clean(where, 40); }

export const MODES = { off: "off", observe: "observe: decides, touches nothing", enforce: "enforce" };

/** Seconds with three significant digits, for costs that are small and may be negative. */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.000995) return `${Number((value * 1e6).toPrecision(3))} µs`;
  if (size < 0.0995) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number(value.toPrecision(3))} s`;
}

export function probability(value) { return known(value) ? `${(value * 100).toFixed(value > 0 && value < 0.01 ? 1 : 0)} %` : UNKNOWN; }

/** "61 / 37 / 2 %": shares of a sum; unknown when there is nothing. */
export function shares(values) {
  const sum = values.reduce((total, value) => total + (value || 0), 0);
  return sum ? `${values.map((value) => Math.round((value || 0) / sum * 100)).join(" / ")} %` : UNKNOWN;
}

/** Where a session's blocks are, as a little bar with words. */
export function blocksBar(kv) {
  const total = kv?.total_blocks || 0;
  const bar = el("span", { class: "kv-bar", "aria-hidden": "true" });
  for (const [state, , variable] of STATES) if (kv?.blocks?.[state] > 0) bar.append(el("span", { style: `width: ${kv.blocks[state] / total * 100}%; background: var(${variable})` }));
  return bar;
}

export function blocksWords(kv) {
  if (!kv || !kv.total_blocks) return kv ? "no blocks" : "";
  const parts = STATES.filter(([state]) => kv.blocks[state] > 0).map(([state, words]) => `${integer(kv.blocks[state])} ${words}`);
  return parts.join(", ");
}

export function stateLegend(states = STATES) {
  return states.map(([, words, variable, def]) => el("span", { def }, el("span", { class: "swatch", style: `background: var(${variable})` }), words));
}

export function actionLegend() {
  return Object.keys(ACTIONS).map((action) => el("span", {}, actionIcon(action, true), action)).concat(el("span", {}, actionIcon("PIN", false), "hollow: only observed"));
}
