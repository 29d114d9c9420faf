// The KV cache page: one engine's pool, who holds it, what was decided, and what it cost.

import { About } from "./kvabout.js";
import { PoolCharts } from "./kvpool.js";
import { Decisions } from "./kvdecisions.js";
import { Holders } from "./kvholders.js";
import { MODES, shares } from "./enginewords.js";
import { clean, el, integer, known, setText, UNKNOWN } from "./format.js";
import { startShell, throttled } from "./shell.js";
import { store } from "./store.js";

const DRAW_MS = 400;
const SERIES_MS = 2000;
const byId = (id) => document.getElementById(id);

let chosen = new URLSearchParams(location.hash.slice(1)).get("engine"), first = null;

/** The engine that is shown: the chosen one, else the one that had spoken last when one was first shown. */
function engine() {
  for (const name of [chosen, first]) if (name !== null && store.engines.has(name)) return store.engines.get(name);
  const last = [...store.engines.values()].reduce((last, one) => (last === null || one.last_t_us > last.last_t_us ? one : last), null);
  first = last?.engine ?? null;
  return last;
}

const charts = new PoolCharts(() => engine());
const holders = new Holders(byId("holders"));
const decisions = new Decisions(() => engine()?.engine ?? null);
const about = new About(byId("about"), byId("matrix"), byId("tools"), byId("calibration"));

function choose(name) {
  chosen = name;
  const parts = new URLSearchParams(location.hash.slice(1));
  parts.set("engine", name);
  history.replaceState(null, "", `${location.pathname}${location.search}#${parts}`);
  charts.load(true);
  decisions.load();
  draw();
}

// --- the numbers above

let cells = null, chooser = null;
const CELLS = [
  ["model", "engine.model", (e) => clean(e.model || UNKNOWN, 40), true],
  ["mode", "engine.mode", (e) => (e.ended_us ? "ended" : e.lost ? "lost" : e.plugin ? MODES[e.mode] ? e.mode : UNKNOWN : e.modelled ? "modelled" : "watched from outside")],
  ["rule", "engine.rule", (e) => e.rule],
  ["pool", "engine.pool_blocks", (e) => (known(e.pool_blocks) ? `${integer(e.pool_blocks)} blocks` : UNKNOWN)],
  ["running / waiting", "engine.requests", (e) => (e.sample ? `${integer(e.sample.running)} / ${integer(e.sample.waiting)}` : UNKNOWN)],
  ["device / host / missed", "engine.hit_tokens", (e) => hits(e.sample)],
  ["computed again", "engine.recomputed_tokens", (e) => (known(e.sample?.recomputed_tokens) ? `${integer(e.sample.recomputed_tokens)} tokens` : UNKNOWN)],
  ["thrown out", "engine.preemptions", (e) => integer(e.sample?.preemptions)],
  ["decisions", "engine.decisions", (e) => (e.plugin || e.decisions.total ? integer(e.decisions.total) : "")],
  ["regret", "engine.regret_s", (e) => (e.outcomes.returned ? `${(e.outcomes.regret_s / e.outcomes.returned * 1000).toFixed(0)} ms each` : "")],
];

function hits(sample) {
  if (!known(sample?.prefix_queries_tokens) || !known(sample?.prefix_hits_tokens)) return UNKNOWN;
  const host = sample.external_hits_tokens ?? 0;
  return shares([sample.prefix_hits_tokens, host, Math.max(0, sample.prefix_queries_tokens - sample.prefix_hits_tokens - host)]);
}

function strip(shown) {
  if (!cells) {
    chooser = el("select", { "aria-label": "Engine" });
    chooser.addEventListener("change", () => choose(chooser.value));
    cells = CELLS.map(([label, def, , text]) => el("div", { def }, el("a", { class: "label", href: `/definitions#${def}` }, label), el("b", { "data-text": text })));
    byId("strip").replaceChildren(el("div", { def: "engine.engine" }, el("a", { class: "label", href: "/definitions#engine.engine" }, "engine"), el("b", { "data-text": true }), chooser), ...cells);
  }
  const [name] = byId("strip").children, names = [...store.engines.keys()];
  setText(name.children[1], clean(shown.engine, 40));
  name.children[1].title = clean(shown.engine, 200);
  name.children[1].hidden = names.length > 1;
  chooser.hidden = names.length < 2;
  if (names.join("\n") !== [...chooser.options].map((option) => option.value).join("\n")) chooser.replaceChildren(...names.map((value) => el("option", { value }, clean(value, 40))));
  if (chooser.value !== shown.engine) chooser.value = shown.engine;
  CELLS.forEach(([label, , show], i) => {
    const words = show(shown);
    setText(cells[i].lastChild, words);
    cells[i].hidden = words === "";
    if (label === "mode") cells[i].lastChild.classList.toggle("trouble", Boolean(shown.lost || shown.mode_reason));
  });
}

function trouble(shown) {
  const node = byId("engine-trouble");
  const words = shown.mode_reason ? `The plugin lowered its mode to ${shown.mode} by itself: ${clean(shown.mode_reason, 300)}` : shown.lost ? "The engine's sender is gone: what is shown is what it said last." : "";
  node.hidden = !words;
  setText(node, words);
}

function drawNow() {
  const shown = engine();
  byId("empty").hidden = shown !== null || !store.run;
  byId("shown").hidden = byId("strip").hidden = shown === null;
  if (!shown) return;
  byId("modelled").hidden = !shown.modelled;
  strip(shown);
  trouble(shown);
  charts.draw();
  holders.draw(shown);
  about.draw(shown);
}

const draw = throttled(drawNow, DRAW_MS);
document.addEventListener("tidegate:theme", () => draw());
byId("range").addEventListener("change", () => charts.load(true));

store.subscribe((change) => {
  if (change.all) { charts.load(true); decisions.load(); draw(); } else if (change.frame) {
    if (change.frame.engines?.length || change.frame.sessions?.length) draw();
    if (change.frame.events?.some((event) => event.type === "kv.decision")) decisions.soon();
  } else if (change.place) draw();
});
setInterval(() => { if (store.live && !document.hidden && engine()) { charts.load(); draw(); } }, SERIES_MS);
startShell();

