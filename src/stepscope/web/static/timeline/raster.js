// @ts-check
// Boxes become pixels: one line of pixels for each lane, stretched to the lane's height afterwards.
//
// A box of at least a pixel is filled. Narrower ones share their pixel: it has the colour of the one that
// takes most of it, and is the more opaque the more of it they fill; but never so pale that a single short
// event is overlooked.

import { SHADES } from "./colours.js";

/** @typedef {import("./tiles.js").Tile} Tile */

/** How opaque a pixel is in which something very short happens. */
const LEAST = 0.38;
/** Boxes at least so wide have an edge, so that neighbours of one colour are not taken for one. */
const WITH_EDGE = 3;

/** What is drawn, in pixels of the screen. */
export class Raster {
  constructor() {
    this.width = 0;
    this.lines = 0;
    this.pixels = new Uint32Array(0);
    this.image = new ImageData(1, 1);
  }

  /** Makes room, and clears it. @param {number} width @param {number} lines */
  begin(width, lines) {
    if (width !== this.width || lines > this.image.height) {
      this.image = new ImageData(Math.max(width, 1), Math.max(lines, 1));
      this.pixels = new Uint32Array(this.image.data.buffer);
    } else {
      this.pixels.fill(0, 0, width * lines);
    }
    this.width = width;
    this.lines = lines;
  }

  /** Draws a lane of a tile on a line.
   *
   * @param {number} line @param {Tile} tile @param {number} lane
   * @param {{ from: number, scale: number, first: number, last: number }} at
   *   time of the left edge and pixels in a ns, in the trace's own time; first and last pixel that it may touch
   * @param {Uint32Array} colours of kind and shade @param {Uint8Array} shades of names
   */
  draw(line, tile, lane, at, colours, shades) {
    const { start, dur, busy, name, count, kind } = tile;
    const { from, scale, first, last } = at;
    const end = tile.lanes[lane + 1];
    const out = this.pixels;
    const origin = line * this.width;
    const until = from + last / scale;
    let pixel = -1; // the one that is filled by boxes narrower than itself
    let cover = 0;
    let most = 0;
    let colour = 0;
    for (let box = firstIn(tile, lane, from + first / scale); box < end; box++) {
      const begin = start[box];
      if (begin >= until) break;
      const left = (begin - from) * scale;
      const wide = dur[box] * scale;
      const own = colours[kind[box] * SHADES + (shades[name[box]] | 0)]; // what has no name has the first shade
      if (wide < 1) {
        const here = Math.max(left | 0, first);
        if (here !== pixel) {
          if (pixel >= 0) out[origin + pixel] = veiled(colour, cover, out[origin + pixel]);
          pixel = here;
          cover = most = 0;
        }
        const part = busy[box] * scale;
        cover += part;
        if (part >= most) {
          most = part;
          colour = own;
        }
        continue;
      }
      let x0 = Math.max(Math.round(left), first);
      const x1 = Math.min(Math.max(Math.round(left + wide), x0 + 1), last);
      if (pixel >= 0) {
        out[origin + pixel] = veiled(colour, cover, out[origin + pixel]);
        if (x0 <= pixel && x1 > pixel + 1) x0 = pixel + 1; // it gives way to what is shorter
        pixel = -1;
      }
      if (x1 <= x0) continue;
      const seen = count[box] > 1 ? veiled(own, busy[box] / dur[box], 0) : own;
      out.fill(seen, origin + x0, origin + x1);
      if (x1 - x0 >= WITH_EDGE && left + wide <= last) out[origin + x1 - 1] = (seen & 0xffffff) | 0x60000000;
    }
    if (pixel >= 0) out[origin + pixel] = veiled(colour, cover, out[origin + pixel]);
  }
}

/** A colour, the more opaque the more is covered. On what is drawn already it is not veiled: it would not be
 * seen. @param {number} colour @param {number} cover @param {number} under */
function veiled(colour, cover, under) {
  if (under >>> 24 === 255) return colour;
  const share = LEAST + (1 - LEAST) * Math.min(cover, 1);
  return ((colour & 0xffffff) | (Math.round(share * 255) << 24)) >>> 0;
}

/** The first box of a lane that ends after a time. Boxes of a lane do not overlap.
 * @param {Tile} tile @param {number} lane @param {number} time */
export function firstIn(tile, lane, time) {
  const { start, dur } = tile;
  let low = tile.lanes[lane];
  let high = tile.lanes[lane + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] + dur[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}
