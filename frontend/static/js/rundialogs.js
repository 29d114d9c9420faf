// Deleting and exporting a run: each asks first, in a dialog that names what it is about.

import { ApiError, path, send } from "./api.js";
import { bytes, clean, dateTime, el, integer, known } from "./format.js";

const dialog = () => document.getElementById("dialog");

function close() { dialog().close(); }

function show(title, ...content) {
  const node = dialog();
  node.replaceChildren(el("h2", { id: "dialog-title" }, title), ...content);
  node.showModal();
}

function figures(run) {
  return el("p", {}, el("span", { def: "run.records" }, `${integer(run.records)} records`), ", ", el("span", { def: "run.sessions" }, `${integer(run.sessions)} ${run.sessions === 1 ? "session" : "sessions"}`), ", ",
    el("span", { def: "run.bytes" }, bytes(run.bytes)), ...(run.host ? [", of ", el("span", { text: clean(run.host, 60) })] : []), ...(known(run.started_us) ? [", begun ", el("span", { def: "run.started_us" }, dateTime(run.started_us))] : []), ".");
}

/** Ask, then delete for good; `done()` when it is gone. */
export function deleteDialog(run, done) {
  const error = el("p", { class: "trouble", role: "alert", "data-text": true, hidden: true });
  const go = el("button", { type: "button", class: "danger" }, "Delete this run");
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      await send("DELETE", `/api${path("runs", run.id)}`);
      close();
      done();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      error.textContent = clean(failure.message, 400);
      error.hidden = false;
      go.disabled = false;
    }
  });
  const keep = el("button", { type: "button", onclick: close, autofocus: true }, "Keep it");
  show("Delete a run", el("p", {}, "Delete ", el("b", { text: clean(run.title || run.id, 120) }), " (", el("code", { text: clean(run.id, 80) }), ") with all that was recorded in it? It cannot be had back."),
    figures(run), error, el("p", { class: "buttons" }, keep, go));
}

/** Links that download the run as JSON lines. */
export function exportDialog(run) {
  const link = (compress, words) => el("a", { class: "button", download: true, href: `/api${path("runs", run.id)}/export?compress=${compress}`, onclick: () => setTimeout(close) }, words);
  show("Export a run", el("p", {}, el("b", { text: clean(run.title || run.id, 120) }), " as JSON lines, one record a line. Tidegate imports it again, here or elsewhere."), figures(run),
    el("p", { class: "buttons" }, link("none", ".jsonl"), link("gz", ".jsonl.gz"), link("zst", ".jsonl.zst"), el("button", { type: "button", onclick: close }, "Close")));
}
