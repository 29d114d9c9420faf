// The Session page: the numbers, the timeline, what is chosen on it. The URL's hash holds the choice and the zoom.

import { getJson, path } from "./api.js";
import { drawCall, drawNothing } from "./callpanel.js";
import { EngineDetail } from "./enginedetail.js";
import { STATES } from "./enginewords.js";
import { bytes, clean, duration, el, elapsed, integer, known, setText, timeOfDay } from "./format.js";
import { KvData } from "./kvdata.js";
import { KvPanels } from "./kvpanels.js";
import { Lanes } from "./lanes.js";
import { learn, sampled, why } from "./measured.js";
import { Panels, PRESSURE } from "./panels.js";
import { memoryLayers, Series } from "./series.js";
import { drawLegends, drawStrip } from "./sessionstrip.js";
import { startShell, throttled } from "./shell.js";
import { store } from "./store.js";
import { Timeline } from "./timeline.js";

const DRAW_MS = 300;
const DETAIL_MS = 1000;
const byId = (id) => document.getElementById(id);
const id = decodeURIComponent(byId("session").dataset.session);
const api = `/api${path("sessions", id)}`;
// What the axis reaches over: the whole session, whatever instant is shown.
let span = null;

let session = null, selected = null, detail = null, detailTimer = 0;
const calls = new Map();
let events = [];

const start = () => span?.start_us ?? session?.started_us ?? 0;
function end() {
  if (!store.live) return Math.max(span?.end_us ?? 0, start() + 1000);
  if (!session) return 1e6;
  if (session.state === "running") return Math.max(store.now(), session.last_t_us || 0);
  return Math.max(session.ended_us ?? 0, session.last_t_us ?? 0, start() + 1000);
}
/** The instant that is shown, within the session. */
const now = () => (store.live ? end() : Math.min(Math.max(store.now(), start()), end()));

const series = new Series(id, () => draw(), (error) => setText(byId("readout"), `The series could not be loaded: ${error.message}`));
const kv = new KvData(id, () => { engineDetail.known(); draw(); }, (error) => setText(byId("readout"), `The engine's side could not be loaded: ${error.message}`));
const timeline = new Timeline({
  panels: byId("panels"), crosshair: byId("crosshair"), brush: byId("brush"), head: byId("head"), veil: byId("veil"), axis: byId("axis"), bounds: () => ({ startUs: start(), endUs: end() }),
  playhead: () => (store.live ? null : store.now()),
  callbacks: {
    changed: (byUser) => { if (!span) return; if (byUser) { writeHash(); drawQuick(); } draw(); ask(); },
    hover: readout,
    pick,
    seek: (t) => store.seek(t, { push: true }),
  },
});
const lanes = new Lanes(byId("lanes"), timeline, (call) => select(call, true));
const model = () => ({ session, imported: store.run?.kind === "imported", calls: lanes.calls, events, series, startUs: start(), endUs: end(), nowUs: now() });
const kvPanels = new KvPanels(timeline, () => ({ session, kv, startUs: start(), endUs: end(), nowUs: now() }));
const panels = new Panels(timeline, () => ({ ...model(), kv }), kvPanels.tables);
const engineDetail = new EngineDetail(byId("engine-detail"), kv, kvPanels, {
  model: () => ({ startUs: start(), nowUs: now(), calls }), selectCall: (call) => select(call, true), changed: () => { writeHash(); drawQuick(); },
  reveal: (from, to) => timeline.reveal(from, to),
});

// A click on a plot chooses what that plot shows: calls, turns or decisions.
function pick(t, target) {
  const plot = target.closest(".plot")?.id;
  if (plot === "turns") { const turn = target.dataset?.turn ?? kv.turnAt(t, now())?.turn; if (turn) engineDetail.turn(turn); return; }
  if (plot === "decisions" || plot === "kv") {
    const decision = target.dataset?.decision ? kv.decisions.find((one) => String(one.ord) === target.dataset.decision) : kvPanels.near(t) ?? (plot === "kv" ? kv.decisionAt(t) : null);
    if (decision) engineDetail.decision(decision.ord);
    return;
  }
  const call = target.dataset?.call ?? (plot === "lanes" ? null : lanes.at(t, now())?.id);
  if (call) select(call);
}

function ask(immediately = false) {
  series.request(() => timeline.view, () => timeline.width, immediately);
  kv.request(() => timeline.view, () => timeline.width, immediately);
}

// --- the crosshair's numbers

