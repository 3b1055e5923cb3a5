// @ts-check
// A flame graph: callers above what they call. Only bars that are wide enough to be seen are drawn.

import { button, colour, legend, make, redrawn } from "../dom.js";
import { layout } from "../flame/layout.js";
import { shortName } from "../names.js";
import { share, text } from "../units.js";

/** @typedef {import("../flame/layout.js").Layout} Layout */

const BAR = 18;
const NARROWEST = 0.7;
const LIBRARY = /site-packages|dist-packages|^torch[/.]|^<|\/lib\/python|^(threading|contextlib|importlib)/;
/** @type {Record<string, string>} */
const COLOURS = { own: "host", frame: "other", range: "communication", op: "device", call: "calls", module: "fill", event: "low", thread: "low", sample: "host" };
/** @type {Record<string, string>} */
const SAID = { own: "your code", frame: "libraries", module: "modules", op: "operators", call: "runtime calls", range: "ranges", sample: "functions" };

/** @param {HTMLElement} element @param {any} data */
export function draw(element, data) {
  new Flame(element, layout(data));
}

class Flame {
  /** @param {HTMLElement} element @param {Layout} bars */
  constructor(element, bars) {
    this.bars = bars;
    this.styles = bars.names.map((name) => !LIBRARY.test(name));
    this.modules = bars.names.map((name) => name.startsWith("nn.Module: "));
    this.start = bars.timed ? bars.low.reduce((least, low) => Math.min(least, low), Infinity) : 0;
    this.view = [this.start, bars.end];
    this.pointed = -1;
    this.current = -1;
    /** @type {Uint8Array | null} */
    this.found = null;
    this.told = make("p", { class: "flame-told small", "aria-live": "polite" });
    const label = `${element.getAttribute("aria-label")}: arrows move, Enter looks closer, Escape goes back`;
    this.canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.scroller = make("div", "flame-scroll", this.canvas);
    this.reset = button("Whole", () => this.look(-1), { title: "Shows all again (Escape)", disabled: true });
    const tools = make("div", "flame-tools", this.search(), this.reset, this.legend());
    element.append(tools, this.scroller, this.told);
    this.listen();
    this.tell(-1);
    redrawn(this.scroller, () => this.resize());
  }

  /** @param {number} at */
  kind(at) {
    const kind = this.bars.kinds[this.bars.of[at]];
    if (kind === "frame" && this.modules[this.bars.name[at]]) return "module";
    return kind === "frame" && this.styles[this.bars.name[at]] ? "own" : kind;
  }

