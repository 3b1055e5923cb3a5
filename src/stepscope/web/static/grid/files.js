// @ts-check
// Rows of a grid as text for spreadsheets: exact values, one line each, nothing that a spreadsheet would compute.

import { make } from "../dom.js";

/** @typedef {import("./model.js").Model} Model */

const FORMULA = /^[=+\-@](?!\d*\.?\d+(?:[eE][+-]?\d+)?$)/;

/** @param {Model} model @param {number[]} places @param {number[]} rows */
export function tsv(model, places, rows) {
  return lines(model, places, rows, "\t", (cell) => cell.replaceAll("\t", " "));
}

/** @param {Model} model @param {number[]} places @param {number[]} rows */
export function csv(model, places, rows) {
  return lines(model, places, rows, ",", (cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell));
}

/**
 * @param {Model} model @param {number[]} places @param {number[]} rows @param {string} between
 * @param {(cell: string) => string} fitted
 */
function lines(model, places, rows, between, fitted) {
  const all = [places.map((place) => model.columns[place].name)];
  for (const row of rows) all.push(places.map((place) => cell(model, place, row)));
  return all.map((cells) => `${cells.map(fitted).join(between)}\n`).join("");
}

/** @param {Model} model @param {number} place @param {number} row */
function cell(model, place, row) {
  const exact = model.exact(place, row);
  // An apostrophe before it says "this is text" to spreadsheets.
  return model.columns[place].type === "str" && FORMULA.test(exact) ? `'${exact}` : exact;
}

/** Offers a text as a file. @param {string} name @param {string} content */
export function download(name, content) {
  const address = URL.createObjectURL(new Blob([content], { type: "text/csv;charset=utf-8" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Puts a text on the clipboard; on pages without a safe origin by a hidden field. @param {string} content */
export async function copy(content) {
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    const field = make("textarea", "unseen", content);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("the browser does not let the page copy");
  }
}
