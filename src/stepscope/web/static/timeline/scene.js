// @ts-check
// The picture of the tracks: which tiles it needs, their boxes as pixels, names on boxes that are wide enough.

import { drawCounter, drawGaps } from "./charts.js";
import { SHADES } from "./colours.js";
import { Raster, firstIn } from "./raster.js";
import { LANE } from "./rows.js";
import { drawLines } from "./ruler.js";
import { levelFor, tileAt, tileNs, tileStart } from "./tiles.js";

/**
 * @typedef {import("./tiles.js").Tile} Tile
 * @typedef {import("./tiles.js").Tiles} Tiles
 * @typedef {import("./tiles.js").Place} Place
 * @typedef {import("./rows.js").Row} Row
 * @typedef {import("./rows.js").Rows} Rows
 * @typedef {import("./sources.js").Track} Track
 * @typedef {import("./view.js").View} View
 * @typedef {import("./colours.js").Colours} Colours
 * @typedef {{ row: Row, track: Track, y: number, lanes: number, folded: boolean }} Band lanes on the screen
 * @typedef {{ tile: Tile, box: number, row: Row, track: Track, lane: number }} Hit
 * @typedef {{ tile: Tile, first: number, last: number, start: number }} Piece
 */

const FONT = "11px system-ui, sans-serif";
/** Narrower boxes have no name on them. */
const NAMED = 30;

/** Draws, and knows what lies where. */
export class Scene {
  /** @param {HTMLCanvasElement} canvas @param {View} view @param {Rows} rows @param {Tiles} tiles @param {Colours} colours */
  constructor(canvas, view, rows, tiles, colours) {
    this.canvas = canvas;
    this.on = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.view = view;
    this.rows = rows;
    this.tiles = tiles;
    this.colours = colours;
    this.raster = new Raster();
    this.strip = document.createElement("canvas");
    this.stripOn = /** @type {CanvasRenderingContext2D} */ (this.strip.getContext("2d"));
    this.scroll = 0;
    this.height = 0;
    this.ratio = 1;
    /** @type {Map<string, number>} */
    this.widths = new Map();
    this.boxes = 0;
  }

  /** @param {number} width @param {number} height in pixels of the page */
  resize(width, height) {
    this.ratio = devicePixelRatio || 1;
    this.view.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  /** Draws everything that is in view, and asks for what is missing. */
  draw() {
    const { on, view, colours, ratio } = this;
    const bands = this.bands();
    this.tiles.want(this.#needs(bands));
    on.setTransform(ratio, 0, 0, ratio, 0, 0);
    on.fillStyle = colours.css.panel;
    on.fillRect(0, 0, view.width, this.height);
    for (const row of this.visible()) this.#ground(row);
    const steps = this.rows.all[0]?.source.steps ?? [];
    drawLines(on, view, steps, colours, this.height);
    const labels = this.#boxes(bands);
    this.#names(labels);
    for (const row of this.visible()) {
      if (row.kind === "gaps") drawGaps(on, row, row.y - this.scroll, view, colours);
      else if (row.kind === "counter") drawCounter(on, row, row.y - this.scroll, view, colours);
    }
  }

  /** Rows that are on the screen. */
  visible() {
    const { all } = this.rows;
    const found = [];
    for (let at = this.rows.indexAt(this.scroll); at < all.length && all[at].y < this.scroll + this.height; at++) {
      found.push(all[at]);
    }
    return found;
  }

  /** Tracks that are on the screen; a folded group has all of its tracks on one lane. @returns {Band[]} */
  bands() {
    /** @type {Band[]} */
    const bands = [];
    for (const row of this.visible()) {
      const y = row.y - this.scroll;
      if (row.kind === "track" && row.track) {
        bands.push({ row, track: row.track, y: y + 2, lanes: row.lanes, folded: row.folds && !row.open });
      } else if (row.kind === "group" && !row.open) {
        for (const track of row.tracks) bands.push({ row, track, y: y + row.height - LANE - 3, lanes: 1, folded: true });
      }
    }
    return bands;
  }

  /** The box at a point, or one that is less than `near` pixels away.
   * @param {number} x @param {number} y @param {number} near @returns {Hit | undefined} */
  hit(x, y, near = 3) {
    for (const band of this.bands().reverse()) {
      const lane = Math.floor((y - band.y) / LANE);
      if (lane < 0 || lane >= band.lanes) continue;
      const found = this.#hitIn(band, lane, x, near);
      if (found) return found;
    }
    return undefined;
  }

  /** Where an event would be drawn, whether it is in view or not. @param {Row} row @param {number} lane */
  laneY(row, lane) {
    if (row.kind === "group") return row.y - this.scroll + row.height - LANE - 3;
    return row.y - this.scroll + 2 + (row.open ? lane : 0) * LANE;
  }

  /** The lane of an event that starts so long after the origin, if its tile is here. @param {Row} row @param {Track} track @param {number} event @param {number} start */
  laneOf(row, track, event, start) {
    const { source } = row;
    const level = this.#level(row);
    const tile = this.tiles.find({ source, track: track.id, level, index: tileAt(source, level, start) });
    if (!tile) return 0;
    for (let lane = 0; lane + 1 < tile.lanes.length; lane++) {
      const box = firstIn(tile, lane, start);
      if (box < tile.lanes[lane + 1] && tile.event[box] === event && tile.start[box] <= start) return lane;
    }
    return 0;
  }

  /** @param {Row} row */
  #level({ source }) {
    return levelFor(this.view.pixelNs / source.rate / this.ratio, source);
  }

  /** Tiles for the bands: what is seen first, then what is beside it; and the coarsest, to have something.
   * @param {Band[]} bands */
  #needs(bands) {
    /** @type {Place[]} */
    const coarse = [];
    /** @type {Place[]} */
    const seen = [];
    /** @type {Place[]} */
    const beside = [];
    for (const { row, track } of bands) {
      const { source } = row;
      const level = this.#level(row);
      const top = source.levels - 1;
      const from = Math.max(source.local(this.view.from), track.first);
      const to = Math.min(source.local(this.view.to), track.last);
      coarse.push({ source, track: track.id, level: top, index: tileAt(source, top, track.first) });
      if (from > to) continue;
      const first = tileAt(source, level, from);
      const last = tileAt(source, level, to);
      for (let index = first; index <= last; index++) seen.push({ source, track: track.id, level, index });
      const end = tileAt(source, level, track.last);
      if (first > tileAt(source, level, track.first)) beside.push({ source, track: track.id, level, index: first - 1 });
      if (last < end) beside.push({ source, track: track.id, level, index: last + 1 });
    }
    return [...coarse, ...seen, ...beside];
  }

