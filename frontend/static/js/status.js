// The Health page: what can be measured here, who sends, what was lost, what it costs.

import { getJson } from "./api.js";
import { bytes, clean, duration, el, gapCount, integer, known, percent, setText, UNKNOWN } from "./format.js";
import { startShell } from "./shell.js";
import { store } from "./store.js";
import { Table } from "./table.js";

const REFRESH_MS = 2000;
const byId = (id) => document.getElementById(id);
const text = (key, label, value) => ({ key, label, value, cell: () => el("span", { class: "cell", "data-text": true }), update: (node, item) => { setText(node, clean(value(item), 200)); node.title = clean(value(item), 200); } });
const num = (key, label, def, value, show = integer) => ({ key, label, def, num: true, value, update: (node, item) => setText(node, show(value(item))) });
let nowUs = 0;

const sources = new Table(byId("sources"), [
  { ...text("src", "source", (s) => s.src), head: true }, text("role", "role", (s) => s.role),
  { key: "connected", label: "state", value: (s) => String(s.connected), cell: () => el("span", { class: "state" }), update: (node, s) => { setText(node, s.connected ? "● connected" : store.live ? "✕ gone" : "○ recorded"); node.classList.toggle("bad", !s.connected && store.live); } },
  num("last", "last record", "source.last_t_us", (s) => s.last_t_us, (t) => (known(t) ? `${duration(Math.max(0, nowUs - t))} ago` : UNKNOWN)),
  num("records", "records", "source.records", (s) => s.records), num("queued", "queued there", "source.queued", (s) => s.queued), num("lost", "lost", "source.lost", (s) => s.lost),
], { id: (s) => s.src, sort: ["src", false] });

const capabilities = new Table(byId("capabilities"), [
  { ...text("name", "capability", (c) => c.name), head: true }, text("plane", "plane", (c) => c.plane),
  { key: "available", label: "available", value: (c) => String(c.available), cell: () => el("span", { class: "state" }), update: (node, c) => { setText(node, c.available ? "● yes" : "✕ no"); node.classList.toggle("bad", !c.available); } },
  { key: "reason", label: "what the trial said, and what to do", cell: () => el("span", { "data-text": true, class: "reason" }), update: (node, c) => { setText(node, clean(c.reason, 600)); node.parentNode.className = "reason"; } },
], { id: (c) => `${c.plane}/${c.name}/${c.src || ""}`, sort: ["available", false] });

function facts(node, rows) {
  const shown = rows.filter(([, , value]) => value !== undefined);
  node.replaceChildren(...shown.flatMap(([label, def, value]) => [el("dt", {}, typeof label === "string" ? el("a", { href: `/definitions#${def}`, def }, label) : label), el("dd", { def }, value)]));
  if (!shown.length) node.replaceChildren(el("dt", {}, "none"));
}

const have = (object, key, show) => (object && key in object ? show(object[key]) : undefined);
const ms = (value) => (known(value) ? duration(value * 1000) : UNKNOWN);

function drawLosses(lost) {
  const box = byId("loss-box");
  if (!lost?.total && !lost?.by?.length) { box.replaceChildren(el("p", { class: "muted" }, "None. Every record that was sent is stored.")); return; }
  const rows = el("tbody"), gaps = gapCount(lost);
  for (const one of lost.by) rows.append(el("tr", {}, el("td", {}, el("span", { text: one.where })), el("td", {}, el("span", { text: one.of || "records" })), el("td", { class: "num trouble", def: "lost.count" }, one.count ? integer(one.count) : "gap"), el("td", { class: "num", def: "source.last_t_us" }, known(one.last_t_us) ? `${duration(Math.max(0, nowUs - one.last_t_us))} ago` : UNKNOWN)));
  box.replaceChildren(el("p", {}, el("b", { def: "lost.total", class: lost.total ? "trouble" : null }, `${integer(lost.total)} records`), " known to be lost", gaps ? el("span", { def: "lost.count" }, `, and ${gaps} ${gaps === 1 ? "stretch" : "stretches"} of time unobserved`) : ""),
    el("table", {}, el("thead", {}, el("tr", {}, ...["where", "what", "count", "last"].map((label, i) => el("th", { scope: "col", class: i > 1 ? "num" : null }, label)))), rows));
}

