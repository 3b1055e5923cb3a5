// @ts-check
// The timeline: what is shown, what is selected, and how its parts hear of each other.

import { SAVED, saying } from "../asking.js";
import { make, onTheme } from "../dom.js";
import { addShortcuts } from "../keys.js";
import { duration } from "../units.js";
import { Colours } from "./colours.js";
import { drawHeaders } from "./headers.js";
import { placeTip, tipAt } from "./hovering.js";
import { listen } from "./input.js";
import { buttons, layout, ranks } from "./layout.js";
import { Overlay } from "./overlay.js";
import { Rows } from "./rows.js";
import { RULER, drawRuler } from "./ruler.js";
import { Scene } from "./scene.js";
import { Search } from "./search.js";
import { Selection } from "./selection.js";
import { Source } from "./sources.js";
import { Tiles } from "./tiles.js";
import { View } from "./view.js";

/**
 * @typedef {import("./sources.js").Clocked} Clocked
 * @typedef {import("./overlay.js").Ref} Ref
 * @typedef {{ trace: string, traces: Clocked[], address: string }} Given the trace that was chosen, all there
 *   are, and what the address of the page asked for
 */

/** How soon the server is asked for more boxes: at first there is little to see, and more comes soon. To draw them anew
 * takes the processor from the server. */
const SOON_MS = 50;
const AGAIN_MS = 1000;
/** So long other things wait for the last box: they take longer than all boxes, and on few cores both would be late. */
const PATIENCE_MS = 20_000;

/** A timeline on a page. */
export class Timeline {
  /** @param {HTMLElement} element @param {Given} given */
  constructor(element, given) {
    this.element = element;
    this.given = given;
    this.parts = layout(element);
    this.view = new View();
    this.rows = new Rows();
    this.colours = new Colours();
    this.changed = () => this.redraw();
    this.failed = (/** @type {string} */ problem) => this.say(problem, true);
    this.tiles = new Tiles(this.changed, this.failed);
    this.scene = new Scene(this.parts.canvas, this.view, this.rows, this.tiles, this.colours);
    this.overlay = new Overlay(this.parts.overlay, this.scene);
    /** @type {Source[]} */
    this.sources = [];
    this.selection = new Selection(this);
    this.ranging = false;
    this.asked = false;
    this.askedOver = false;
    this.saved = 0;
    this.search = new Search(() => this.selection.here(), (source, found) => {
      this.selection.event(source, { ...found, name: found.text, kind: "" }, { center: true });
    });
    this.#tools();
    this.#listen();
  }

  /** Shows the trace that was chosen, and what the address asks for. */
  async open() {
    const wanted = new URLSearchParams(SAVED ? this.given.address : location.search);
    const others = (wanted.get("ranks") ?? "").split(",");
    const keys = [this.given.trace, ...others.filter((key) => key !== this.given.trace && this.#known(key))];
    await this.#add(this.given.trace);
    for (const key of keys.slice(1)) await this.#add(key);
    this.#bound();
    this.view.showAll();
    this.#lay();
    if (!this.sources.some((source) => source.tracks.length)) {
      this.element.replaceChildren(make("p", "panel empty muted", "This trace has no events that a timeline could show."));
      return;
    }
    this.element.dataset.state = "ready";
    this.#resize();
    await this.selection.restore(wanted);
    this.view.listeners.push(() => this.#moved());
    this.#save();
  }

  /** Draws in the next frame. */
  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.#draw();
    });
  }

  /** Draws what lies over the picture in the next frame. */
  redrawOver() {
    if (this.asked || this.askedOver) return;
    this.askedOver = true;
    requestAnimationFrame(() => {
      this.askedOver = false;
      this.overlay.draw();
    });
  }

  /** @param {string} words @param {boolean} [problem] */
  say(words, problem = false) {
    this.parts.status.textContent = words;
    this.parts.status.classList.toggle("tl-problem", problem);
  }

