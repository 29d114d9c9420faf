// The table of definitions is made by the server; this finds in it.

import { integer, setText } from "./format.js";
import { startShell } from "./shell.js";

const byId = (id) => document.getElementById(id);
const rows = [...byId("definitions").tBodies[0].rows];

function draw() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    if (!row.hidden) shown++;
  }
  setText(byId("shown"), shown === rows.length ? `${integer(shown)} definitions` : `${integer(shown)} of ${integer(rows.length)} definitions`);
}

byId("filter").addEventListener("input", draw);
// A link to a definition must find it whatever was searched for.
addEventListener("hashchange", () => { byId("filter").value = ""; draw(); document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(); });
draw();
startShell();
