// @ts-check
// Rank by step on a canvas: a row is a rank, a column a step. Of 1,024 ranks only those in sight are drawn.

import { ask, problem } from "../asking.js";
import { colour, make, redrawn } from "../dom.js";
import { count, duration } from "../units.js";

const TOP = 20;
const FONT = "11.5px system-ui, sans-serif";
const LABEL_HEIGHT = 13;
const LABEL_WIDTH = 44;
const PALEST = 0.07;
/** So many ranks are in sight at once. */
const FEW = 140;

/** Values that spread by less than this part of the longest look alike, for they are. */
const LEAST_SPREAD = 0.2;
/** Where a few cells are more than so many times as long as all others, they do not make the others pale. */
const FAR = 2;
const MOST_FAR = 0.01;

/** @typedef {{ ranks: number[], hosts: string[], columns: number, every: number, first_steps: number[],
 *   values: (number | null)[], steps: number[] | null }} Found values and steps go rank by rank, then column by column */
/** @typedef {{ rank: number, host: string, step: number, value: number }} Cell */

/** @param {HTMLElement} element @param {{ figures: [string, string][], timeline: string }} data */
export function draw(element, data) {
  const figure = choice("Figure", data.figures);
  const order = choice("Order of the ranks", [["rank", "by rank"], ["most", "longest first"]]);
  const told = make("p", "small muted heat-told");
  const scale = make("div", { class: "heat-scale small muted", "aria-hidden": "true" });
  const canvas = make("canvas", { tabindex: 0, role: "img" });
  const box = make("div", "heat-box", make("div", "heat-room", canvas));
  element.replaceChildren(make("div", "heat-head", figure, order, scale), told, box);
  /** @type {HeatMap | null} */ let map = null;
  let fresh = true;

  const tell = (/** @type {Cell | null} */ one) => { told.textContent = one ? said(one) : map?.summary() ?? ""; };
  const follow = (/** @type {Cell | null} */ one) => { if (one && data.timeline) location.href = `${data.timeline}?rank=${one.rank}&step=${one.step}`; };
  const sort = () => { map?.sort(order.value === "most"); map?.paint(); };

  async function load() {
    try {
      map = new HeatMap(canvas, box, await ask("rank_steps", { figure: figure.value }));
    } catch (error) {
      box.replaceChildren(problem(error));
      return;
    }
    // Where not all ranks are in sight, those that matter are.
    if (fresh && map.found.ranks.length > FEW) order.value = "most";
    fresh = false;
    scale.replaceChildren(...map.legend());
    canvas.setAttribute("aria-label",
      `${figure.selectedOptions[0].textContent} of ${count(map.found.ranks.length)} ranks. ${map.summary()} Arrow keys go from cell to cell.`);
    tell(null);
    sort();
  }

  figure.addEventListener("change", load);
  order.addEventListener("change", sort);
  box.addEventListener("scroll", () => map?.paint());
  canvas.addEventListener("pointermove", (event) => {
    const one = map?.under(event) ?? null;
    canvas.style.cursor = one ? "pointer" : "default";
    tell(one);
  });
  canvas.addEventListener("pointerleave", () => tell(null));
  canvas.addEventListener("click", (event) => follow(map?.under(event) ?? null));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") follow(map?.chosen() ?? null);
    if (!map?.go(event.key)) return;
    event.preventDefault();
    tell(map.chosen());
  });
  redrawn(box, () => { map?.colour(); map?.paint(); });
  load();
}

/** @param {string} label @param {[string, string][]} options */
function choice(label, options) {
  return make("select", { "aria-label": label }, ...options.map(([value, title]) => make("option", { value }, title)));
}

/** @param {Cell} one */
function said(one) {
  return `rank ${one.rank}${one.host ? ` on ${one.host}` : ""}, step ${one.step}: ${duration(one.value)}`;
}

