// At a number: what it means in one line, with a link to its definition. One tooltip for the page, by pointer or focus.

import { getJson } from "./api.js";
import { clean, el } from "./format.js";

let definitions = null;

async function load() {
  definitions ??= getJson("/api/definitions").then((body) => new Map(body.definitions.map((entry) => [entry.key, entry])));
  return definitions;
}

function firstSentence(text) { return clean(text, 220); }

/** Show the definition of whatever carries data-def under the pointer or the focus. */
export function installTips() {
  const tip = document.getElementById("tip");
  let timer = 0, shownFor = null;

  function hide() { clearTimeout(timer); tip.hidden = true; shownFor?.removeAttribute("aria-describedby"); shownFor = null; }

  async function show(target, x, y) {
    let entry;
    try { entry = (await load()).get(target.dataset.def); } catch { return; }
    if (!entry || !target.isConnected) return;
    tip.replaceChildren(el("p", {}, el("strong", {}, clean(entry.label)), `: ${firstSentence(entry.meaning)} `,
      el("a", { href: `/definitions#${encodeURIComponent(entry.key)}` }, "definition")));
    tip.setAttribute("data-text", "");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x, innerWidth - box.width - 16)) + scrollX}px`;
    const below = y + 18 + box.height < innerHeight;
    tip.style.top = `${(below ? y + 14 : y - box.height - 14) + scrollY}px`;
    shownFor = target;
    target.setAttribute("aria-describedby", "tip");
  }

  document.addEventListener("pointerover", (event) => {
    if (tip.contains(event.target)) { clearTimeout(timer); return; }
    const target = event.target.closest?.("[data-def]");
    clearTimeout(timer);
    if (!target || event.target.closest(".drag")) { timer = setTimeout(hide, 350); return; }
    if (target === shownFor) return;
    timer = setTimeout(() => { hide(); show(target, event.clientX, event.clientY); }, 600);
  });
  document.addEventListener("focusin", (event) => {
    if (tip.contains(event.target)) return;
    const target = event.target.matches(":focus-visible") ? event.target.closest("[data-def]") : null;
    hide();
    // Only a label stands for one number; a focused row has many.
    if (!target || !event.target.matches("a, dt, [data-def]")) return;
    const box = event.target.getBoundingClientRect();
    timer = setTimeout(() => show(target, box.left, box.bottom), 300);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !tip.hidden) hide(); });
}
