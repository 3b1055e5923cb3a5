// @ts-check
// The names of rows, left of the picture: buttons that fold and unfold, in the order of the rows.

import { make } from "../dom.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Rows} Rows */

/** Shows the names of all rows. @param {HTMLElement} column @param {Rows} rows @param {(row: Row) => void} turn */
export function drawHeaders(column, rows, turn) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.row;
  column.replaceChildren();
  column.style.height = `${rows.height}px`;
  for (const row of rows.all) column.append(header(row, turn));
  if (focused) /** @type {HTMLElement | null} */ (column.querySelector(`[data-row="${CSS.escape(focused)}"]`))?.focus();
}

/** @param {Row} row @param {(row: Row) => void} turn */
function header(row, turn) {
  const label = make("span", "tl-label", row.label);
  const element = make(row.folds ? "button" : "div", `tl-row tl-${row.kind}`, label);
  element.dataset.row = row.id;
  element.title = row.title;
  element.style.top = `${row.y}px`;
  element.style.height = `${row.height}px`;
  element.style.paddingLeft = `${8 + row.depth * 10}px`;
  if (row.folds) {
    element.setAttribute("aria-expanded", String(row.open));
    element.addEventListener("click", () => turn(row));
    element.prepend(make("span", "tl-sign", row.open ? "▾" : "▸"));
  }
  return element;
}