  search() {
    const field = make("input", { class: "grid-filter", type: "search", placeholder: "Search", "aria-label": "Search in the names" });
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      const names = wanted ? this.bars.names.map((name) => name.toLowerCase().includes(wanted)) : null;
      this.found = names && Uint8Array.from(this.bars.name, (name) => Number(names[name]));
      this.paint();
      this.tell(-1);
    });
    return field;
  }

  legend() {
    const used = new Set();
    for (let at = 0; at < Math.min(this.bars.name.length, 20_000); at++) used.add(this.kind(at));
    return legend(Object.entries(SAID).filter(([kind]) => used.has(kind)).map(([kind, said]) => [COLOURS[kind], said]));
  }

  listen() {
    this.canvas.addEventListener("mousemove", (event) => {
      const at = this.at(event);
      if (at === this.pointed) return;
      this.pointed = at;
      this.paint();
      this.tell(at);
    });
    this.canvas.addEventListener("mouseleave", () => {
      this.pointed = -1;
      this.paint();
      this.tell(-1);
    });
    this.canvas.addEventListener("click", (event) => {
      const at = this.at(event);
      if (at >= 0) this.look(at);
    });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const { parent, levels, depth } = this.bars;
    const now = this.current;
    const beside = now < 0 ? [] : levels[depth[now]];
    const inside = (levels[now < 0 ? 0 : depth[now] + 1] ?? []).filter((at) => now < 0 || parent[at] === now);
    /** @type {Record<string, () => number>} */
    const moves = {
      ArrowUp: () => (now < 0 ? -1 : parent[now]),
      ArrowDown: () => inside.reduce((best, at) => (best < 0 || this.width(at) > this.width(best) ? at : best), -1),
      ArrowLeft: () => beside[beside.indexOf(now) - 1] ?? now,
      ArrowRight: () => beside[beside.indexOf(now) + 1] ?? now,
    };
    if (event.key === "Escape") this.look(-1);
    else if (event.key === "Enter") this.look(now);
    else if (event.key in moves) {
      const next = moves[event.key]();
      if (next >= 0) this.current = next;
      this.pointed = this.current;
      this.tell(this.current);
      this.paint();
    } else return;
    event.preventDefault();
  }

  /** @param {number} at */
  width(at) {
    return this.bars.high[at] - this.bars.low[at];
  }

  /** The bar under the mouse. @param {MouseEvent} event */
  at(event) {
    const edge = this.canvas.getBoundingClientRect();
    const level = this.bars.levels[Math.floor((event.clientY - edge.top) / BAR)] ?? [];
    const [from, to] = this.view;
    const place = from + ((event.clientX - edge.left) / edge.width) * (to - from);
    const at = level[this.first(level, place)];
    return at !== undefined && this.bars.low[at] <= place ? at : -1;
  }

  /** The first bar of a level that ends after a place. @param {number[]} level @param {number} place */
  first(level, place) {
    let [low, high] = [0, level.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.bars.high[level[middle]] <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Looks at one bar as wide as the page, or at all. @param {number} at */
  look(at) {
    this.view = at < 0 ? [this.start, this.bars.end] : [this.bars.low[at], Math.max(this.bars.high[at], this.bars.low[at] + 1e-9)];
    this.current = at;
    this.reset.disabled = at < 0;
    this.paint();
    this.tell(at);
  }

  /** @param {number} at */
  tell(at) {
    const { unit, names, name, device, end } = this.bars;
    const whole = end - this.start;
    if (at < 0 && this.found) {
      const [count, sum] = this.matches();
      this.told.textContent = `${count} found, ${text(sum, unit)}, ${share(sum / whole)}`;
    } else if (at < 0) this.told.textContent = `${text(whole, unit)} in all. Click a bar to look closer.`;
    else {
      const launched = device?.[at] ? `, ${text(device[at], unit)} of device work` : "";
      this.told.textContent = `${names[name[at]]} – ${text(this.width(at), unit)}, ${share(this.width(at) / whole)}${launched}`;
    }
  }

  /** How many bars were found, and the width of those in no other that was found. @returns {[number, number]} */
  matches() {
    const found = this.found ?? new Uint8Array();
    const { parent, levels } = this.bars;
    const covered = new Uint8Array(found.length);
    let [count, sum] = [0, 0];
    for (const level of levels) {
      for (const at of level) {
        covered[at] = parent[at] >= 0 ? covered[parent[at]] | found[parent[at]] : 0;
        if (!found[at]) continue;
        count += 1;
        if (!covered[at]) sum += this.width(at);
      }
    }
    return [count, sum];
  }

  resize() {
    const scale = devicePixelRatio || 1;
    const [wide, high] = [this.scroller.clientWidth, Math.max(1, this.bars.levels.length) * BAR];
    this.canvas.width = wide * scale;
    this.canvas.height = high * scale;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    this.paint();
  }

  paint() {
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    const scale = devicePixelRatio || 1;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const wide = this.canvas.width / scale;
    pen.clearRect(0, 0, wide, this.canvas.height / scale);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const colours = Object.fromEntries(Object.entries(COLOURS).map(([kind, name]) => [kind, colour(name)]));
    const ink = { text: colour("text"), panel: colour("panel"), on: colour("on"), found: colour("high") };
    this.bars.levels.forEach((level, depth) => this.level(pen, level, depth, wide, colours, ink));
  }

  /**
   * @param {CanvasRenderingContext2D} pen @param {number[]} level @param {number} depth @param {number} wide
   * @param {Record<string, string>} colours @param {Record<string, string>} ink
   */
  level(pen, level, depth, wide, colours, ink) {
    const { low, high } = this.bars;
    const [from, to] = this.view;
    const scale = wide / (to - from);
    let drawnTo = -1;
    for (let nth = this.first(level, from); nth < level.length && low[level[nth]] < to; nth++) {
      const at = level[nth];
      const left = Math.max(0, (low[at] - from) * scale);
      const right = Math.min(wide, (high[at] - from) * scale);
      // Of bars narrower than a pixel one is drawn for each pixel: no place with calls looks empty.
      if (right - left < NARROWEST && left < drawnTo) continue;
      this.bar(pen, at, left, Math.max(NARROWEST, right - left), depth, colours, ink);
      drawnTo = Math.max(left + 1, right);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} pen @param {number} at @param {number} left @param {number} width @param {number} depth
   * @param {Record<string, string>} colours @param {Record<string, string>} ink
   */
  bar(pen, at, left, width, depth, colours, ink) {
    const dim = this.found && !this.found[at];
    pen.globalAlpha = dim ? 0.18 : at === this.pointed ? 1 : 0.68 + 0.22 * ((this.bars.name[at] * 37) % 8) / 8;
    pen.fillStyle = this.found && !dim ? ink.found : colours[this.kind(at)] ?? colours.frame;
    pen.fillRect(left, depth * BAR, width > 2 ? width - 0.7 : width, BAR - 1);
    if (width < 26) return;
    pen.globalAlpha = dim ? 0.5 : 1;
    pen.fillStyle = dim ? ink.text : ink.on;
    const room = Math.floor((width - 8) / 6);
    const name = shortName(this.bars.names[this.bars.name[at]]);
    pen.fillText(name.length > room ? `${name.slice(0, Math.max(1, room - 1))}…` : name, left + 4, depth * BAR + BAR / 2);
  }
}
