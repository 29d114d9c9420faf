// The Live page: host memory with the sessions stacked, a row a session, the events.

import { decodeF8, getJson, path } from "./api.js";
import { HostChart } from "./hostchart.js";
import { kind, line } from "./events.js";
import { actionIcon, blocksBar, blocksWords } from "./enginewords.js";
import { bytes, bytesPair, category, clean, commandLabel, duration, el, integer, known, percent, setText, stateWords } from "./format.js";
import { bursts, learn, ooms } from "./measured.js";
import { go, startShell, throttled } from "./shell.js";
import { drawSparkline, sparkColours } from "./sparkline.js";
import { store, WINDOW_US } from "./store.js";
import { Table } from "./table.js";

const DRAW_MS = 250;
const SORT_MS = 2000;
const FEED_SHOWN = 200;
const AHEAD_US = 10e6;

const byId = (id) => document.getElementById(id);
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) visible.add(entry.target); else visible.delete(entry.target);
  draw();
}, { rootMargin: "60px" });
let colours = sparkColours();
const changed = new Set();
let sortedAt = 0;

const num = (key, label, def, value, show = bytes) => ({ key, label, def, num: true, value, update: (node, s) => setText(node, show(value(s))) });

// Running sessions first, and within one state the newest.
const STATE_RANK = { running: 2, lost: 1, ended: 0 };
const stateOrder = (s) => STATE_RANK[s.state] * 1e16 + (s.started_us || 0);

const table = new Table(byId("sessions"), [
  { key: "state", label: "state", value: stateOrder, also: [{ key: "priority", label: "priority", value: (s) => ["low", "normal", "high"].indexOf(s.priority), num: true }],
    cell: () => el("span", { class: "state" }, el("span"), el("small", { class: "muted" })), update: (node, s) => { setText(node.children[0], stateWords(s.state)); setText(node.children[1], s.priority); node.classList.toggle("lost", s.state === "lost"); } },
  { key: "title", label: "session", head: true, value: (s) => s.title || s.id, also: [{ key: "agent", label: "agent", value: (s) => s.agent }], cell: titleCell, update: updateTitle },
  { key: "spark", label: "memory", cell: () => { const canvas = el("canvas", { role: "img", "aria-label": "memory of the last 120 s" }); watcher.observe(canvas); return canvas; }, update: (node, s) => { node.session = s; } },
  { key: "current", label: "current call", def: "session.current_age_us", value: (s) => s.current?.started_us ?? null, cell: currentCell, update: updateCurrent },
  { key: "memory", label: "runtime / calls", def: "session.used_bytes", num: true, value: (s) => (s.runtime_bytes || 0) + (s.calls_bytes || 0), update: (node, s) => setText(node, bytesPair(s.runtime_bytes, s.calls_bytes)) },
  num("peak", "peak", "session.peak_bytes", (s) => s.peak_bytes),
  { ...num("waits", "waits", "session.wait_us", (s) => s.wait_us, duration), wide: true },
  { key: "kv", label: "KV blocks", def: "session.kv", cls: "engine-col", value: (s) => s.kv?.total_blocks ?? null, cell: () => el("span", { class: "cell kv" }, el("span"), el("small", { class: "muted" })), update: updateKv },
  { key: "decision", label: "last decision", def: "decision.action", cls: "engine-col", wide: true, value: (s) => s.kv?.last?.t_us ?? null, cell: () => el("span", { class: "cell" }, el("span"), el("small", { class: "muted" })), update: updateDecision },
  num("bursts", "bursts", "session.bursts", (s) => bursts(s), integer),
  num("ooms", "OOM", "session.ooms", ooms, integer),
], { id: (s) => s.id, open: (id) => go(path("sessions", id)), sort: ["state", true] });