/** The cells of one figure, their colours, and which of them are in sight. */
class HeatMap {
  /** @param {HTMLCanvasElement} canvas @param {HTMLElement} box @param {Found} found */
  constructor(canvas, box, found) {
    this.canvas = canvas;
    this.box = box;
    this.found = found;
    this.order = found.ranks.map((_, place) => place);
    /** @type {{ row: number, column: number } | null} */ this.cursor = null;
    this.left = 0;
    this.cell = { width: 1, height: 1 };
    const known = Float64Array.from(found.values.filter((value) => value !== null)).sort();
    this.most = known[known.length - 1] ?? 0;
    const usual = known[Math.floor((known.length - 1) * (1 - MOST_FAR))] ?? 0;
    this.top = usual && this.most > FAR * usual ? usual : Math.max(1, this.most);
    this.low = Math.min(known[0] ?? 0, this.top * (1 - LEAST_SPREAD));
    this.image = make("canvas", { width: found.columns, height: found.ranks.length });
    this.colour();
  }

  summary() {
    const { every, columns, ranks } = this.found;
    const shown = every > 1 ? ` A column is the longest of ${every} steps.` : "";
    return ranks.length && columns ? `At most ${duration(this.most)}.${shown}` : "No steps were recorded.";
  }

  /** What the colours mean. */
  legend() {
    const far = this.top < this.most ? [make("span", "swatch high"), `longer, up to ${duration(this.most)}`] : [];
    return [duration(this.low), make("span", "heat-colours"), duration(this.top), ...far];
  }

  /** By rank, or those first that take longest over all steps. @param {boolean} most */
  sort(most) {
    const { ranks, columns, values } = this.found;
    this.order = ranks.map((_, place) => place);
    if (!most) return;
    const means = this.order.map((row) => {
      const known = values.slice(row * columns, (row + 1) * columns).filter((value) => value !== null);
      return known.reduce((sum, value) => sum + value, 0) / Math.max(1, known.length);
    });
    this.order.sort((one, other) => means[other] - means[one]);
  }

  /** Draws a pixel for each cell: they are only made larger afterwards. */
  colour() {
    const { columns, ranks, values } = this.found;
    if (!columns || !ranks.length) return;
    const usual = channels(colour("device"));
    const far = channels(colour("high"));
    const image = new ImageData(columns, ranks.length);
    for (let at = 0; at < values.length; at++) {
      const value = values[at];
      if (value === null) continue;
      const strength = Math.min(1, Math.max(0, (value - this.low) / (this.top - this.low)));
      image.data.set(value > this.top ? far : usual, at * 4);
      image.data[at * 4 + 3] = Math.round(255 * (PALEST + (1 - PALEST) * strength));
    }
    brush(this.image).putImageData(image, 0, 0);
  }

  /** Draws what is in sight. */
  paint() {
    const { found, canvas, box } = this;
    const wide = Math.max(160, box.clientWidth);
    const context = brush(canvas);
    context.font = FONT;
    this.left = Math.ceil(Math.max(...[found.ranks[0] ?? 0, found.ranks.at(-1) ?? 0].map((rank) => context.measureText(`rank ${rank}`).width))) + 10;
    this.cell = {
      width: (wide - this.left) / Math.max(1, found.columns),
      height: Math.max(3, Math.min(20, Math.floor(420 / Math.max(1, found.ranks.length)))),
    };
    const whole = TOP + this.cell.height * found.ranks.length;
    /** @type {HTMLElement} */ (canvas.parentElement).style.height = `${whole}px`;
    const high = Math.min(whole, box.clientHeight);
    const scale = devicePixelRatio || 1;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(high * scale);
    context.scale(scale, scale);
    const first = Math.floor(box.scrollTop / this.cell.height);
    const last = Math.min(found.ranks.length, Math.ceil((box.scrollTop + high - TOP) / this.cell.height));
    this.rows(context, first, last);
    this.labels(context, first, last);
    this.axis(context, wide);
    this.mark(context);
  }

  /** Where a row begins, below the axis. @param {number} row */
  y(row) {
    return TOP + row * this.cell.height - this.box.scrollTop;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} first @param {number} last */
  rows(context, first, last) {
    const { left, cell, found } = this;
    if (!found.columns) return;
    const wide = found.columns * cell.width;
    context.imageSmoothingEnabled = false;
    const gap = cell.height > 6 ? 1 : 0;
    for (let row = first; row < last; row++) {
      context.drawImage(this.image, 0, this.order[row], found.columns, 1, left, this.y(row), wide, cell.height - gap);
    }
    if (cell.width <= 6) return;
    for (let column = 1; column <= found.columns; column++) context.clearRect(left + column * cell.width - 1, 0, 1, this.y(last));
  }

