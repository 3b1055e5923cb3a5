// @ts-check
// The rows of an answer as bars or a line: one column along, one up.

import { drawn, make } from "./dom.js";
import { text } from "./units.js";

const HEIGHT = 200;
const MOST = 400;

/** @param {{ columns: { name: string, title: string, type: string, unit: string }[], values: any[][], rows: number }} found */
export function chart(found) {
  const numbers = found.columns.map((_, place) => place)
    .filter((place) => found.columns[place].type !== "str" && found.values[place].some((value) => typeof value === "number"));
  if (!numbers.length || found.rows < 2) return make("div");
  const names = found.columns.map((column, place) => make("option", { value: place }, column.name));
  const along = make("select", { "aria-label": "Along" }, ...names);
  const up = make("select", { "aria-label": "Up" },
    ...numbers.map((place) => make("option", { value: place }, found.columns[place].name)));
  const kind = make("select", { "aria-label": "Kind of chart" },
    ...["bars", "line"].map((name) => make("option", { value: name }, name)));
  const text0 = found.columns.findIndex((column) => column.type === "str");
  along.value = String(text0 >= 0 ? text0 : 0);
  const timed = numbers.find((place) => String(place) !== along.value && found.columns[place].unit === "ns");
  up.value = String(timed ?? numbers.find((place) => String(place) !== along.value) ?? numbers[0]);
  kind.value = text0 >= 0 || found.rows <= 30 ? "bars" : "line";
  const plot = make("div", "chart-plot");
  const paint = () => plot.replaceChildren(picture(found, Number(along.value), Number(up.value), kind.value));
  for (const one of [along, up, kind]) one.addEventListener("change", paint);
  paint();
  return make("section", "panel chart",
    make("div", "chart-head small", kind, make("span", "muted", "of"), up, make("span", "muted", "by"), along), plot);
}

/** @param {any} found @param {number} along @param {number} up @param {string} kind */
function picture(found, along, up, kind) {
  const rows = Math.min(MOST, found.rows);
  const unit = found.columns[up].unit;
  const heights = found.values[up].slice(0, rows).map((/** @type {any} */ value) => typeof value === "number" ? value : null);
  const known = heights.filter((/** @type {number | null} */ value) => value !== null);
  const top = Math.max(0, ...known) || 1;
  const low = Math.min(0, ...known);
  const y = (/** @type {number} */ value) => (top - value) / (top - low) * HEIGHT;
  const plot = drawn("svg", { viewBox: `0 0 ${rows} ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", class: "device", role: "img",
    "aria-label": `${found.columns[up].name} by ${found.columns[along].name}` });
  const label = (/** @type {number} */ row) => text(found.values[along][row], found.columns[along].unit);
  if (kind === "line") {
    let path = "";
    heights.forEach((/** @type {number | null} */ value, /** @type {number} */ row) => {
      if (value !== null) path += `${path && heights[row - 1] !== null ? "L" : "M"}${row + 0.5} ${y(value).toFixed(2)}`;
    });
    plot.append(drawn("path", { d: path, class: "edge" }));
  }
  heights.forEach((/** @type {number | null} */ value, /** @type {number} */ row) => {
    if (value === null) return;
    const above = Math.min(y(value), y(0));
    const mark = kind === "bars"
      ? drawn("rect", { x: row + 0.1, width: 0.8, y: above, height: Math.max(0.5, Math.abs(y(value) - y(0))), class: "mark" })
      : drawn("rect", { x: row, width: 1, y: 0, height: HEIGHT, class: "unseen" });
    mark.append(drawn("title", "", `${label(row)}: ${text(value, unit)}`));
    plot.append(mark);
  });
  const ends = [label(0), rows > 2 ? label(Math.floor(rows / 2)) : "", label(rows - 1)].map((name) => name.length > 34 ? `${name.slice(0, 33)}…` : name);
  const scale = make("div", "chart-scale small muted", make("span", "", text(top, unit)), make("span", "", text(low, unit)));
  const more = found.rows > rows ? make("p", "small muted", `The first ${rows} of ${found.rows} rows.`) : null;
  return make("div", "", make("div", "chart-box", scale, plot),
    make("div", "chart-ends small muted", ...ends.map((name) => make("span", "", name))), more);
}
