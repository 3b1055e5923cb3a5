// @ts-check
// Values over time, each level until the next; pointing at it reads all curves at that moment.

import { drawn, legend, make, redrawn } from "../dom.js";
import { duration, size, text } from "../units.js";

/**
 * @typedef {{ name: string, colour: string, dashed: boolean, values: (number | null)[] }} Line
 * @typedef {{ at: number[], lines: Line[], marks: { at: number, name: string }[], unit: string, along: string, zero?: number, to?: string }} Curve
 */

const HEIGHT = 260;
const EDGE = { left: 70, right: 12, top: 12, bottom: 26 };

/** @param {HTMLElement} element @param {Curve} data */
export function draw(element, data) {
  const picture = drawn("svg", { height: HEIGHT, role: "img", "aria-label": element.getAttribute("aria-label") ?? "" });
  const told = make("p", "curve-told small muted", "\u00a0");
  element.append(picture, told, legend(data.lines.map((line) => [`${line.colour}${line.dashed ? " dash" : ""}`, line.name])));
  redrawn(element, () => paint(picture, told, data, picture.getBoundingClientRect().width));
}

/** @param {SVGElement} picture @param {HTMLElement} told @param {Curve} data @param {number} wide */
function paint(picture, told, data, wide) {
  const [first, last] = [data.at[0], data.at[data.at.length - 1]];
  const most = Math.max(1, ...data.lines.map((line) => line.values.reduce((best, value) => Math.max(best ?? 0, value ?? 0), 0) ?? 0));
  const step = tick(most, data.unit);
  const top = Math.ceil(most / step) * step;
  const right = wide - EDGE.right;
  const bottom = HEIGHT - EDGE.bottom;
  const across = (/** @type {number} */ x) => EDGE.left + ((x - first) / (last - first || 1)) * (right - EDGE.left);
  const up = (/** @type {number} */ y) => bottom - (y / top) * (bottom - EDGE.top);
  const parts = [];
  for (let value = 0; value <= top; value += step) {
    parts.push(drawn("line", { x1: EDGE.left, x2: right, y1: up(value), y2: up(value), class: "grid" }));
    parts.push(drawn("text", { x: EDGE.left - 8, y: up(value) + 4, "text-anchor": "end" }, data.unit === "bytes" ? size(value) : text(value, data.unit)));
  }
  for (const mark of data.marks) {
    const x = across(mark.at);
    if (x < EDGE.left || x > right) continue;
    parts.push(drawn("line", { x1: x, x2: x, y1: EDGE.top, y2: bottom, class: "grid dashed" }));
    parts.push(drawn("text", { x: x + 4, y: EDGE.top + 8 }, mark.name));
  }
  for (const line of data.lines) parts.push(...path(line, data.at, across, up, bottom));
  const along = (/** @type {number} */ value) => (data.along === "ns" ? duration(value - (data.zero ?? 0)) : text(value, ""));
  parts.push(drawn("text", { x: EDGE.left, y: HEIGHT - 8 }, along(first)));
  parts.push(drawn("text", { x: right, y: HEIGHT - 8, "text-anchor": "end" }, along(last)));
  const cursor = drawn("line", { y1: EDGE.top, y2: bottom, class: "cursor", visibility: "hidden" });
  const ground = drawn("rect", { x: EDGE.left, y: EDGE.top, width: Math.max(1, right - EDGE.left), height: bottom - EDGE.top, class: "curve-ground" });
  picture.replaceChildren(...parts, cursor, ground);
  const place = (/** @type {MouseEvent} */ event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    return first + ((x - EDGE.left) / (right - EDGE.left)) * (last - first);
  };
  ground.addEventListener("mousemove", (event) => {
    const at = before(data.at, place(event));
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(across(data.at[at])));
    const read = data.lines.map((line) => `${line.name} ${text(line.values[at], data.unit)}`);
    told.textContent = `${along(data.at[at])}: ${read.join(", ")}`;
  });
  ground.addEventListener("mouseleave", () => {
    cursor.setAttribute("visibility", "hidden");
    told.textContent = "\u00a0";
  });
  const to = data.to;
  if (to?.startsWith("/")) {
    ground.addEventListener("click", (event) => {
      const at = data.at[before(data.at, place(event))];
      location.href = `${to}${Math.round(at)}`;
    });
  }
}

/**
 * @param {Line} line @param {number[]} at @param {(x: number) => number} across @param {(y: number) => number} up
 * @param {number} bottom
 */
function path(line, at, across, up, bottom) {
  let d = "";
  at.forEach((x, nth) => {
    const y = line.values[nth];
    if (y === null) return;
    d += d ? `H${across(x).toFixed(1)}V${up(y).toFixed(1)}` : `M${across(x).toFixed(1)} ${up(y).toFixed(1)}`;
  });
  if (!d) return [];
  const edge = drawn("path", { d, class: `edge ${line.colour}${line.dashed ? " dashed" : ""}` });
  if (line.dashed) return [edge];
  return [drawn("path", { d: `${d}V${bottom}H${across(at[0])}Z`, class: `area ${line.colour}` }), edge];
}

/** A round distance of lines: powers of two for bytes. @param {number} most @param {string} unit */
function tick(most, unit) {
  if (unit === "bytes") return 2 ** Math.max(0, Math.ceil(Math.log2(most / 6)));
  const power = 10 ** Math.floor(Math.log10(most / 5));
  return [1, 2, 5, 10].map((part) => part * power).find((part) => most / part <= 6) ?? most;
}

/** The last place at or before a moment. @param {number[]} at @param {number} x */
function before(at, x) {
  let [low, high] = [0, at.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (at[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}
