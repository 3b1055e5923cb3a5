// @ts-check
// Points between two axes of powers of ten, under the roofs of the hardware. Larger points take more time.

import { drawn, legend, redrawn } from "../dom.js";
import { number } from "../units.js";

/**
 * @typedef {{ x: number, y: number, size: number, name: string, kind: string, row: number, says: string }} Point
 * @typedef {{ name: string, peak: number, slope: number }} Roof
 * @typedef {{ points: Point[], roofs: Roof[], x: string, y: string, colours: Record<string, string>, grid?: string }} Scatter
 */

const HEIGHT = 440;
const EDGE = { left: 64, right: 28, top: 14, bottom: 44 };
const LABELS = 8;

/** @param {HTMLElement} element @param {Scatter} data */
export function draw(element, data) {
  const picture = drawn("svg", { height: HEIGHT, role: "group", "aria-label": element.getAttribute("aria-label") ?? "" });
  const kinds = [...new Set(data.points.map((point) => point.kind))];
  element.append(picture, legend(kinds.map((kind) => [data.colours[kind] ?? "other", kind])));
  redrawn(element, () => paint(picture, data, picture.getBoundingClientRect().width));
}

/** @param {SVGElement} picture @param {Scatter} data @param {number} wide */
function paint(picture, data, wide) {
  const peaks = data.roofs.map((roof) => roof.peak);
  const knees = data.roofs.map((roof) => roof.peak / roof.slope);
  const xs = powers([...data.points.map((point) => point.x), ...knees.map((knee) => knee * 3)]);
  const ys = powers([...data.points.map((point) => point.y), ...peaks.map((peak) => peak * 1.5)]);
  const right = wide - EDGE.right;
  const bottom = HEIGHT - EDGE.bottom;
  const across = (/** @type {number} */ x) => EDGE.left + ((Math.log10(x) - xs[0]) / (xs[1] - xs[0])) * (right - EDGE.left);
  const up = (/** @type {number} */ y) => bottom - ((Math.log10(y) - ys[0]) / (ys[1] - ys[0])) * (bottom - EDGE.top);
  picture.replaceChildren(...axes(xs, ys, across, up, data, right, bottom));
  data.roofs.forEach((roof, nth) => picture.append(roofLine(roof, nth, across, up, 10 ** xs[0], 10 ** xs[1], 10 ** ys[0])));
  const most = Math.max(...data.points.map((point) => point.size), 1);
  const order = [...data.points].sort((one, other) => other.size - one.size);
  // The names of the roofs are there first, and on top of the points.
  const taken = data.roofs.map(({ name, peak }) => ({ x: right - 4 - width(name), y: up(peak) - 6, wide: width(name) }));
  const roofs = data.roofs.map(({ name }, nth) =>
    drawn("text", { x: right - 4, y: taken[nth].y, "text-anchor": "end", class: "roof-name" }, name));
  const radius = (/** @type {Point} */ point) => 3 + 15 * Math.sqrt(point.size / most);
  const labels = order.slice(0, LABELS).flatMap((point) => label(point, across(point.x), up(point.y), radius(point), right, taken));
  picture.append(...order.map((point) => dot(point, across(point.x), up(point.y), radius(point), data)));
  picture.append(...roofs, ...labels);
}

/** About how wide a name is drawn. @param {string} name */
function width(name) {
  return name.length * 6.3;
}

/** A power of ten, for an axis. @param {number} power */
function tick(power) {
  const small = [...String(-power)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("");
  return power < -3 ? `10⁻${small}` : number(10 ** power);
}

/** The powers of ten around all values. @param {number[]} values */
function powers(values) {
  const known = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log10);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.floor(Math.min(...known)), Math.ceil(Math.max(...known))];
  return [low, Math.max(high, low + 1)];
}

/**
 * @param {number[]} xs @param {number[]} ys @param {(x: number) => number} across @param {(y: number) => number} up
 * @param {Scatter} data @param {number} right @param {number} bottom
 */
function axes(xs, ys, across, up, data, right, bottom) {
  const parts = [];
  const every = Math.ceil((xs[1] - xs[0]) / 8);
  for (let power = xs[0]; power <= xs[1]; power += every) {
    const x = across(10 ** power);
    parts.push(drawn("line", { x1: x, x2: x, y1: EDGE.top, y2: bottom, class: "grid" }));
    parts.push(drawn("text", { x, y: bottom + 16, "text-anchor": "middle" }, tick(power)));
  }
  for (let power = ys[0]; power <= ys[1]; power++) {
    const y = up(10 ** power);
    parts.push(drawn("line", { x1: EDGE.left, x2: right, y1: y, y2: y, class: "grid" }));
    parts.push(drawn("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, tick(power)));
  }
  parts.push(drawn("text", { x: (EDGE.left + right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, data.x));
  parts.push(drawn("text", { x: 14, y: (EDGE.top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(EDGE.top + bottom) / 2})` }, data.y));
  return parts;
}

/**
 * @param {Roof} roof @param {number} nth @param {(x: number) => number} across @param {(y: number) => number} up
 * @param {number} low @param {number} high @param {number} floor
 */
function roofLine(roof, nth, across, up, low, high, floor) {
  const knee = Math.min(high, roof.peak / roof.slope);
  const start = Math.max(low, floor / roof.slope);
  const path = `M${across(start)} ${up(start * roof.slope)}L${across(knee)} ${up(knee * roof.slope)}L${across(high)} ${up(Math.min(roof.peak, high * roof.slope))}`;
  return drawn("path", { d: path, class: `roof${nth ? " dashed" : ""}` });
}

/** @param {Point} point @param {number} x @param {number} y @param {number} radius @param {Scatter} data */
function dot(point, x, y, radius, data) {
  const one = drawn("circle", { cx: x, cy: y, r: radius, class: `point ${data.colours[point.kind] ?? "other"}`, tabindex: 0, role: "button", "aria-label": point.says },
    drawn("title", "", point.says));
  const choose = () => {
    const grid = data.grid ? document.querySelector(`[data-grid="${data.grid}"]`) : null;
    grid?.dispatchEvent(new CustomEvent("chooserow", { detail: { row: point.row } }));
    grid?.scrollIntoView({ block: "nearest" });
  };
  one.addEventListener("click", choose);
  one.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose();
  });
  return one;
}

/**
 * The name of a point beside it, where no other name is.
 * @param {Point} point @param {number} x @param {number} y @param {number} radius @param {number} right
 * @param {{ x: number, y: number, wide: number }[]} taken
 */
function label(point, x, y, radius, right, taken) {
  const name = point.name.length > 34 ? `${point.name.slice(0, 33)}…` : point.name;
  const wide = width(name);
  const away = radius + 5;
  const left = x + wide + away > right ? x - wide - away : x + away;
  for (const shift of [4, -10, 18]) {
    if (taken.some((one) => Math.abs(one.y - y - shift) < 12 && left < one.x + one.wide && one.x < left + wide)) continue;
    taken.push({ x: left, y: y + shift, wide });
    return [drawn("text", { x: left, y: y + shift, class: "point-name" }, name)];
  }
  return [];
}

