// Who holds the pool's blocks at the instant that is shown, since when, and how long pins last.

import { path } from "./api.js";
import { actionIcon, blocksBar, blocksWords, STATE_WORDS } from "./enginewords.js";
import { clean, duration, el, integer, setText } from "./format.js";
import { go } from "./shell.js";
import { store } from "./store.js";
import { Table } from "./table.js";

const byId = (id) => document.getElementById(id);
const MOST = 200;
const count = (key, label, def, value) => ({ key, label, def, num: true, value, update: (node, s) => setText(node, value(s) ? integer(value(s)) : "") });

export class Holders {
  #table;

  constructor(table) {
    this.#table = new Table(table, [
      { key: "title", label: "session", head: true, value: (s) => s.title || s.id, cell: () => el("span", { class: "cell", "data-text": true }, el("a", { tabindex: -1 })), update: (node, s) => { setText(node.firstChild, clean(s.title || s.id, 80)); node.firstChild.setAttribute("href", path("sessions", s.id)); } },
      { key: "blocks", label: "blocks", def: "kv.total_blocks", num: true, value: (s) => s.kv.total_blocks, update: (node, s) => setText(node, integer(s.kv.total_blocks)) },
      { key: "bar", label: "where", def: "kv.total_blocks", cell: () => el("span", {}), update: (node, s) => { const words = blocksWords(s.kv); if (node.title !== words) { node.title = words; node.replaceChildren(blocksBar(s.kv), el("span", { class: "visually-hidden" }, words)); } } },
      count("active", "active", "kv.device_active", (s) => s.kv.blocks.device_active), count("pinned", "pinned", "kv.device_pinned", (s) => s.kv.blocks.device_pinned), count("cached", "cached", "kv.device_cached", (s) => s.kv.blocks.device_cached),
      count("host", "host", "kv.host", (s) => s.kv.blocks.host + s.kv.blocks.device_and_host), count("gone", "gone", "kv.gone", (s) => s.kv.blocks.gone),
      { ...count("shared", "shared", "kv.shared_blocks", (s) => s.kv.shared_blocks), wide: true },
      { key: "since", label: "mostly", def: "kv.since_us", value: (s) => s.kv.since_us, update: (node, s) => setText(node, s.kv.state ? `${STATE_WORDS[s.kv.state]} for ${since(s.kv.since_us)}` : "") },
      { key: "until", label: "pin ends in", def: "kv.pinned_until_us", num: true, value: (s) => s.kv.pinned_until_us, update: (node, s) => setText(node, s.kv.pinned_until_us ? left(s.kv.pinned_until_us) : "") },
      { key: "last", label: "last decision", def: "decision.action", value: (s) => s.kv.last?.action, cell: () => el("span", {}), update: (node, s) => { const last = s.kv.last, key = last ? `${last.action}${last.enforced}` : ""; if (node.dataset.shown !== key) { node.dataset.shown = key; node.replaceChildren(...(last ? [actionIcon(last.action, last.enforced), ` ${last.action}`] : [])); } } },
    ], { id: (s) => s.id, open: (id) => go(path("sessions", id)), sort: ["blocks", true] });
  }

  draw(engine) {
    const all = [...store.sessions.values()].filter((s) => s.kv?.engine === engine.engine && (s.kv.total_blocks || s.kv.blocks.gone));
    const shown = all.sort((a, b) => b.kv.total_blocks - a.kv.total_blocks).slice(0, MOST);
    this.#table.update(shown);
    byId("no-holders").hidden = all.length > 0;
    const pinned = all.reduce((sum, s) => sum + s.kv.blocks.device_pinned, 0), cap = engine.params?.pin_cap;
    setText(byId("holders-note"), [all.length > MOST ? `the ${integer(MOST)} largest of ${integer(all.length)} sessions` : "", pinned ? `${integer(pinned)} blocks pinned${cap && engine.pool_blocks ? ` of at most ${integer(Math.floor(cap * engine.pool_blocks))}` : ""}` : ""].filter(Boolean).join("; "));
  }
}

function since(us) { return us === null ? "" : duration(Math.max(1e5, Math.floor((store.now() - us) / 1e5) * 1e5)); }
function left(us) { const rest = us - store.now(); return rest > 0 ? duration(Math.ceil(rest / 1e5) * 1e5) : "now"; }
