// The list of imports: progress, what was skipped, cancel, try again.

import { bytes, clean, el, integer, known, setText } from "./format.js";

const WORDS = { queued: "waits to be sent", sending: "sending", receiving: "sending", waiting: "waits for its turn", running: "importing", done: "imported", failed: "failed", cancelled: "cancelled" };
export const UNDER_WAY = new Set(["queued", "sending", "receiving", "waiting", "running"]);
const SHOWN = 100;

export class JobList {
  #node; #acts; #items = new Map();

  /** `acts`: {cancel(item), retry(item) (absent file: null), dismiss(item), open(runId), canRetry(item)}. */
  constructor(node, acts) { this.#node = node; this.#acts = acts; }

  /** Items: {id, name, state, done, total, records, format, run, error, report}; rows of the same id stay. */
  update(items) {
    const seen = new Set();
    items.forEach((item, index) => {
      seen.add(item.id);
      let row = this.#items.get(item.id);
      if (!row) { row = this.#row(item); this.#items.set(item.id, row); }
      row.item = item;
      this.#fill(row);
      if (this.#node.children[index] !== row.node) this.#node.insertBefore(row.node, this.#node.children[index] ?? null);
    });
    for (const [id, row] of this.#items) if (!seen.has(id)) { row.node.remove(); this.#items.delete(id); }
  }

  #row(item) {
    const row = { item, drawn: "" };
    const button = (words, act) => el("button", { type: "button", class: "quiet", onclick: () => act(row.item) }, words);
    row.name = el("b", { text: item.name });
    row.state = el("span", { class: "job-state", role: "status" });
    row.figures = el("span", { class: "muted" }, el("span", { def: "job.bytes_done" }), el("span", { def: "job.percent" }), el("span", { def: "job.records" }));
    row.bar = el("progress", { max: 1, "aria-label": `Import of ${clean(item.name, 80)}` });
    row.cancel = button("Cancel", this.#acts.cancel);
    row.retry = button("Try again", this.#acts.retry);
    row.open = el("a", { href: "/", "data-fixed": true }, "Open");
    row.dismiss = button("Dismiss", this.#acts.dismiss);
    row.error = el("p", { class: "trouble", "data-text": true, hidden: true });
    row.report = el("div", { class: "report" });
    row.node = el("li", {}, el("div", { class: "job" }, row.name, row.state, row.bar, row.figures, el("span", { class: "spacer" }), row.open, row.cancel, row.retry, row.dismiss), row.error, row.report);
    return row;
  }

  #fill(row) {
    const { item } = row, busy = UNDER_WAY.has(item.state), share = item.total ? Math.min(1, item.done / item.total) : null;
    setText(row.state, WORDS[item.state] ?? clean(item.state, 20));
    row.state.classList.toggle("trouble", item.state === "failed");
    row.bar.hidden = !busy;
    if (share === null || item.state === "waiting" || item.state === "queued") row.bar.removeAttribute("value"); else row.bar.value = share;
    const [size, part, records] = row.figures.children;
    setText(size, busy && item.total ? `${bytes(item.done)} of ${bytes(item.total)}` : "");
    setText(part, busy && share !== null && item.state !== "waiting" ? ` ${Math.floor(share * 100)} %` : "");
    setText(records, item.records ? ` ${integer(item.records)} records` : "");
    row.cancel.hidden = !busy;
    row.retry.hidden = busy || item.state === "done" || !this.#acts.canRetry(item);
    row.dismiss.hidden = busy;
    row.open.hidden = item.state !== "done" || !item.run;
    if (item.run) row.open.setAttribute("href", `/?run=${encodeURIComponent(item.run)}`);
    row.error.hidden = !item.error;
    setText(row.error, item.error ? clean(item.error, 600) : "");
    // A report does not change once it is there; drawing it once keeps what was unfolded.
    const drawn = item.report ? item.id : "";
    if (drawn !== row.drawn) { row.drawn = drawn; row.report.replaceChildren(...report(item.report, item.format)); }
  }
}

/** What an import left out and why, with line numbers; report as tidegate.ingest.recording.Report. */
function report(found, format) {
  const out = [], line = (...parts) => out.push(el("p", { class: "muted" }, ...parts));
  if (found.cut_last_line) line("The last line is cut off; the recording was probably interrupted.");
  if (known(found.ended_clean) && !found.ended_clean && !found.cut_last_line) line("The recording has no end record: it was not closed.");
  if (found.extract_of_session) line("An extract: it holds one session, ", el("b", { text: clean(found.extract_of_session, 80) }), ".");
  const kinds = [["duplicates", "repeated records left out"], ["gaps", "gaps in the numbering"], ["lost", "records known to be lost"], ["clock_back", "records whose clock went back"]];
  for (const [key, words] of kinds) if (found[key]) line(el("span", { def: key === "lost" ? "lost.total" : "job.skipped" }, integer(found[key])), ` ${words}`);
  for (const [key, words] of [["unknown_types", "Kept, of a type that this version does not know"], ["unknown_fields", "Fields that this version does not know"]]) {
    const names = Object.entries(found[key] ?? {});
    if (names.length) line(`${words}: `, ...names.slice(0, 20).flatMap(([name, n], i) => [i ? ", " : "", el("span", { text: clean(name, 60) }), " ", el("span", { def: "job.skipped" }, `×${integer(n)}`)]));
  }
  if (found.errors_total) out.push(skipped(found, format === "tidegate" ? "skipped" : "left out or estimated"));
  return out;
}

function skipped(found, words) {
  const reasons = Object.entries(found.reasons ?? {});
  const list = el("ul", { class: "skips", "data-text": true }, ...(found.errors ?? []).slice(0, SHOWN).map((text) => el("li", {}, clean(text, 400))));
  const more = found.errors_total - Math.min(SHOWN, found.errors?.length ?? 0);
  return el("details", {}, el("summary", {}, el("span", { def: "job.skipped" }, `${integer(found.errors_total)} ${words}`), ": why and where"),
    ...(reasons.length ? [el("ul", { class: "skips" }, ...reasons.slice(0, SHOWN).map(([reason, n]) => el("li", {}, el("b", { def: "job.skipped" }, `${integer(n)} × `), el("span", { text: clean(reason, 300) }))))] : []),
    list, ...(more > 0 ? [el("p", { class: "muted" }, "and ", el("span", { def: "job.skipped" }, integer(more)), " more")] : []));
}