  /** The tiles that a band is drawn of, with the pixels of the screen that each is good for.
   * @param {Band} band @returns {Piece[]} */
  #pieces({ row, track }) {
    const { source } = row;
    const level = this.#level(row);
    const span = tileNs(level);
    const from = source.local(this.view.from);
    const scale = this.#scale(row);
    const width = this.canvas.width;
    const first = tileAt(source, level, Math.max(from, track.first));
    const last = tileAt(source, level, Math.min(source.local(this.view.to), track.last));
    /** @type {Piece[]} */
    const pieces = [];
    for (let index = first; index <= last; index++) {
      const tile = this.tiles.find({ source, track: track.id, level, index });
      if (!tile) continue;
      source.names.want(tile.name);
      const start = tileStart(source, level, index);
      const left = index === first ? 0 : Math.max(Math.round((start - from) * scale), 0);
      const right = index === last ? width : Math.min(Math.round((start + span - from) * scale), width);
      if (right > left) pieces.push({ tile, first: left, last: right, start: index === first ? -Infinity : start });
    }
    return pieces;
  }

  /** Pixels of the screen in a ns of the trace's own time. @param {Row} row */
  #scale({ source }) {
    return (this.canvas.width / this.view.span) * source.rate;
  }

  /** Boxes of all bands; gives those that want a name. @param {Band[]} bands */
  #boxes(bands) {
    const { raster, colours, on, strip, stripOn, ratio } = this;
    const width = this.canvas.width;
    /** @type {{ y: number, line: number }[]} */
    const lanes = [];
    /** @type {Map<number, number>} */
    const lines = new Map();
    for (const band of bands) {
      for (let lane = 0; lane < band.lanes; lane++) {
        const y = band.y + lane * LANE;
        if (y + LANE < 0 || y > this.height || lines.has(y)) continue;
        lines.set(y, lanes.length);
        lanes.push({ y, line: lanes.length });
      }
    }
    raster.begin(width, lanes.length);
    /** @type {Label[]} */
    const labels = [];
    this.boxes = 0;
    for (const band of bands) {
      const at = { from: band.row.source.local(this.view.from), scale: this.#scale(band.row), first: 0, last: 0 };
      for (const piece of this.#pieces(band)) {
        at.first = piece.first;
        at.last = piece.last;
        for (let lane = 0; lane + 1 < piece.tile.lanes.length; lane++) {
          const y = band.y + (band.folded ? 0 : lane) * LANE;
          const line = lines.get(y);
          if (line === undefined) continue;
          raster.draw(line, piece.tile, lane, at, colours.pixels, band.row.source.names.shades);
          if (!band.folded) this.#labels(labels, band, piece, lane, y, at);
        }
      }
    }
    if (!lanes.length || !width) return labels;
    if (strip.width !== width || strip.height < raster.image.height) {
      strip.width = width;
      strip.height = raster.image.height;
    }
    stripOn.putImageData(raster.image, 0, 0, 0, 0, width, lanes.length);
    on.imageSmoothingEnabled = false;
    on.setTransform(1, 0, 0, 1, 0, 0);
    const high = Math.round((LANE - 1) * ratio);
    for (const { y, line } of lanes) on.drawImage(strip, 0, line, width, 1, 0, Math.round(y * ratio), width, high);
    on.setTransform(ratio, 0, 0, ratio, 0, 0);
    return labels;
  }

  /** @param {Label[]} labels @param {Band} band @param {Piece} piece @param {number} lane @param {number} y
   * @param {{ from: number, scale: number, first: number, last: number }} at */
  #labels(labels, band, { tile, start }, lane, y, at) {
    const { ratio } = this;
    const width = this.canvas.width;
    const end = tile.lanes[lane + 1];
    const until = at.from + at.last / at.scale;
    const least = (NAMED * ratio) / at.scale;
    const { source } = band.row;
    for (let box = firstIn(tile, lane, at.from + at.first / at.scale); box < end; box++) {
      const begin = tile.start[box];
      if (begin >= until) break;
      this.boxes++;
      if (tile.dur[box] < least || begin < start) continue;
      const left = Math.max((begin - at.from) * at.scale, 0);
      const right = Math.min((begin + tile.dur[box] - at.from) * at.scale, width);
      if (right - left < NAMED * ratio) continue;
      const text = source.names.label(tile.name[box]);
      const shade = tile.kind[box] * SHADES + (source.names.shades[tile.name[box]] | 0);
      if (text) labels.push({ text, x: left / ratio, width: (right - left) / ratio, y, colour: this.colours.words[shade] });
    }
  }

  /** @typedef {{ text: string, x: number, width: number, y: number, colour: string }} Label */

  /** @param {Label[]} labels */
  #names(labels) {
    const { on } = this;
    on.font = FONT;
    on.textBaseline = "middle";
    let colour = "";
    for (const { text, x, width, y, colour: own } of labels) {
      let wide = this.widths.get(text);
      if (wide === undefined) this.widths.set(text, (wide = on.measureText(text).width));
      const room = width - 9;
      let words = text;
      if (wide > room) {
        const letters = Math.floor((room / wide) * text.length * 0.96) - 1;
        if (letters < 2) continue;
        words = `${text.slice(0, letters)}…`;
      }
      if (own !== colour) on.fillStyle = colour = own;
      on.fillText(words, x + 4, y + LANE / 2);
    }
  }

  /** @param {Row} row */
  #ground(row) {
    const { on, colours, view } = this;
    const y = row.y - this.scroll;
    if (row.kind === "trace" || row.kind === "group") {
      on.fillStyle = row.kind === "trace" ? colours.css.track : colours.css.ground;
      on.fillRect(0, y, view.width, row.kind === "trace" || row.open ? row.height : 22);
    }
    on.fillStyle = colours.css.line;
    on.globalAlpha = 0.7;
    on.fillRect(0, y + row.height - 1, view.width, 1);
    on.globalAlpha = 1;
  }

  /** @param {Band} band @param {number} lane @param {number} x @param {number} near @returns {Hit | undefined} */
  #hitIn(band, lane, x, near) {
    const { row, track } = band;
    const { source } = row;
    const time = source.local(this.view.time(x));
    const reach = (near * this.view.pixelNs) / source.rate;
    /** @type {Hit | undefined} */
    let best;
    let far = Infinity;
    for (const { tile, first, last } of this.#pieces(band)) {
      if (x * this.ratio < first - near || x * this.ratio > last + near) continue;
      const from = band.folded ? 0 : lane;
      const to = band.folded ? tile.lanes.length - 2 : lane;
      for (let one = from; one <= to && one + 1 < tile.lanes.length; one++) {
        for (let box = firstIn(tile, one, time - reach); box < tile.lanes[one + 1]; box++) {
          if (tile.start[box] > time + reach) break;
          const away = Math.max(tile.start[box] - time, time - tile.start[box] - tile.dur[box], 0);
          if (away < far || (away === far && band.folded)) {
            far = away;
            best = { tile, box, row, track, lane: one };
          }
        }
      }
    }
    return best;
  }
}