  /** Names of rows: round ones where not all have room. @param {CanvasRenderingContext2D} context @param {number} first @param {number} last */
  labels(context, first, last) {
    const every = round(LABEL_HEIGHT / this.cell.height);
    context.fillStyle = colour("muted");
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let row = Math.ceil(first / every) * every; row < last; row += every) {
      const middle = Math.max(TOP + LABEL_HEIGHT / 2 - 2, this.y(row) + this.cell.height / 2);  // the axis covers no half of one
      context.fillText(`rank ${this.found.ranks[this.order[row]]}`, this.left - 8, middle);
    }
  }

  /** The numbers of steps, which stay in sight. @param {CanvasRenderingContext2D} context @param {number} wide */
  axis(context, wide) {
    const { cell, found, left } = this;
    context.clearRect(0, 0, wide, TOP - 2);
    const every = round(LABEL_WIDTH / cell.width);
    context.textAlign = "right";
    context.fillText("step", left - 8, TOP / 2 - 1);
    context.textAlign = "center";
    for (let column = 0; column < found.columns; column += every) {
      const text = count(found.first_steps[column]);
      const half = context.measureText(text).width / 2;
      const middle = left + (column + 0.5) * cell.width;
      context.fillText(text, Math.min(wide - half, Math.max(left + half, middle)), TOP / 2 - 1);
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  mark(context) {
    if (!this.cursor) return;
    context.strokeStyle = colour("text");
    context.lineWidth = 1.5;
    context.strokeRect(this.left + this.cursor.column * this.cell.width, this.y(this.cursor.row), this.cell.width, this.cell.height);
  }

  /** The cell below a pointer. @param {MouseEvent} event */
  under(event) {
    const place = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left - this.left, event.clientY - place.top - TOP];
    return x < 0 || y < 0 ? null : this.at(Math.floor((y + this.box.scrollTop) / this.cell.height), Math.floor(x / this.cell.width));
  }

  /** The cell of the keyboard. */
  chosen() {
    return this.cursor && this.at(this.cursor.row, this.cursor.column);
  }

  /** @param {number} row @param {number} column @returns {Cell | null} */
  at(row, column) {
    const { columns, ranks, hosts, values, steps, first_steps } = this.found;
    if (row >= ranks.length || column >= columns) return null;
    const place = this.order[row];
    const value = values[place * columns + column];
    if (value === null) return null;
    return { rank: ranks[place], host: hosts[place], step: steps ? steps[place * columns + column] : first_steps[column], value };
  }

  /** Moves the cell of the keyboard; whether the key was one for that. @param {string} key */
  go(key) {
    const move = MOVES.get(key);
    if (!move) return false;
    const at = this.cursor ?? { row: -move[0], column: -move[1] };
    this.cursor = {
      row: Math.min(this.found.ranks.length - 1, Math.max(0, at.row + move[0])),
      column: Math.min(this.found.columns - 1, Math.max(0, at.column + move[1])),
    };
    const y = this.cursor.row * this.cell.height;
    const room = this.box.clientHeight - TOP - this.cell.height;
    this.box.scrollTop = Math.min(y, Math.max(y - room, this.box.scrollTop));
    this.paint();
    return true;
  }
}

/** @type {Map<string, [number, number]>} */
const MOVES = new Map([["ArrowUp", [-1, 0]], ["ArrowDown", [1, 0]], ["ArrowLeft", [0, -1]], ["ArrowRight", [0, 1]],
  ["PageUp", [-50, 0]], ["PageDown", [50, 0]]]);

/** @param {HTMLCanvasElement} canvas */
function brush(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** A colour of the sheet in numbers. @param {string} name */
function channels(name) {
  const context = brush(make("canvas", { width: 1, height: 1 }));
  context.fillStyle = name;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
}

/** The next of 1, 2, 5, 10, 20, 50 … @param {number} least */
function round(least) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (digit * power >= least) return digit * power;
  }
}