function readout(t) {
  const node = byId("readout");
  if (!span || t === null) { node.replaceChildren(...(session ? resolution() : notBegun())); return; }
  const memory = series.memory.at(t), wait = series.wait.at(t), pressure = series.pressure.at(t);
  const part = (label, def, text) => el("span", {}, `${label} `, el("b", { def }, text));
  const parts = [part("at", "axis.time_us", elapsed(t - start(), 1e5))];
  if (series.gaps.some(([from, to]) => from <= t && t < to)) parts.push(el("span", {}, "not measured"));
  else {
    if (memory) for (const { key } of memoryLayers(series.memory)) if ((key === "runtime" && known(memory[key]) && sampled(session)) || memory[key] > 0) parts.push(part(key, key === "runtime" ? "series.memory.runtime_bytes" : "series.memory.calls", bytes(memory[key])));
    if (known(wait?.percent)) parts.push(part("wait", "series.wait.percent", `${wait.percent.toFixed(0)} %`));
    if (pressure) for (const [key, , def] of PRESSURE) if (pressure[key] > 0) parts.push(part(`${key} pressure`, def, `${pressure[key].toFixed(1)} %`));
  }
  const blocks = kvPanels.told ? kv.at(t) : null;
  if (blocks) for (const [state, words, , def] of STATES) if (blocks[state] > 0) parts.push(part(`${words} blocks`, def, integer(blocks[state])));
  const marked = kvPanels.told ? kvPanels.marked(t) : "";
  if (marked) parts.push(el("span", { def: "kv.moved_blocks", "data-text": true }, marked));
  const call = lanes.at(t, now());
  if (call) parts.push(el("span", {}, "call ", el("b", { def: "call.ordinal" }, integer(call.ordinal))));
  node.replaceChildren(...parts);
}

function notBegun() {
  if (!span) return [];
  const there = el("button", { type: "button", class: "quiet", onclick: () => store.seek(start(), { push: true }) }, "Go to its start");
  return [el("span", {}, "At this position the session has not begun; it begins at ", el("b", { def: "session.started_us" }, timeOfDay(start())), "."), there];
}

function resolution() {
  if (!known(series.resolutionUs)) return [];
  return [el("span", { def: "series.resolution_us" }, `one point stands for ${duration(series.resolutionUs)}; extremes are kept`)];
}

// --- the chosen call

function select(call, focus = false) {
  selected = call;
  lanes.selected = call;
  detail = calls.has(call) ? { call: calls.get(call) } : null;
  writeHash();
  const chosen = calls.get(call);
  if (chosen) timeline.reveal(chosen.started_us, chosen.ended_us ?? chosen.started_us);
  drawQuick();
  drawDetail();
  loadDetail();
  if (focus) byId("call").focus({ preventScroll: true });
}

function deselect() { selected = null; detail = null; lanes.selected = null; writeHash(); drawDetail(); drawQuick(); byId("lanes").focus({ preventScroll: true }); }

async function loadDetail() {
  clearTimeout(detailTimer); detailTimer = 0;
  const wanted = selected;
  if (!wanted) return;
  try {
    const body = await getJson(store.api(`${api}${path("calls", wanted)}`));
    if (selected === wanted) { detail = body; drawDetail(); }
  } catch (error) { if (selected === wanted && !detail) byId("call").replaceChildren(el("p", { class: "trouble", text: error.message })); }
}

function drawDetail() {
  const node = byId("call");
  if (!selected) { drawNothing(node, calls.size); return; }
  if (!calls.has(selected)) { drawLater(node); return; }
  if (!detail) return;
  const hadFocus = node.contains(document.activeElement) && document.activeElement !== node;
  drawCall(node, detail, { session, startUs: start(), nowUs: now(), select: (call) => select(call, true), close: deselect });
  if (hadFocus) node.focus({ preventScroll: true });
}

// A call that a link names and that has not begun at the position.
function drawLater(node) {
  node.replaceChildren(el("h2", {}, "Not begun"), el("p", { class: "muted" }, "At this position the chosen call has not begun."));
}

// --- the URL

function writeHash() {
  // Keys that are not ours stay.
  const parts = new URLSearchParams(location.hash.slice(1));
  for (const key of ["call", "turn", "decision", "from", "to"]) parts.delete(key);
  if (selected) parts.set("call", selected);
  if (kvPanels.selectedTurn !== null) parts.set("turn", kvPanels.selectedTurn);
  if (kvPanels.selectedDecision !== null) parts.set("decision", kvPanels.selectedDecision);
  if (timeline.zoomed) { const [from, to] = timeline.view; parts.set("from", Math.round(from)); parts.set("to", Math.round(to)); }
  const hash = parts.toString();
  history.replaceState(null, "", location.pathname + location.search + (hash ? `#${hash}` : ""));
}

function readHash() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const from = Number(parts.get("from")), to = Number(parts.get("to"));
  if (Number.isFinite(from) && to > from) { timeline.following = false; timeline.set(from, to, false); }
  const call = parts.get("call");
  if (call && call !== selected) select(call);
  engineDetail.named(parts.get("turn"), Number(parts.get("decision")) || null);
}
addEventListener("hashchange", readHash);

// --- drawing

