// @ts-check
// Parts of a whole as nested boxes, as large as their time. A click looks into one; the path leads back.

import { button, drawn, make, redrawn } from "../dom.js";
import { share, text } from "../units.js";

/**
 * @typedef {{ name: string, unit: string, values: number[], own?: number[] }} Measure
 * @typedef {{ names: string[], depths: number[], measures: Measure[], grid?: string, colours?: string[] }} Treemap
 * @typedef {{ x: number, y: number, wide: number, high: number }} Box
 */

const HEIGHT = 420;
const BAR = 17;
const SMALLEST = 5;
const COLOURS = ["device", "copy", "fill", "communication", "calls", "input", "host", "other"];

/** @param {HTMLElement} element @param {Treemap} data */
export function draw(element, data) {
  const state = { top: -1, measure: data.measures[0] };
  const children = childrenOf(data.depths);
  const bar = make("div", "treemap-bar");
  const picture = drawn("svg", { height: HEIGHT, role: "img", "aria-label": element.getAttribute("aria-label") ?? "" });
  element.append(bar, picture);
  const look = (/** @type {number} */ at) => {
    state.top = at;
    paint();
  };
  const paint = () => {
    bar.replaceChildren(...crumbs(data, state.top, children.parents, look), ...choice(data, state, paint));
    const whole = { x: 0, y: 0, wide: picture.getBoundingClientRect().width, high: HEIGHT };
    picture.replaceChildren();
    const painter = new Painter(data, children, state.measure, look, element);
    const tops = state.top < 0 ? children.inside[data.names.length] : [state.top];
    painter.fill(picture, tops, whole, 0);
    if (!picture.childNodes.length) picture.append(drawn("text", { x: 8, y: 20 }, `No ${state.measure.name} time.`));
  };
  redrawn(element, paint);
}

/** @param {Treemap} data @param {{ top: number, measure: Measure }} state @param {() => void} paint */
function choice(data, state, paint) {
  if (data.measures.length < 2) return [];
  const group = make("span", "treemap-choice");
  for (const measure of data.measures) {
    const one = button(measure.name, () => {
      state.measure = measure;
      paint();
    }, { title: `Boxes by ${measure.name} time`, "aria-pressed": String(measure === state.measure) });
    group.append(one);
  }
  return [group];
}

/** @param {Treemap} data @param {number} top @param {number[]} parents @param {(at: number) => void} look */
function crumbs(data, top, parents, look) {
  const path = [];
  for (let at = top; at >= 0; at = parents[at]) path.unshift(at);
  return [-1, ...path].map((at) => button(at < 0 ? "All" : data.names[at], () => look(at), { title: "Look at this" }));
}

/** Who is inside whom, from depths; the tops are inside a last one that is all. @param {number[]} depths */
function childrenOf(depths) {
  /** @type {number[][]} */
  const inside = Array.from({ length: depths.length + 1 }, () => []);
  /** @type {number[]} */
  const parents = [];
  /** @type {number[]} */
  const around = [];
  depths.forEach((depth, at) => {
    parents[at] = depth ? around[depth - 1] : -1;
    inside[depth ? parents[at] : depths.length].push(at);
    around[depth] = at;
  });
  return { inside, parents };
}

class Painter {
  /**
   * @param {Treemap} data @param {{ inside: number[][], parents: number[] }} tree @param {Measure} measure
   * @param {(at: number) => void} look @param {HTMLElement} element
   */
  constructor(data, tree, measure, look, element) {
    this.data = data;
    this.tree = tree;
    this.measure = measure;
    this.look = look;
    this.element = element;
    this.whole = tree.inside[data.names.length].reduce((sum, at) => sum + measure.values[at], 0) || 1;
  }

  /** @param {SVGElement} into @param {number[]} parts @param {Box} box @param {number} level */
  fill(into, parts, box, level) {
    const known = parts.filter((at) => this.measure.values[at] > 0);
    const sizes = known.map((at) => this.measure.values[at]);
    for (const [nth, place] of squares(sizes, box).entries()) {
      if (place.wide < SMALLEST || place.high < SMALLEST) continue;
      this.box(into, known[nth], place, level);
    }
  }

