// The frame around every page: badges, banner, playhead, copy buttons, definitions at a number. Starts the shared store.

import { clean, duration, el, elapsed, gapCount, integer, setText } from "./format.js";
import { Playhead } from "./playhead.js";
import { playKeys } from "./playkeys.js";
import { store } from "./store.js";
import { installTips } from "./tips.js";
import { carryLinks } from "./where.js";

const STALE_MS = 3000;

/** How fresh the picture is, in words, and whether that is trouble. */
export function connection() {
  if (store.failure && store.status !== "open") return [store.refused ? "not found" : "not reachable", true];
  if (store.status === "paused") return ["paused", false];
  if (store.status === "lost") return ["reconnecting", true];
  if (store.status === "connecting") return ["connecting", false];
  if (store.run && !store.live) return [store.playing ? "playing" : store.writing ? "wound back" : "recording", false];
  if (!store.sources.some((source) => source.connected)) return ["no collector", true];
  if (!store.lastRecordMs) return ["connected", false];
  const age = Date.now() - store.lastRecordMs;
  return age > STALE_MS ? [`stale ${duration(Math.floor(age / 1000) * 1e6)}`, true] : ["connected", false];
}

function badges() {
  const conn = document.getElementById("badge-conn");
  if (!conn) return;
  const [words, trouble] = connection();
  setText(conn, words);
  conn.classList.toggle("trouble", trouble);
  conn.classList.toggle("ok", words === "connected");
  // A ticking age would be read out every second: only the kind of the state is announced.
  conn.setAttribute("aria-live", words.startsWith("stale") ? "off" : "polite");
  const lost = document.getElementById("badge-lost");
  if (store.run) {
    const gaps = gapCount(store.lost);
    setText(lost, `${integer(store.lost.total)} lost${gaps ? `, ${gaps} ${gaps === 1 ? "gap" : "gaps"}` : ""}${store.gapSeen ? ", gap in the view" : ""}`);
    lost.classList.toggle("trouble", store.lost.total > 0 || gaps > 0);
    lost.title = store.gapSeen ? "The stream had a gap; the state was fetched again." : "Records known to be lost";
    mode();
  }
}

// LIVE; PAST and how far behind; REPLAY, of what, and the position.
function mode() {
  const badge = document.getElementById("badge-mode");
  const [words, title, position] = badge.children;
  setText(words, store.live ? "LIVE" : store.writing ? "PAST" : "REPLAY");
  setText(title, store.writing ? "" : clean(store.run.title || store.run.id, 60));
  setText(position, store.live ? "" : `${store.writing ? "" : "· "}${elapsed(store.now() - store.startUs, 1e5)}`);
  badge.classList.toggle("replay", !store.live);
  badge.title = store.writing ? "" : clean(store.run.title || store.run.id, 200);
  const banner = document.getElementById("past");
  banner.hidden = store.live || !store.writing;
  if (!banner.hidden) setText(document.getElementById("behind"), behindWords(store.endUs - store.now()));
}

function behindWords(us) { return us < 6e7 ? `${Math.max(0, Math.floor(us / 1e6))} s` : elapsed(us); }

// A run that is not there, and the like: said in words, not only in a badge.
function notice() {
  const node = document.getElementById("notice");
  if (!node || (node.hidden && !store.refused)) return;
  node.hidden = !store.refused;
  if (store.refused) node.replaceChildren(el("span", { text: store.failure }), " ", el("a", { href: "/runs", "data-fixed": true }, "Open Runs"));
}

function copyButtons() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try { await navigator.clipboard.writeText(text); setText(button, "Copied"); } catch { setText(button, "Select and copy"); }
      setTimeout(() => setText(button, "Copy"), 2000);
    });
  }
}

/** Start the page's frame; resolves when the first state is there (or could not be had). `session`: what the playhead's steps keep to. */
export async function startShell({ session = null } = {}) {
  copyButtons();
  installTips();
  // A run that is not there is not carried on.
  carryLinks(() => (store.refused ? { run: null, at: null } : store.place));
  const bar = document.getElementById("playhead");
  if (bar) new Playhead(bar, store, { session }); else playKeys(() => store.goLive(), "live");
  document.getElementById("catch-up")?.addEventListener("click", () => store.goLive());
  store.subscribe((change) => {
    if (change.status) notice();
    if (change.all || change.status || change.place || change.frame?.lost || change.frame?.sources) badges();
    else if (!store.live) mode();
  });
  setInterval(badges, 1000);
  await store.start();
  badges();
}

// Of the main thread's time a page's drawing may take at most one part in this many.
const SHARE = 8;

/** Call `draw` at most once in `ms`, later when drawing is slow, on an animation frame, never while the tab is hidden. */
export function throttled(draw, ms) {
  let timer = 0, last = 0, cost = 0;
  const run = () => {
    timer = 0;
    last = performance.now();
    if (document.hidden) return;
    draw();
    cost = 0.7 * cost + 0.3 * (performance.now() - last);
  };
  return () => {
    if (timer) return;
    timer = setTimeout(() => requestAnimationFrame(run), Math.max(0, Math.max(ms, cost * SHARE) - (performance.now() - last)));
  };
}

/** Go to a page of ours, with the run and position that are shown. */
export function go(path) { location.assign(store.api(path)); }