  /** Scrolls to a track; opens what hides it. @param {Source} source @param {number} track */
  toTrack(source, track) {
    if (!this.rows.of(source, track)) {
      this.rows.open(source, track);
      this.#lay();
    }
    const row = this.rows.of(source, track);
    if (!row) return;
    const { stage } = this.parts;
    if (row.y < stage.scrollTop || row.y + Math.min(row.height, 60) > stage.scrollTop + stage.clientHeight) {
      stage.scrollTop = Math.max(row.y - 40, 0);
    }
    this.scene.scroll = stage.scrollTop;
  }

  /** Shows or hides the panel. @param {HTMLElement[]} content */
  tell(content) {
    const { panel } = this.parts;
    const was = panel.hidden;
    panel.replaceChildren(...content);
    panel.hidden = content.length === 0;
    if (content.length) panel.scrollTop = 0;
    if (panel.hidden !== was) this.#resize();
  }

  /** Keeps the address up to date, when the view rests. */
  #save() {
    if (SAVED) return;
    clearTimeout(this.saved);
    this.saved = setTimeout(() => {
      const address = new URL(location.href);
      const set = (/** @type {string} */ name, /** @type {string | undefined} */ value) => {
        if (value) address.searchParams.set(name, value);
        else address.searchParams.delete(name);
      };
      set("from", this.sources[0].address(this.view.from));
      set("to", this.sources[0].address(this.view.to));
      for (const [name, value] of Object.entries(this.selection.address())) set(name, value);
      set("ranks", this.sources.slice(1).map(({ key }) => key).join(","));
      history.replaceState(history.state, "", address.href.replaceAll("%2C", ","));
    }, 150);
  }

  /** After something was selected. */
  chosen() {
    this.#save();
    this.redraw();
  }

  #moved() {
    this.redraw();
    this.#save();
  }

  #draw() {
    if (!this.sources.length) return;
    const { ruler, span, stage } = this.parts;
    this.scene.scroll = stage.scrollTop;
    this.scene.draw();
    this.overlay.draw();
    const on = /** @type {CanvasRenderingContext2D} */ (ruler.getContext("2d"));
    on.setTransform(this.scene.ratio, 0, 0, this.scene.ratio, 0, 0);
    drawRuler(on, this.view, this.sources[0].steps, this.colours);
    span.textContent = `${duration(this.view.span)} in view`;
    const names = this.sources.every((source) => !source.names.asking && source.whole && source.made === 1);
    this.element.dataset.complete = String(this.tiles.complete && names);
  }

  #lay() {
    this.rows.lay(this.sources);
    drawHeaders(this.parts.column, this.rows, (row) => {
      this.rows.turn(row);
      this.#lay();
    });
    this.redraw();
  }

  #bound() {
    const first = Math.min(...this.sources.map((source) => source.seen(source.first)));
    const last = Math.max(...this.sources.map((source) => source.seen(source.last)));
    this.view.bound(first, Math.max(last, first + 1));
  }

  /** @param {string} key */
  #known(key) {
    return this.given.traces.find((one) => one.key === key);
  }

  /** @param {string} key */
  async #add(key) {
    const clocked = this.#known(key);
    if (!clocked || this.sources.some((source) => source.key === key)) return;
    const source = new Source(clocked, this.changed, this.failed);
    await source.open();
    source.align(this.sources[0] ?? source);
    this.sources.push(source);
    this.#more(source, source.made < 1 ? this.#watch(source) : undefined);
    this.#ranks();
  }

  /** Asks for steps, idle time and counters when the boxes are made and drawn: on few cores they would come later.
   * @param {Source} source @param {Promise<void> | undefined} whole */
  async #more(source, whole) {
    await this.tiles.first;
    if (whole) await Promise.race([whole, new Promise((done) => setTimeout(done, PATIENCE_MS))]);
    requestAnimationFrame(() => setTimeout(() => source.more(() => this.#lay(), this.failed)));
  }

  /** Asks again while the server still makes boxes. @param {Source} source */
  async #watch(source) {
    for (let pause = SOON_MS; source.made < 1; pause = Math.min(2 * pause, AGAIN_MS)) {
      this.say(`preparing the timeline of ${source.label}: ${Math.floor(source.made * 100)} %`);
      await new Promise((done) => setTimeout(done, pause));
      try {
        for (const track of await source.open()) this.tiles.forget(source, track.id);
      } catch (error) {
        this.failed(saying(error));
        return;
      }
      const all = this.view.seesAll;
      this.#bound();
      if (all) this.view.showAll();
      this.#lay();
    }
    this.say("");
  }

  #ranks() {
    const others = this.given.traces.filter(({ key }) => key !== this.given.trace);
    if (!others.length || SAVED) return;
    this.parts.tools.querySelector(".tl-ranks")?.remove();
    this.parts.tools.append(ranks(others, this.sources.map(({ key }) => key), (key, on) => this.turn(key, on)));
  }

  /** Shows a rank beside those that are shown, or no more. @param {string} key @param {boolean} on */
  async turn(key, on) {
    if (on) await this.#add(key).catch((error) => this.failed(saying(error)));
    else this.sources = this.sources.filter((source) => source.key !== key);
    this.#ranks();
    this.#bound();
    this.#lay();
    this.#moved();
  }

  #resize() {
    const { picture, stage, ruler, column } = this.parts;
    const width = Math.max(stage.clientWidth - column.offsetWidth, 50);
    const height = Math.max(stage.clientHeight, 50);
    picture.style.height = `${height}px`;
    this.scene.resize(width, height);
    this.overlay.resize();
    ruler.width = Math.round(width * this.scene.ratio);
    ruler.height = Math.round(RULER * this.scene.ratio);
    ruler.style.width = `${width}px`;
    ruler.style.height = `${RULER}px`;
    this.#draw();
  }

  #tools() {
    const { group, range } = buttons({
      zoomIn: () => this.view.zoom(1.6),
      zoomOut: () => this.view.zoom(1 / 1.6),
      fit: () => this.selection.fit(),
      range: (on) => (this.ranging = on),
    });
    this.range = range;
    this.parts.tools.append(...(SAVED ? [] : [this.search.element]), group);
  }

  #listen() {
    const { stage, canvas, tip, picture } = this.parts;
    listen({
      view: this.view, stage, canvas,
      ranging: () => this.ranging,
      click: (x, y) => this.selection.click(x, y),
      twice: (x, y) => this.selection.twice(x, y),
      range: (from, to, done) => this.selection.range(from, to, done),
      hover: (x, y) => {
        this.overlay.mouse = x;
        placeTip(tip, x === undefined ? [] : tipAt(this.scene, x, y), x ?? 0, y, picture);
        this.redrawOver();
      },
      keys: {
        f: () => this.selection.fit(), "0": () => this.view.showAll(), Home: () => this.view.showAll(),
        "/": () => this.search.field.select(), n: () => this.search.go(false), N: () => this.search.go(true),
        "]": () => this.selection.alike("next"), "[": () => this.selection.alike("previous"),
        r: () => this.range?.click(), Escape: () => this.selection.clear(), Enter: () => this.selection.nearest(),
      },
    });
    stage.addEventListener("scroll", () => this.redraw());
    new ResizeObserver(() => this.#resize()).observe(stage);
    onTheme(() => {
      this.colours.read();
      this.redraw();
    });
    addShortcuts([
      { keys: "W  S", does: "zoom in, zoom out" }, { keys: "A  D  ←  →", does: "move" }, { keys: "↑  ↓", does: "scroll" },
      { keys: "Ctrl + wheel", does: "zoom at the mouse" }, { keys: "Shift + wheel", does: "move" },
      { keys: "Shift + drag, R", does: "select a range" }, { keys: "F, double click", does: "fit what is selected, or everything" },
      { keys: "0", does: "show everything" }, { keys: "/", does: "search" }, { keys: "N  Shift + N", does: "next, previous find" },
      { keys: "[  ]", does: "previous, next event of the same name" }, { keys: "Enter", does: "select the event in the middle" },
      { keys: "Esc", does: "select nothing" },
    ]);
  }
}
