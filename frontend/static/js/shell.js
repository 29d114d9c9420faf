// The frame around every page: badges, copy buttons, definitions at a number. Starts the shared store.

import { duration, gapCount, integer, setText } from "./format.js";
import { store } from "./store.js";
import { installTips } from "./tips.js";

const STALE_MS = 3000;

/** How fresh the picture is, in words, and whether that is trouble. */
export function connection() {
  if (store.failure && store.status !== "open") return ["not reachable", true];
  if (store.status === "paused") return ["paused", false];
  if (store.status === "lost") return ["reconnecting", true];
  if (store.status === "connecting") return ["connecting", false];
  if (store.replay) return ["recording", false];
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
  }
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

/** Start the page's frame; resolves when the first state is there (or could not be had). */
export async function startShell() {
  copyButtons();
  installTips();
  store.subscribe((change) => { if (change.all || change.status || change.frame?.lost || change.frame?.sources) badges(); });
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