  /** @param {SVGElement} into @param {number} at @param {Box} box @param {number} level */
  box(into, at, box, level) {
    const inside = this.tree.inside[at];
    const value = this.measure.values[at];
    const name = this.data.names[at];
    const colour = COLOURS[hash(name.replace(/_\d+$/, "")) % COLOURS.length];
    const group = drawn("g", { class: `${colour} treemap-box`, "data-at": at });
    const { x, y, wide, high } = box;
    group.append(
      drawn("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(1, wide - 1), height: Math.max(1, high - 1), rx: 2 }),
      drawn("title", "", `${name}\n${text(value, this.measure.unit)}, ${share(value / this.whole)}`),
    );
    const room = Math.floor((wide - 10) / 6.4);
    if (room >= 3 && high >= BAR) {
      const label = name.length > room ? `${name.slice(0, room - 1)}…` : name;
      const figure = `${label}  ${text(value, this.measure.unit)}`;
      group.append(drawn("text", { x: x + 5, y: y + 12.5 }, figure.length <= room ? figure : label));
    }
    group.addEventListener("click", (event) => {
      event.stopPropagation();
      if (inside.length) this.look(at);
      choose(this.data.grid, at);
    });
    into.append(group);
    if (inside.length && high > BAR + 8 && wide > 24) {
      // What a module does itself is room that no box inside it takes.
      const own = inside.reduce((rest, one) => rest - this.measure.values[one], value);
      const inner = { x: x + 3, y: y + BAR, wide: wide - 6, high: high - BAR - 3 };
      if (own > 0 && inner.wide > inner.high) inner.wide *= 1 - own / value;
      else if (own > 0) inner.high *= 1 - own / value;
      this.fill(into, inside, inner, level + 1);
    }
  }
}

/** Shows a row in the grid of a name. @param {string | undefined} name @param {number} row */
function choose(name, row) {
  if (!name) return;
  document.querySelector(`[data-grid="${name}"]`)?.dispatchEvent(new CustomEvent("chooserow", { detail: { row } }));
}

/** @param {string} name */
function hash(name) {
  let found = 7;
  for (const sign of name) found = (found * 31 + (sign.codePointAt(0) ?? 0)) % 1_000_003;
  return found;
}

/** Boxes of given sizes in one box, as square as they can be, in rows along its shorter side. @returns {Box[]} */
function squares(/** @type {number[]} */ sizes, /** @type {Box} */ box) {
  const order = sizes.map((_, at) => at).sort((one, other) => sizes[other] - sizes[one]);
  const whole = sizes.reduce((sum, size) => sum + size, 0);
  const scale = whole ? (box.wide * box.high) / whole : 0;
  /** @type {Box[]} */
  const found = new Array(sizes.length);
  let { x, y, wide, high } = box;
  for (let at = 0; at < order.length; ) {
    const side = Math.max(1e-9, Math.min(wide, high));
    let [sum, taken, best] = [0, 0, Infinity];
    while (at + taken < order.length) {
      const next = sum + sizes[order[at + taken]] * scale;
      const thick = next / side;
      const worst = Math.max(...[order[at], order[at + taken]].map((one) => {
        const long = (sizes[one] * scale) / thick;
        return Math.max(long / thick, thick / long);
      }));
      if (taken && worst > best) break;
      [sum, best] = [next, worst];
      taken += 1;
    }
    const thick = sum / side;
    let along = 0;
    for (const one of order.slice(at, at + taken)) {
      const long = (sizes[one] * scale) / (thick || 1);
      found[one] = wide >= high ? { x, y: y + along, wide: thick, high: long } : { x: x + along, y, wide: long, high: thick };
      along += long;
    }
    if (wide >= high) [x, wide] = [x + thick, wide - thick];
    else [y, high] = [y + thick, high - thick];
    at += taken;
  }
  return found;
}
