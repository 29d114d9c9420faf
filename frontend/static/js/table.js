// A sortable table whose rows are updated in place, so that focus, selection and canvases stay.

import { el } from "./format.js";
import { keepStop, rowNavigation } from "./keyboard.js";

/**
 * columns: [{key, label, num, def, wide: left out where there is little room, cls: a class of its cells, value(item) for sorting, also: further sorts [{key, label, value}] in the same head, cell() -> node, update(node, item)}].
 * Options: id(item), open(id) for keyboard and click, sort: [key, descending].
 */
export class Table {
  #columns; #options; #rows = new Map(); #body; #head; #sort; #items = [];

  constructor(table, columns, options) {
    this.#columns = columns; this.#options = options;
    this.#sort = options.sort || [columns[0].key, false];
    this.#head = el("tr");
    for (const column of columns) {
      const buttons = [column, ...(column.also || [])].filter((sort) => sort.value).map((sort) => el("button", { type: "button", onclick: () => this.#sortBy(sort) }, sort.label));
      this.#head.append(el("th", { scope: "col", class: classOf(column), def: column.def }, ...(buttons.length ? buttons : [column.label])));
    }
    this.#body = el("tbody");
    table.replaceChildren(el("thead", {}, this.#head), this.#body);
    if (options.open) {
      rowNavigation(this.#body, options.open);
      this.#body.addEventListener("click", (event) => {
        const row = event.target.closest("tr");
        if (row && !event.target.closest("a, button, input, form") && !getSelection().toString()) options.open(row.dataset.id);
      });
    }
    this.#arrows();
  }

  get body() { return this.#body; }

  #sortBy(column) {
    const [key, descending] = this.#sort;
    this.#sort = [column.key, key === column.key ? !descending : Boolean(column.num)];
    this.#arrows();
    this.update(this.#items);
  }

  #arrows() {
    this.#columns.forEach((column, i) => {
      const [key, descending] = this.#sort;
      const th = this.#head.cells[i];
      const sorts = [column, ...(column.also || [])];
      [...th.querySelectorAll("button")].forEach((button, at) => { button.className = sorts[at].key === key ? (descending ? "down" : "up") : ""; });
      if (sorts.some((sort) => sort.key === key)) th.setAttribute("aria-sort", descending ? "descending" : "ascending"); else th.removeAttribute("aria-sort");
    });
  }

  /** Show these items; rows of the same id are kept and updated. */
  update(items) {
    this.#items = items;
    const [key, descending] = this.#sort;
    const column = this.#columns.flatMap((one) => [one, ...(one.also || [])]).find((one) => one.key === key);
    const sorted = [...items].sort((a, b) => compare(column.value(a), column.value(b)) * (descending ? -1 : 1)
      || compare(this.#options.id(a), this.#options.id(b)));
    const seen = new Set();
    sorted.forEach((item, index) => {
      const id = String(this.#options.id(item));
      seen.add(id);
      const row = this.#rows.get(id) || this.#newRow(id);
      this.updateRow(row, item);
      // Moving a row that has the focus would lose it: only rows out of place are moved.
      if (this.#body.rows[index] !== row) this.#body.insertBefore(row, this.#body.rows[index] || null);
    });
    for (const [id, row] of this.#rows) if (!seen.has(id)) { row.remove(); this.#rows.delete(id); }
    // What a page has put in place of rows (a word that there are none) goes with the first one.
    if (sorted.length) while (this.#body.rows.length > sorted.length) this.#body.lastChild.remove();
    if (this.#options.open) keepStop(this.#body);
  }

  updateRow(row, item) { this.#columns.forEach((column, i) => column.update(row.cells[i].firstChild, item)); }

  /** Update one item in place, without sorting; false when it has no row yet. An item that is gone (undefined) needs none. */
  patch(item) {
    if (item === undefined) return true;
    const row = this.#rows.get(String(this.#options.id(item)));
    if (row) this.updateRow(row, item);
    return Boolean(row);
  }

  #newRow(id) {
    const row = el("tr", this.#options.open ? { tabindex: -1 } : {});
    row.dataset.id = id;
    for (const column of this.#columns) {
      row.append(el(column.head ? "th" : "td", { class: classOf(column), def: column.def, scope: column.head ? "row" : null },
        column.cell ? column.cell() : el("span")));
    }
    this.#rows.set(id, row);
    return row;
  }
}

function classOf(column) { return [column.num && "num", column.wide && "wide-only", column.cls].filter(Boolean).join(" ") || null; }

/** Numbers by size, texts by alphabet, unknown last in ascending order. */
export function compare(a, b) {
  const left = a ?? null, right = b ?? null;
  if (left === null || right === null) return (left === null) - (right === null);
  return typeof left === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
}

/** A plain table of figures (table twins): head = [{label, def}], rows = arrays of [text, raw number or null]. */
export function figures(caption, head, rows) {
  const tbody = el("tbody");
  for (const row of rows) {
    tbody.append(el("tr", {}, ...row.map(([text, raw], i) => i === 0 ? el("th", { scope: "row", "data-value": raw, def: head[0].def, "data-text": head[0].text }, text)
      : el("td", { class: head[i].text ? null : "num", "data-value": raw, def: head[i].def, "data-text": head[i].text }, text))));
  }
  return el("table", { class: "figures" }, el("caption", { class: "visually-hidden" }, caption),
    el("thead", {}, el("tr", {}, ...head.map((column) => el("th", { scope: "col", class: column.text ? null : "num", def: column.def }, column.label)))), tbody);
}