// What answers a click or key at once; the charts follow when it is their turn.
function drawQuick() { lanes.draw(now()); kvPanels.draw(); timeline.drawAxis(); }

function drawNow() {
  if (!span) return;
  byId("strip").hidden = !session;
  if (session) drawStrip(byId("strip"), session, now());
  drawLegends([...calls.values()], kv.blocks.states);
  keepInView();
  lanes.draw(now());
  byId("modelled").hidden = !store.engines.get(session?.kv?.engine)?.modelled;
  kvPanels.draw();
  panels.draw();
  timeline.drawAxis();
  const follow = byId("follow");
  follow.hidden = session?.state !== "running" || !store.live;
  follow.setAttribute("aria-pressed", String(timeline.following));
  byId("zoom-reset").disabled = !timeline.zoomed;
  if (timeline.pointed === null || timeline.pointed === undefined) readout(null); else timeline.point(timeline.pointed);
}

// A view that was zoomed into goes along when the playhead plays out of it.
function keepInView() {
  const [from, to] = timeline.view, at = now();
  if (store.playing && timeline.zoomed && (at < from || at > to)) timeline.set(at - (to - from) / 10, at + (to - from) * 0.9, false);
}

const draw = throttled(drawNow, DRAW_MS);
document.addEventListener("tidegate:theme", () => draw());

// --- controls

byId("follow").addEventListener("click", () => { timeline.following = !timeline.following; draw(); ask(); });
byId("zoom-in").addEventListener("click", () => timeline.scale(0.5));
byId("zoom-out").addEventListener("click", () => timeline.scale(2));
byId("zoom-reset").addEventListener("click", () => { timeline.following = session?.state === "running" && store.live; timeline.reset(); });
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "+" || event.key === "=") timeline.scale(0.5);
  else if (event.key === "-") timeline.scale(2);
  else if (event.key === "Escape") { if (timeline.zoomed) timeline.reset(); else if (engineDetail.chosen) engineDetail.close(); else if (selected) deselect(); }
  else if (event.key === "a") timeline.pan(-0.5);
  else if (event.key === "d") timeline.pan(0.5);
});

// --- data

let loading = false, wanted = false, wasLive = null;
async function load() {
  // One request at a time: while the playhead is dragged the newest position wins.
  wanted = true;
  if (loading) return;
  loading = true;
  try {
    while (wanted) { wanted = false; show(await getJson(store.api(api))); }
  } catch (error) { setText(byId("readout"), error.message); } finally { loading = false; }
}

function show(body) {
  const first = span === null, became = store.live !== wasLive;
  wasLive = store.live;
  span = body.span;
  ({ session, events } = body);
  calls.clear();
  for (const call of body.calls) calls.set(call.id, call);
  lanes.calls = calls.values();
  if (first || became) timeline.following = store.live && session?.state === "running";
  if (first) { readHash(); learn(explain); }
  if (selected && calls.has(selected)) loadDetail(); else { detail = null; drawDetail(); }
  if (first) drawNow(); else draw();
  // Of the past the series is there as a whole: a seek changes nothing in it.
  ask(first || became || store.live);
}

// What the run's records cannot tell: an imported trace may know the memory of the session, but not that of its calls.
function explain() {
  const reason = why("memory.calls");
  setText(byId("memory-note"), reason ? clean(reason, 300) : "");
  byId("memory-note").hidden = !reason;
  drawDetail();
  draw();
}

function applyFrame(frame) {
  let mine = false;
  for (const view of frame.sessions || []) if (view.id === id) {
    const grown = view.kv?.t_us !== session?.kv?.t_us || view.kv?.last?.ord !== session?.kv?.last?.ord || JSON.stringify(view.turns) !== JSON.stringify(session?.turns);
    if (grown && store.writing) kv.request(() => timeline.view, () => timeline.width, true);
    session = view; mine = true;
  }
  let changed = false;
  for (const call of frame.calls || []) {
    if (call.session !== id) continue;
    calls.set(call.id, call); changed = true;
    if (call.id === selected) {
      detail = { ...detail, call }; drawDetail();
      if (!detailTimer) detailTimer = setTimeout(loadDetail, DETAIL_MS);
    }
  }
  if (changed) lanes.calls = calls.values();
  for (const event of frame.events || []) if (event.session === id && !events.some((known) => known.ord === event.ord)) { events.push(event); mine = true; }
  const points = frame.series?.[id];
  if (points && store.live) series.add(points);
  if (!store.live || mine || changed || points) { draw(); if (series.stale && store.writing) ask(); }
}

store.subscribe((change) => {
  if (change.all) load();
  else if (change.frame && span) applyFrame(change.frame);
  else if (change.place && span) timeline.drawPlayhead();
});
setInterval(() => { if (session?.state === "running" && store.live && timeline.following) draw(); }, 500);
drawDetail();
startShell({ session: id });
