// Arrow keys through rows: one row is in the tab order, the others are reached by arrows.

/** Make the rows of `body` (tr elements with data-id) one stop in the tab order; Enter calls open(id). */
export function rowNavigation(body, open) {
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    if (!row || event.target !== row) return;
    const rows = [...body.rows];
    const at = rows.indexOf(row);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focusRow(body, rows[Math.max(0, Math.min(rows.length - 1, to))]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(row.dataset.id);
    }
  });
  body.addEventListener("focusin", (event) => {
    const row = event.target.closest("tr");
    if (row) setStop(body, row);
  });
}

function focusRow(body, row) { setStop(body, row); row.focus(); }

function setStop(body, stop) { for (const row of body.rows) row.tabIndex = row === stop ? 0 : -1; }

/** After rows were added or moved: keep exactly one tab stop. */
export function keepStop(body) {
  const rows = [...body.rows];
  if (rows.length && !rows.some((row) => row.tabIndex === 0)) rows[0].tabIndex = 0;
}
