// Retention: limits, what they would delete, and then doing so.

import { ApiError, getJson, send } from "./api.js";
import { bytes, clean, dateTime, el, integer, known, setText } from "./format.js";

const byId = (id) => document.getElementById(id);

/** Wire the form; `applied()` is called when runs have gone. */
export function installRetention(applied) {
  const age = byId("max-age"), size = byId("max-size"), preview = byId("retention-preview");
  const say = (text) => { setText(byId("retention-error"), clean(text, 400)); byId("retention-error").hidden = !text; };
  const stale = () => { preview.replaceChildren(); say(""); };
  age.addEventListener("input", stale);
  size.addEventListener("input", stale);

  function limits() {
    const out = {};
    if (age.value !== "") out.max_age_days = Number(age.value);
    if (size.value !== "") out.max_bytes = Math.round(Number(size.value) * 1e9);
    return out;
  }

  byId("retention").addEventListener("submit", async (event) => {
    event.preventDefault();
    stale();
    const wanted = limits();
    if (!Object.keys(wanted).length) { say("Give an age in days, a size in GB, or both."); age.focus(); return; }
    try { draw(wanted, await getJson(`/api/retention?${new URLSearchParams(wanted)}`)); } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      say(error.message);
    }
  });

  function draw(wanted, found) {
    if (!found.runs.length) { preview.replaceChildren(el("p", {}, "Nothing would go: every run is within these limits.")); return; }
    const rows = el("tbody", {}, ...found.runs.map((run) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: "cell", text: clean(run.title || run.id, 80) })), el("td", { class: "num", def: "run.started_us" }, dateTime(run.started_us)),
      el("td", { class: "num", def: "run.records" }, integer(run.records)), el("td", { class: "num", def: "run.bytes" }, bytes(run.bytes)))));
    const words = () => [`Delete ${found.runs.length === 1 ? "this run" : "these "}`, ...(found.runs.length === 1 ? [] : [el("span", { def: "retention.runs" }, integer(found.runs.length)), " runs"])];
    const go = el("button", { type: "button", class: "danger" }, ...words());
    go.addEventListener("click", async () => {
      go.disabled = true;
      try {
        const done = await send("POST", "/api/retention", wanted);
        const gone = done?.runs?.length ?? found.runs.length;
        preview.replaceChildren(el("p", {}, el("span", { def: "retention.runs" }, `${integer(gone)} ${gone === 1 ? "run" : "runs"}`), " deleted."));
        applied();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        say(error.message);
        go.disabled = false;
      }
    });
    preview.replaceChildren(el("p", {}, el("span", { def: "retention.runs" }, `${integer(found.runs.length)} ${found.runs.length === 1 ? "run" : "runs"}`), " would go", ...(known(found.bytes) ? [" and free ", el("span", { def: "retention.freed" }, bytes(found.bytes))] : []), ":"),
      el("div", { class: "scroll" }, el("table", { class: "narrow" }, el("thead", {}, el("tr", {}, ...["run", "started", "records", "size"].map((label, i) => el("th", { scope: "col", class: i ? "num" : null }, label)))), rows)), el("p", {}, go));
  }
}