function titleCell() { return el("span", { class: "cell", "data-text": true }, el("a", { tabindex: -1 }), el("small", { class: "muted" })); }
function updateTitle(node, s) {
  const [link, id] = node.children;
  setText(link, clean(s.title || s.id, 80));
  const href = path("sessions", s.id);
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  setText(id, [clean(s.agent, 40), s.title && s.title !== s.id ? clean(s.id, 80) : ""].filter(Boolean).join(" · "));
}

// Where its blocks are, and what it is waiting for.
function updateKv(node, s) {
  const [bar, below] = node.children, words = blocksWords(s.kv);
  if (bar.title !== words || !bar.childElementCount) { bar.title = words; bar.replaceChildren(...(s.kv ? [blocksBar(s.kv)] : [])); }
  const modelled = store.engines.get(s.kv?.engine)?.modelled ? "modelled: " : "";
  setText(below, modelled + (s.current_turn ? (s.current_turn.phase === "prompt" ? "turn: prompt" : "turn: answering") : words));
}

function updateDecision(node, s) {
  const last = s.kv?.last, key = last ? `${last.ord}` : "";
  if (node.dataset.shown === key) return;
  node.dataset.shown = key;
  node.children[0].replaceChildren(...(last ? [actionIcon(last.action, last.enforced), ` ${last.action}`] : []));
  setText(node.children[1], last ? [last.tool ? clean(last.tool, 30) : "", last.enforced ? "" : "only observed"].filter(Boolean).join(" · ") : "");
}

function currentCell() {
  return el("span", { class: "cell wide" }, el("span", { class: "swatch", "aria-hidden": "true" }), el("span", { "data-text": true }), el("small", { class: "muted" }, el("span"), " ", el("span", { def: "session.current_age_us" })));
}
function updateCurrent(node, s) {
  const [mark, command, below] = node.children;
  const call = s.current;
  mark.className = call ? `swatch ${category(call.category)}` : "";
  setText(command, call ? commandLabel(call) : "");
  setText(below.children[0], call ? call.category : s.state === "running" ? "thinking" : "");
  const age = call ? store.now() - call.started_us : null;
  // Below ten seconds tenths are enough; more would only flicker.
  setText(below.children[1], age === null ? "" : duration(age < 1e7 ? Math.max(0, Math.round(age / 1e5) * 1e5) : Math.round(age / 1e6) * 1e6));
}

const host = new HostChart(byId("host"), byId("host-legend"), document.querySelector('[data-twin="host"]'));

function drawNumbers() {
  let used = 0, total = 0, cpus = 0, busy = 0;
  let measured = false;
  for (const one of store.hosts.values()) {
    // A host that only introduced itself has no figures yet.
    if (!known(one.mem_available_bytes) || !one.mem_total_bytes) continue;
    measured = true;
    used += one.mem_total_bytes - one.mem_available_bytes; total += one.mem_total_bytes; cpus += one.cpus || 1; busy += (one.cpu_busy_ratio || 0) * (one.cpus || 1);
  }
  let running = 0, calls = 0;
  for (const s of store.sessions.values()) { if (s.state === "running") running++; calls += s.calls_running; }
  setText(byId("n-memory"), measured ? bytesPair(used, total) : "–");
  setText(byId("n-sessions"), integer(running));
  setText(byId("n-calls"), integer(calls));
  setText(byId("n-cpu"), cpus ? percent(busy / cpus) : "–");
  setText(byId("n-lost"), integer(store.lost.total));
  byId("n-lost").classList.toggle("trouble", store.lost.total > 0);
  byId("sessions").classList.toggle("no-engine", !store.engines.size);
  byId("empty").hidden = store.sessions.size > 0 || !store.live;
  byId("empty-collector").hidden = store.sources.some((source) => source.connected);
}

function drawTable() {
  const now = performance.now();
  const ids = [...changed];
  changed.clear();
  const added = ids.some((id) => !table.patch(store.sessions.get(id)));
  if (added || now - sortedAt > SORT_MS) { table.update([...store.sessions.values()]); sortedAt = now; }
  const to = store.now(), from = to - WINDOW_US;
  for (const canvas of visible) if (canvas.session) drawSparkline(canvas, store.sparkWindow(canvas.session.id, from), from, to, canvas.session.peak_bytes, colours);
}

