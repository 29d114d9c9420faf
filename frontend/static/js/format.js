// Numbers and names as text, and DOM helpers that never parse HTML. Units: bytes are decimal (1 MB = 1,000,000 bytes).

export const UNKNOWN = "–";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function integer(value) { return known(value) ? grouped.format(value) : UNKNOWN; }
export function known(value) { return value !== null && value !== undefined && !Number.isNaN(value); }

/** Bytes in MB below 10 GB and GB above; one decimal where it tells something. */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e10) return `${(value / 1e9).toFixed(1)} GB`;
  if (size >= 1e7) return `${grouped.format(value / 1e6)} MB`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} MB`;
  if (size >= 1e3) return `${grouped.format(value / 1e3)} kB`;
  return `${grouped.format(value)} B`;
}

/** Two sizes in one unit: "187 / 1,862 MB". */
export function bytesPair(a, b) {
  const one = bytes(a), two = bytes(b);
  const [n, unit] = one.split(" ");
  return unit && two.endsWith(` ${unit}`) ? `${n} / ${two}` : `${one} / ${two}`;
}

export function rate(value) { return known(value) ? `${bytes(value)}/s` : UNKNOWN; }
export function percent(ratio, digits = 0) { return known(ratio) ? `${(ratio * 100).toFixed(digits)} %` : UNKNOWN; }

/** A span of time: 12 µs, 3.4 ms, 850 ms, 12.3 s, 5:27, 1:05:27. */
export function duration(us) {
  if (!known(us)) return UNKNOWN;
  if (us < 0) us = 0;
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e4) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 1e6) return `${Math.round(us / 1e3)} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(1)} s`;
  return elapsed(us);
}

/** A position on an axis: m:ss, with as many decimals as the step needs. */
export function elapsed(us, stepUs = 1e6) {
  const sign = us < 0 ? "−" : "";
  const decimals = stepUs >= 1e6 ? 0 : stepUs >= 1e5 ? 1 : stepUs >= 1e4 ? 2 : 3;
  const scale = 10 ** decimals;
  const ticks = Math.round(Math.abs(us) / 1e6 * scale);
  const seconds = (ticks % (60 * scale)) / scale;
  const minutes = Math.floor(ticks / (60 * scale));
  const ss = seconds.toFixed(decimals).padStart(decimals ? 3 + decimals : 2, "0");
  return minutes >= 60 ? `${sign}${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${ss}` : `${sign}${minutes}:${ss}`;
}

export function timeOfDay(us) { return known(us) ? clock.format(us / 1000) : UNKNOWN; }

/** Date and time of day, as in 2026-12-01 14:05. */
export function dateTime(us) {
  if (!known(us)) return UNKNOWN;
  const date = new Date(us / 1000), two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

// Control characters, direction marks and overrides, separators, zero widths: the same set as the server's templates.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;

/** Text that an agent chose, made visible: hidden characters are written as \\x1b or \\u202e, the length is bounded. */
export function clean(text, max = 300) {
  if (text === null || text === undefined) return "";
  let cut = String(text);
  if (cut.length > max) cut = `${cut.slice(0, max)}…`;
  return cut.replace(/\r?\n/g, " ⏎ ").replace(/\t/g, " ").replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** A call's command for a narrow place: the directory of its program is left out. */
export function commandLabel(call, max = 120) {
  return clean(String(call.command || call.tool || "call").replace(/^\S*\/(?=[^/\s])/, ""), max);
}

/** For texts that Plotly draws: it reads pseudo-HTML, so its signs are replaced by look-alikes. */
export function plotlyText(text) {
  return clean(text, 120).replace(/&/g, "＆").replace(/</g, "‹").replace(/>/g, "›");
}

/** Make an element: el("td", {class: "num", def: "session.peak_bytes"}, child, ...). Strings become text nodes. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  setAttributes(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  setAttributes(node, attributes);
  node.append(...children);
  return node;
}

function setAttributes(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "def") node.setAttribute("data-def", value);
    else if (key === "text") { node.setAttribute("data-text", ""); node.textContent = clean(value); }
    else if (key === "onclick") node.addEventListener("click", value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
}

/** Change a text only when it differs: layout is not touched for nothing. */
export function setText(node, text) { if (node && node.textContent !== text) node.textContent = text; }

/** Stretches of time that nobody observed: losses that count nothing. */
export function gapCount(lost) { return (lost.by || []).filter((one) => !one.count).length; }

export const CATEGORIES = ["tests", "install", "build", "git", "search", "read", "edit", "python", "network", "other"];
export function category(name) { return CATEGORIES.includes(name) ? name : "other"; }
export function swatch(name) { return el("span", { class: `swatch ${category(name)}`, "aria-hidden": "true" }); }

const SIGNALS = { 1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU" };

/** How a call or session ended, in words. */
export function exitWords({ state, oom, exit_code: code, signal }) {
  if (state === "running") return "running";
  if (state === "lost") return "unknown: the end was not seen";
  const killed = known(signal) ? `signal ${signal}${SIGNALS[signal] ? ` (${SIGNALS[signal]})` : ""}` : known(code) ? String(code) : UNKNOWN;
  return oom ? `out of memory, ${killed}` : killed;
}

const STATES = { running: "● running", ended: "○ ended", lost: "✕ lost" };
export function stateWords(state) { return STATES[state] || clean(state, 20); }
