// The list of sessions: find, filter, sort.

import { path } from "./api.js";
import { bytes, clean, duration, el, exitWords, integer, known, percent, setText, stateWords, timeOfDay } from "./format.js";
import { bursts, learn, ooms } from "./measured.js";
import { go, startShell, throttled } from "./shell.js";
import { store } from "./store.js";
import { Table } from "./table.js";

const byId = (id) => document.getElementById(id);
const length = (s) => (known(s.started_us) ? (s.ended_us ?? store.now()) - s.started_us : null);
const num = (key, label, def, value, show = bytes) => ({ key, label, def, num: true, value, update: (node, s) => setText(node, show(value(s))) });
const text = (key, label, value) => ({ key, label, value, cell: () => el("span", { class: "cell", "data-text": true }), update: (node, s) => setText(node, clean(value(s), 80)) });

const wide = (column) => ({ ...column, wide: true });

const table = new Table(byId("sessions"), [
  { key: "state", label: "state", value: (s) => s.state, cell: () => el("span", { class: "state" }), update: (node, s) => { setText(node, stateWords(s.state)); node.classList.toggle("lost", s.state === "lost"); } },
  { key: "title", label: "session", head: true, value: (s) => s.title || s.id, cell: () => el("span", { class: "cell", "data-text": true }, el("a", { tabindex: -1 }), el("small", { class: "muted" })),
    update: (node, s) => { setText(node.children[0], clean(s.title || s.id, 80)); node.children[0].setAttribute("href", path("sessions", s.id)); setText(node.children[1], s.title && s.title !== s.id ? clean(s.id, 80) : ""); } },
  wide(text("agent", "agent", (s) => s.agent)), wide(text("host", "host", (s) => s.host)),
  { key: "priority", label: "priority", wide: true, value: (s) => ["low", "normal", "high"].indexOf(s.priority), update: (node, s) => setText(node, s.priority) },
  wide(num("started", "started", "session.started_us", (s) => s.started_us, timeOfDay)), num("duration", "duration", "session.duration_us", length, duration),
  num("peak", "peak", "session.peak_bytes", (s) => s.peak_bytes), num("calls", "calls", "session.calls_total", (s) => s.calls_total, integer),
  wide(num("tools", "tool time", "session.tool_time_ratio", (s) => (known(length(s)) ? s.tool_time_us / Math.max(1, length(s)) : null), percent)), wide(num("cpu", "CPU", "session.cpu_us", (s) => s.cpu_us, duration)),
  wide(num("waits", "waits", "session.wait_us", (s) => s.wait_us, duration)), num("bursts", "bursts", "session.bursts", (s) => bursts(s), integer), num("ooms", "OOM", "session.ooms", ooms, integer),
  { key: "exit", label: "exit", def: "session.exit_code", num: true, value: (s) => s.exit_code, update: (node, s) => setText(node, s.state === "running" ? "" : exitWords({ ...s, oom: s.end_reason === "oom" })) },
], { id: (s) => s.id, open: (id) => go(path("sessions", id)), sort: ["started", true] });

function draw() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), state = byId("state").value;
  const all = [...store.sessions.values()];
  const shown = all.filter((s) => (!state || s.state === state) && words.every((word) => `${s.title} ${s.id} ${s.agent} ${s.host} ${s.priority}`.toLowerCase().includes(word)));
  table.update(shown);
  setText(byId("shown"), shown.length === all.length ? `${integer(all.length)} sessions` : `${integer(shown.length)} of ${integer(all.length)} sessions`);
  byId("none").hidden = shown.length > 0;
}

const soon = throttled(draw, 1000);
byId("filter").addEventListener("input", draw);
byId("state").addEventListener("change", draw);
store.subscribe((change) => { if (change.all) { draw(); learn(draw); } else if (change.frame?.sessions?.length) soon(); });
startShell();
