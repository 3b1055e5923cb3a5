// @ts-check
// Small pieces of the panels.

import { make } from "../dom.js";

/** @typedef {import("../dom.js").Inside} Inside */

/** Names and values below each other; those without a value are left out. @param {[string, Inside][]} pairs */
export function facts(pairs) {
  const list = make("dl", "tl-facts");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", "", name), make("dd", "", value));
  }
  return list;
}

/** A part of a panel with its heading. @param {string} heading @param {Inside[]} inside */
export function part(heading, ...inside) {
  return make("section", "tl-part", make("h3", "", heading), ...inside);
}

/** A small table; columns that end in ":" are numbers.
 * @param {string[]} heads @param {(Node | string)[][]} rows */
export function table(heads, rows) {
  const numeric = heads.map((one) => (one.endsWith(":") ? "number" : ""));
  const head = heads.map((one, at) => make("th", { class: numeric[at], scope: "col" }, one.replace(/:$/, "")));
  const body = rows.map((row) => make("tr", "", ...row.map((one, at) => make("td", numeric[at], one))));
  return make("div", "scroll",
    make("table", "", make("thead", "", make("tr", "", ...head)), make("tbody", "", ...body)));
}
