// The Runs page: which runs there are, bringing others in, and what may be done with them.

import { ApiError, getJson, path, send } from "./api.js";
import { bytes, clean, dateTime, duration, el, integer, known, setText } from "./format.js";
import { JobList, UNDER_WAY } from "./jobs.js";
import { installRetention } from "./retention.js";
import { deleteDialog, exportDialog } from "./rundialogs.js";
import { startShell } from "./shell.js";
import { store } from "./store.js";
import { Table } from "./table.js";
import { Uploads } from "./uploads.js";

const BUSY_MS = 250;
const IDLE_MS = 4000;
const MAX_TITLE = 200;
const byId = (id) => document.getElementById(id);
let runs = [], jobs = [], formats = "", timer = 0, loading = null, again = false;

const num = (key, label, def, value, show) => ({ key, label, def, num: true, value, update: (node, run) => setText(node, show(value(run))) });
const text = (key, label, value) => ({ key, label, value, cell: () => el("span", { class: "cell", "data-text": true }), update: (node, run) => setText(node, clean(value(run), 60)) });
const length = (run) => (known(run.started_us) && known(run.ended_us ?? run.last_t_us) ? Math.max(0, (run.ended_us ?? run.last_t_us) - run.started_us) : null);
const hrefOf = (run) => (run.current ? "/" : `/?run=${encodeURIComponent(run.id)}`);
const find = (id) => runs.find((run) => run.id === id);

// --- the table

const table = new Table(byId("runs"), [
  { key: "title", label: "run", head: true, value: (run) => run.title || run.id, also: [{ key: "id", label: "id", value: (run) => run.id }], cell: titleCell, update: updateTitle },
  { key: "kind", label: "kind", value: (run) => run.kind, cell: () => el("span", { "data-text": true }), update: (node, run) => setText(node, [clean(run.kind, 20), run.kind === "imported" && run.format ? clean(run.format, 40) : ""].filter(Boolean).join(", ")) },
  { ...text("host", "host", (run) => run.host), wide: true },
  num("started", "started", "run.started_us", (run) => run.started_us, dateTime), { ...num("length", "length", "run.length_us", length, duration), wide: true },
  { ...num("records", "records", "run.records", (run) => run.records, integer), wide: true }, num("bytes", "size", "run.bytes", (run) => run.bytes, bytes), { ...num("sessions", "sessions", "run.sessions", (run) => run.sessions, integer), wide: true },
  { key: "state", label: "state", value: stateWords, cell: () => el("span", { class: "state" }), update: (node, run) => { setText(node, stateWords(run)); node.classList.toggle("bad", Boolean(run.damaged)); node.title = run.damaged ? clean(run.reason, 300) : ""; } },
  { key: "acts", label: "", cell: actCell, update: (node, run) => { node.run = run; node.children[0].disabled = node.children[1].disabled = Boolean(run.damaged); node.children[2].disabled = !run.deletable; node.children[2].title = run.deletable ? "" : clean(run.reason, 300); } },
], { id: (run) => run.id, open, sort: ["started", true] });

function stateWords(run) {
  if (run.damaged) return "✕ damaged";
  return run.writing ? "● being written" : run.clean ? "○ ended" : "◌ cut off";
}

function open(id) {
  const run = find(id);
  if (run && !run.damaged) location.assign(hrefOf(run)); else say(run?.reason ?? "This run is gone.");
}

function titleCell() { return el("span", { class: "cell", "data-text": true }, el("a", { tabindex: -1, "data-fixed": true }), el("small", { class: "muted" })); }
function updateTitle(node, run) {
  if (node.querySelector("form")) return;
  setText(node.children[0], clean(run.title || run.id, 80));
  if (run.damaged) node.children[0].removeAttribute("href"); else node.children[0].setAttribute("href", hrefOf(run));
  setText(node.children[1], run.damaged ? clean(run.reason, 200) : run.title && run.title !== run.id ? clean(run.id, 80) : "");
}

function actCell() {
  const node = el("span", { class: "acts" });
  const button = (words, act) => el("button", { type: "button", class: "quiet", onclick: () => act(node.run) }, words);
  node.append(button("Rename", rename), button("Export…", exportDialog), button("Delete…", (run) => deleteDialog(run, () => gone(run))));
  return node;
}

function rename(run) {
  const cell = [...table.body.rows].find((row) => row.dataset.id === run.id)?.querySelector("th .cell");
  if (!cell || cell.querySelector("form")) return;
  const field = el("input", { type: "text", maxlength: MAX_TITLE, "aria-label": "New title", value: run.title || run.id });
  const form = el("form", { class: "rename" }, field, el("button", { type: "submit", class: "quiet" }, "Save"));
  const stop = () => { form.remove(); for (const child of cell.children) child.hidden = false; };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const title = field.value.trim();
    if (!title) { say("A title has at least one character."); field.focus(); return; }
    try {
      await send("PATCH", `/api${path("runs", run.id)}`, { title });
      say("");
      stop();
      await load();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      say(error.message);
      field.focus();
    }
  });
  field.addEventListener("keydown", (event) => { event.stopPropagation(); if (event.key === "Escape") { stop(); say(""); } });
  for (const child of cell.children) child.hidden = true;
  cell.append(form);
  field.focus();
  field.select();
}