function tick() {
  for (const s of store.sessions.values()) if (s.current) changed.add(s.id);
  draw();
}

// All in one go: each change of the page by itself would have the browser paint once more.
let feedDue = false, feedAnew = false;
const draw = throttled(() => { drawNumbers(); drawTable(); if (feedDue) { feedDue = false; drawFeed(); } host.draw(); }, DRAW_MS);

// --- the feed

let feedHeld = false, feedTop = 0;
function drawFeed(force = false) {
  // Another instant has other events: what is held is of the live run.
  if (feedAnew && !(feedHeld && store.live)) { feedAnew = false; force = true; feedTop = 0; byId("feed").dataset.filter = "\u0000"; }
  if (feedHeld && !force) { setText(byId("feed-pause"), `Held, ${integer(store.events.filter((event) => event.ord > feedTop).length)} new`); return; }
  const filter = byId("feed-filter").value;
  const feed = byId("feed");
  const shown = store.events.filter((event) => (!filter || kind(event.type) === filter) && event.type !== "capability").slice(0, FEED_SHOWN);
  const newest = shown.findIndex((event) => event.ord <= feedTop);
  const fresh = feed.dataset.filter === filter && newest >= 0 ? shown.slice(0, newest) : shown;
  if (fresh === shown) feed.replaceChildren(...shown.map(line)); else feed.prepend(...fresh.map(line));
  while (feed.children.length > FEED_SHOWN) feed.lastChild.remove();
  feed.dataset.filter = filter;
  feedTop = store.events.length ? store.events[0].ord : 0;
}
function feedSoon() { feedDue = true; draw(); }
byId("feed-filter").addEventListener("change", () => { byId("feed").dataset.filter = "\u0000"; drawFeed(true); });
byId("feed-pause").setAttribute("data-def", "event.ord");
byId("feed-pause").addEventListener("click", (event) => {
  feedHeld = !feedHeld;
  event.currentTarget.setAttribute("aria-pressed", String(feedHeld));
  if (!feedHeld) { setText(event.currentTarget, "Hold"); drawFeed(); }
});

// --- theme, host history, start

document.addEventListener("tidegate:theme", () => { colours = sparkColours(); draw(); });

// Live, the stream brings what comes after; of the past what comes next is fetched ahead of the position.
let hostLoading = false, hostTo = 0;
async function loadHost() {
  if (hostLoading) return;
  hostLoading = true;
  const now = Math.round(store.now());
  hostTo = store.live ? now : now + WINDOW_US + (store.playing ? store.speed * AHEAD_US : 0);
  try {
    const series = await getJson(store.api("/api/host/series", { from_us: now - WINDOW_US, to_us: hostTo, px: store.live ? 480 : 2000 }));
    const t = decodeF8(series.t_ms), used = decodeF8(series.used_bytes);
    host.setHistory(Array.from(t, (ms, i) => [ms * 1000, used[i]]));
    draw();
  } catch (error) { console.info(`host history: ${error.message}`); } finally { hostLoading = false; }
  if (Math.abs(store.now() - now) > WINDOW_US) loadHost();
}

store.subscribe((change) => {
  if (change.all) {
    // Ids from before may be of sessions that are not there at this instant.
    changed.clear();
    sortedAt = -Infinity;
    loadHost();
    learn(() => { sortedAt = -Infinity; draw(); });
    feedAnew = true;
    feedSoon();
  }
  if (change.frame) {
    for (const s of change.frame.sessions || []) changed.add(s.id);
    if (change.frame.events?.length) feedSoon();
    if (!store.live && store.now() > hostTo - store.speed * AHEAD_US / 2) loadHost();
    draw();
  }
});
setInterval(() => { if (store.live && !document.hidden) tick(); }, 500);
startShell();
