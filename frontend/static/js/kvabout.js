// What is known of an engine beside its charts: the matrix of transitions, tools' times, the calibration, its settings.

import { CAUSES, MODES, seconds, STATES, STATE_WORDS } from "./enginewords.js";
import { bytes, clean, el, integer, known, percent, rate, timeOfDay, UNKNOWN } from "./format.js";
import { plot } from "./calibrationplot.js";
import { figures } from "./table.js";

const ORDER = [...STATES.map(([key]) => key), "gone"];

function fact(label, def, ...value) { return [el("dt", {}, el("a", { href: `/definitions#${def}`, "data-def": def }, label)), el("dd", { def }, ...value)]; }

export class About {
  #about; #matrix; #tools; #calibration; #shown = {};

  constructor(about, matrix, tools, calibration) { this.#about = about; this.#matrix = matrix; this.#tools = tools; this.#calibration = calibration; }

  /** Each part is drawn anew only when what it shows has changed. */
  draw(engine) {
    const part = (name, value, make) => { const key = JSON.stringify(value); if (this.#shown[name] !== key) { this.#shown[name] = key; make(); } };
    part("matrix", engine.matrix, () => this.#matrix.replaceChildren(...matrix(engine)));
    part("tools", engine.tools, () => this.#tools.replaceChildren(...tools(engine)));
    part("calibration", [engine.calibration, document.documentElement.dataset.scheme], () => this.#calibration.replaceChildren(...calibration(engine)));
    part("about", [engine.started_us, engine.ended_us, engine.mode, engine.mode_reason, engine.rule, engine.params, engine.sample?.own_us, engine.sample?.missing, engine.transfers, engine.decisions, engine.outcomes], () => this.#about.replaceChildren(...about(engine)));
  }
}

function matrix(engine) {
  if (!engine.matrix.length) return [el("p", { class: "muted" }, "No block has changed its state yet, or nobody tells: the plugin does, and KV events do in part.")];
  const present = ORDER.filter((state) => engine.matrix.some((row) => row.from === state || row.to === state));
  const cell = (from, to) => engine.matrix.filter((row) => row.from === from && row.to === to);
  const head = [{ label: "from ╲ to", text: true }, ...present.map((state) => ({ label: STATE_WORDS[state], def: "engine.matrix_blocks" }))];
  const table = figures("Blocks by transition", head, present.map((from) => [[STATE_WORDS[from], null], ...present.map((to) => {
    const sum = cell(from, to).reduce((total, row) => total + row.blocks, 0);
    return [sum ? integer(sum) : "", sum || null];
  })]));
  present.forEach((from, r) => present.forEach((to, c) => {
    const rows = cell(from, to);
    if (rows.length) table.tBodies[0].rows[r].cells[c + 1].title = rows.map((row) => `${CAUSES[row.cause] || row.cause}: ${integer(row.blocks)} blocks, ${integer(row.n)} times`).join("\n");
  }));
  const causes = new Map();
  for (const row of engine.matrix) { const sum = causes.get(row.cause) || [0, 0]; causes.set(row.cause, [sum[0] + row.n, sum[1] + row.blocks]); }
  const list = figures("Blocks by cause", [{ label: "why", text: true }, { label: "times", def: "engine.matrix_times" }, { label: "blocks", def: "engine.matrix_blocks" }], [...causes].sort((a, b) => b[1][1] - a[1][1]).map(([cause, [times, blocks]]) => [[CAUSES[cause] || clean(cause, 40), null], [integer(times), times], [integer(blocks), blocks]]));
  return [table, el("h3", {}, "Why"), list];
}

function tools(engine) {
  if (!engine.tools.length) return [el("p", { class: "muted" }, "No tool has been recognised yet. The plugin learns how long each keeps a session away.")];
  const head = [{ label: "tool", text: true }, { label: "times", def: "tools.n" }, { label: "expected", def: "tools.predicted_p50_s" }, { label: "9 of 10", def: "tools.predicted_p90_s" }, { label: "found", def: "tools.actual_p50_s" }, { label: "9 of 10", def: "tools.actual_p90_s" }, { label: "within", def: "tools.within_p90" }, { label: "learnt from", text: true }];
  return [figures("How long tools take", head, engine.tools.map((tool) => [[clean(tool.tool, 40), null], [integer(tool.n), tool.n], ...["predicted_p50_s", "predicted_p90_s", "actual_p50_s", "actual_p90_s"].map((key) => [seconds(tool[key]), tool[key]]), [percent(tool.within_p90), tool.within_p90], [clean(tool.source, 20), null]]))];
}

function calibration(engine) {
  const found = engine.calibration;
  if (!found) return [el("p", { class: "muted" }, engine.plugin ? "Not measured yet: it takes some prompts that are computed alone in a step." : "Only the plugin measures this.")];
  const facts = el("dl", { class: "facts" });
  const { rebuild, restore, save } = found;
  if (known(rebuild.a1_s)) facts.append(...fact("rebuild of 1,000 tokens", "calibration.rebuild", seconds(rebuild.a0_s + 1000 * rebuild.a1_s + 1e6 * (rebuild.a2_s || 0))), ...fact("fit R², samples", "calibration.r2", `${(rebuild.r2 ?? NaN).toFixed(3)}, ${integer(rebuild.n)}`));
  if (known(restore.t0_s)) facts.append(...fact("restore", "calibration.restore", `${seconds(restore.t0_s)}${known(restore.bytes_per_s) ? ` + ${rate(restore.bytes_per_s)}` : ", however much"}`), ...fact("fit R², samples", "calibration.r2", `${(restore.r2 ?? NaN).toFixed(3)}, ${integer(restore.n)}`));
  if (known(save.bytes_per_s)) facts.append(...fact("save", "calibration.save", `${seconds(save.s0_s)} + ${rate(save.bytes_per_s)}`));
  facts.append(...fact("break-even", "calibration.breakeven_tokens", known(found.breakeven_tokens) ? `${integer(found.breakeven_tokens)} tokens` : !engine.host_tier_bytes ? "no host tier" : known(restore.t0_s) && known(rebuild.a1_s) ? "a restore never pays" : "not known yet"), ...fact("measured", "calibration.t_us", timeOfDay(found.t_us)));
  return [plot(found, engine.kv_bytes_per_token ?? found.kv_bytes_per_token), facts];
}

function about(engine) {
  const facts = el("dl", { class: "facts" },
    ...fact("software", "engine.version", `${clean(engine.name, 20)} ${clean(engine.version, 30)}`), ...fact("watched by", "engine.plugin", engine.modelled ? "nobody: a model" : engine.plugin ? "the plugin, from inside" : "its metrics and events, from outside"),
    ...fact("host", "host.host", clean(engine.host, 60) || UNKNOWN), ...fact("mode", "engine.mode", engine.plugin ? MODES[engine.mode] || clean(engine.mode, 20) : UNKNOWN), ...fact("rule", "engine.rule", clean(engine.rule, 30) || UNKNOWN),
    ...fact("tokens a block", "engine.block_tokens", integer(engine.block_tokens)), ...fact("KV of a token", "engine.kv_bytes_per_token", bytes(engine.kv_bytes_per_token)),
    ...fact("host tier", "engine.host_tier_bytes", engine.host_tier_bytes === 0 ? "none" : bytes(engine.host_tier_bytes)), ...(engine.host_tier_bytes ? fact("in use", "engine.host_used_bytes", bytes(engine.sample?.host_used_bytes)) : []),
    ...fact("copied out / in", "engine.transfers", `${bytes(engine.transfers.out_bytes)} / ${bytes(engine.transfers.in_bytes)}${engine.transfers.failed ? `, ${integer(engine.transfers.failed)} failed` : ""}`),
    ...fact("plugin's own time", "engine.own_us", known(engine.sample?.own_us) && engine.sample.steps ? `${(engine.sample.own_us / engine.sample.steps).toFixed(0)} µs a step` : UNKNOWN),
    ...fact("started", "engine.started_us", timeOfDay(engine.started_us)), ...(engine.ended_us ? fact("ended", "engine.ended_us", timeOfDay(engine.ended_us)) : []));
  for (const [name, value] of Object.entries(engine.params || {}).slice(0, 12)) facts.append(el("dt", { text: clean(name, 40) }), el("dd", { text: clean(typeof value === "object" ? JSON.stringify(value) : String(value), 60) }));
  const missing = engine.sample?.missing || [];
  return missing.length ? [facts, el("p", { class: "muted" }, `This engine does not tell: ${missing.slice(0, 20).map((name) => clean(name, 60)).join(", ")}.`)] : [facts];
}
