// @ts-check
// All that is known of one row of a grid, with where it leads to.

import { button, make } from "../dom.js";
import { written } from "./model.js";

/** @typedef {import("./model.js").Model} Model */

/** @param {Model} model @param {number} row @param {() => void} close */
export function detail(model, row, close) {
  const first = model.columns.findIndex((column) => column.type === "str");
  const name = first >= 0 ? String(model.value(first, row) ?? "–") : `Row ${row + 1}`;
  const links = linksOf(model, row);
  const list = make("dl");
  model.columns.forEach((column, place) => {
    if (place === first) return;
    const value = model.value(place, row);
    if (value === null) return;
    const exact = column.type === "str" ? {} : { class: "number", title: model.exact(place, row) };
    list.append(make("dt", { title: column.description }, column.title), make("dd", exact, written(value, column)));
  });
  return make("aside", { class: "grid-detail", "aria-label": "The chosen row" },
    make("div", "grid-detail-bar",
      make("p", "grid-detail-name", name), button("✕", close, { title: "Close (Escape)", "aria-label": "Close" })),
    links.length ? make("div", "grid-links", ...links) : null,
    list);
}

/** Links of a row; a value that is absent leads nowhere. @param {Model} model @param {number} row */
export function linksOf(model, row) {
  return model.data.links.flatMap(({ title, to, column }) => {
    const value = valueOf(model, column, row);
    if (value === null || !to.startsWith("/")) return [];
    const link = make("a", "", title);
    // An address ends where the value begins, or has the names of several columns in braces.
    link.href = to.includes("{") ? to.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(valueOf(model, name, row) ?? "")) : to + encodeURIComponent(value);
    return [link];
  });
}

/** @param {Model} model @param {string} column @param {number} row @returns {string | null} */
function valueOf(model, column, row) {
  const place = model.place(column);
  const value = place < 0 ? null : model.value(place, row);
  return value === null ? null : String(value);
}