// Of the past, what is known of the run must not be taken for what the backend does at this moment.
function drawRun({ run, link }) {
  setText(byId("run-title"), clean(run?.title || run?.id, 80));
  setText(byId("run-when"), store.live ? "being written" : store.writing ? "wound back" : "it has ended");
  facts(byId("run"), [["records", "run.ord", integer(store.ord)]]);
  // Without a link there are no collectors now: the sources are those that the recording names.
  const home = byId(link ? "now-sources" : "run-sources"), box = byId("sources-box");
  if (box.parentNode !== home) home.append(box);
}

function draw(status, found) {
  nowUs = store.live ? status.now_us : store.now();
  const { ingest, store: kept, stream, process } = status;
  sources.update(status.sources || []);
  if (!status.sources?.length) byId("sources").tBodies[0].replaceChildren(el("tr", {}, el("td", { colspan: 7, class: "muted" }, status.replay ? "A recording has no sources." : "Nothing has connected yet.")));
  drawLosses(status.lost);
  facts(byId("ingest"), [
    ["records", "health.ingest_records", have(ingest, "records", integer)], ["records a second", "health.ingest_rate", have(ingest, "records_per_s", (v) => (known(v) ? `${integer(v)} /s` : UNKNOWN))], ["batches", "health.batches", have(ingest, "batches", integer)],
    ["commit, median", "health.commit_us", have(ingest, "commit_p50_ms", ms)], ["commit, 99th percentile", "health.commit_p99_us", have(ingest, "commit_p99_ms", ms)], ["waiting to be stored", "health.queue_records", have(ingest, "queued", integer)],
    ["lines refused", "health.rejected", have(ingest, "rejected", integer)], ["browsers connected", "health.stream_clients", have(stream, "clients", integer)], ["frames dropped for slow browsers", "health.stream_dropped", have(stream, "dropped_frames", integer)],
  ]);
  const rows = kept?.rows && typeof kept.rows === "object" ? Object.values(kept.rows).reduce((a, b) => a + b, 0) : kept?.rows;
  facts(byId("store"), [["database", "health.store_bytes", have(kept, "database_bytes", bytes)], ["write-ahead log", "health.store_wal_bytes", have(kept, "wal_bytes", bytes)], ["rows", "health.store_rows", rows === undefined ? undefined : integer(rows)]]);
  drawRun(status);
  const own = (status.hosts || []).flatMap((host) => host.own && known(host.own.rss_bytes) ? [
    [el("a", { href: "/definitions#host.own.cpu_ratio", def: "host.own.cpu_ratio" }, "collector CPU, of one core"), "host.own.cpu_ratio", percent(host.own.cpu_ratio, 1)], ["collector memory", "host.own.rss_bytes", bytes(host.own.rss_bytes)],
    ["BPF programs, of one core", "host.own.bpf_run_ratio", percent(host.own.bpf_run_ratio, 2)], ["kernel events", "host.own.events", integer(host.own.events)]] : []);
  facts(byId("run-own"), own);
  facts(byId("own"), [["backend CPU, of one core", "health.backend_cpu_ratio", have(process, "cpu_ratio", (v) => percent(v, 1))], ["backend memory", "health.backend_rss_bytes", have(process, "rss_bytes", bytes)]]);
  facts(byId("unknown"), Object.entries(status.unknown_types || {}).map(([type, n]) => [el("span", { text: clean(type, 80) }), "health.unknown_types", integer(n)]));
  byId("guide").hidden = status.replay || (status.sources || []).some((source) => source.connected && source.role === "kernel");
  capabilities.update(found.capabilities || []);
  if (!found.capabilities?.length) byId("capabilities").tBodies[0].replaceChildren(el("tr", {}, el("td", { colspan: 4, class: "muted" }, "Unknown until a collector has connected.")));
}

async function refresh() {
  if (document.hidden) return;
  try { draw(...await Promise.all([getJson(store.api("/api/status")), getJson(store.api("/api/capabilities"))])); } catch (error) { console.info(`status: ${error.message}`); }
}

await startShell();
await refresh();
setInterval(refresh, REFRESH_MS);