// The page's own URL may carry the run that has just gone.
function gone(run) { if (store.place.run === run.id) location.replace("/runs"); else load(); }

function say(words) { setText(byId("error"), clean(words, 400)); byId("error").hidden = !words; }

function draw() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = runs.filter((run) => words.every((word) => `${run.title} ${run.id} ${run.host} ${run.kind} ${run.format}`.toLowerCase().includes(word)));
  table.update(shown);
  setText(byId("shown"), shown.length === runs.length ? `${integer(runs.length)} ${runs.length === 1 ? "run" : "runs"}` : `${integer(shown.length)} of ${integer(runs.length)} runs`);
  byId("none").hidden = shown.length > 0 && (words.length > 0 || !runs.every((run) => run.writing));
  setText(byId("none"), !shown.length && runs.length ? "No run matches." : "There is no recording yet. Import one above, or let the live run end: each start of Tidegate begins a new one, and the past ones are listed here.");
}

// --- imports

const uploads = new Uploads(() => { drawJobs(); schedule(); }, (job) => {
  // Its import begins at once unless another is under way: small files would be done before the next look at the server.
  const state = job.state === "waiting" && !jobs.some((other) => other.state === "running") ? "running" : job.state;
  jobs = [...jobs.filter((other) => other.id !== job.id), { ...job, state }];
  load();
});
const list = new JobList(byId("jobs"), {
  cancel: (item) => (item.upload ? uploads.cancel(item.upload, load, endJob) : endJob(item.id)),
  dismiss: (item) => { if (item.upload) uploads.remove(item.upload); forget(item); },
  canRetry: (item) => Boolean(item.upload || uploads.fileOf(item.id)),
  retry: (item) => {
    forget(item);
    if (item.upload) uploads.retry(item.upload); else uploads.add([uploads.fileOf(item.id)]);
  },
});

/** End a job, or forget one that is over; one that is gone already is no trouble. */
async function endJob(id) {
  try { await send("DELETE", `/api${path("jobs", id)}`); } catch (error) { if (!(error instanceof ApiError)) throw error; }
  await load();
}

function forget(item) {
  const id = item.upload ? item.upload.job : item.id;
  if (id) endJob(id);
}

function drawJobs() {
  const sending = uploads.entries.map((upload) => ({ id: upload.id, name: upload.name, state: upload.state, done: upload.sent, total: upload.total, records: 0, error: upload.error, upload }));
  const theirs = uploads.match(jobs).map((job) => ({ id: job.id, name: job.name, state: job.state, done: job.bytes_done, total: job.bytes_total, records: job.records, run: job.run_id, format: job.format, error: job.error, report: job.report }));
  list.update([...sending, ...theirs]);
}

function take(files) {
  const whole = [...files];
  byId("drop-error").hidden = true;
  if (whole.length) uploads.add(whole);
}

byId("choose").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });

let inside = 0;
const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragenter", (event) => { if (carriesFiles(event)) { event.preventDefault(); inside++; byId("drop-here").hidden = false; } });
addEventListener("dragleave", (event) => { if (carriesFiles(event) && --inside <= 0) { inside = 0; byId("drop-here").hidden = true; } });
addEventListener("dragover", (event) => { if (carriesFiles(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  inside = 0;
  byId("drop-here").hidden = true;
  const folders = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory).map((entry) => entry.name);
  take([...event.dataTransfer.files].filter((file) => !folders.includes(file.name)));
  if (folders.length) { setText(byId("drop-error"), `${folders.map((name) => clean(name, 60)).join(", ")}: a folder cannot be sent as it is. Pack it (zip or tar) and drop the archive.`); byId("drop-error").hidden = false; }
});

// --- data

/** Fetch runs and imports; one request at a time, and one more when something changed meanwhile. */
function load() {
  again = true;
  loading ??= fetchAll().finally(() => { loading = null; schedule(); });
  return loading;
}

async function fetchAll() {
  while (again) {
    again = false;
    try { show(await getJson("/api/runs")); } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      byId("error").dataset.load = "true";
      say(error.message);
    }
  }
}

function show(found) {
  ({ runs, jobs } = found);
  byId("temporary").hidden = !found.temporary;
  const titles = found.formats.map((format) => clean(format.title, 60)).join(", ");
  if (titles !== formats) { formats = titles; setText(byId("formats"), `It can be a ${titles}; which one is found out.`); }
  if (byId("error").dataset.load) { delete byId("error").dataset.load; say(""); }
  draw(); drawJobs();
}

function schedule() {
  const busy = uploads.active || jobs.some((job) => UNDER_WAY.has(job.state));
  clearTimeout(timer);
  timer = setTimeout(() => { if (document.hidden) schedule(); else load(); }, busy ? BUSY_MS : IDLE_MS);
}

byId("filter").addEventListener("input", draw);
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
addEventListener("beforeunload", (event) => { if (uploads.active) event.preventDefault(); });
installRetention(load);
load();
startShell();
