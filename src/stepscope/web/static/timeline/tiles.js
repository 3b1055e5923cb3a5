// @ts-check
// Boxes come from the server in tiles: a track at one level for some stretch of time. Tiles that were asked
// for are kept while there is room; questions about tiles that nobody looks at any more are given up.

import { askBytes, isAbort, saying } from "../asking.js";

/**
 * @typedef {import("./sources.js").Source} Source
 * @typedef {{
 *   n: number, lanes: Uint32Array, start: Float64Array, dur: Float64Array, busy: Float64Array,
 *   event: Float64Array, name: Uint32Array, count: Uint32Array, kind: Uint8Array, bytes: number, used: number,
 * }} Tile lanes has the first box of each lane, and the end
 * @typedef {{ source: Source, track: number, level: number, index: number }} Place
 */

/** ns in a pixel at level 1, and pixels in a tile: as the server makes them. */
export const WIDTH_NS = 1000;
export const TILE_PIXELS = 1024;
const MOST_BYTES = 200 * 2 ** 20;
const MOST_ASKED = 3;
const IN_A_QUESTION = 24;
/** A tile that could not be had is asked for again after this time. */
const AGAIN_MS = 4000;

/** ns in a tile. @param {number} level */
export function tileNs(level) {
  return WIDTH_NS * 4 ** (Math.max(level, 1) - 1) * TILE_PIXELS;
}

/** The level whose pixels are as wide as those of the screen, or narrower; the finest there is, if that is coarser.
 * @param {number} pixelNs @param {Source} source */
export function levelFor(pixelNs, { finest, levels }) {
  const fit = pixelNs < WIDTH_NS ? 0 : 1 + Math.floor(Math.log(pixelNs / WIDTH_NS) / Math.log(4) + 1e-9);
  return Math.max(Math.min(fit, levels - 1), finest);
}

/** The tile that a time is in, ns after the source's origin. @param {Source} source @param {number} level
 * @param {number} local */
export function tileAt({ origin }, level, local) {
  const span = tileNs(level);
  const before = Math.floor(origin / span);
  return before + Math.floor((local + (origin - before * span)) / span);
}

/** Where a tile starts, ns after the source's origin. @param {Source} source @param {number} level
 * @param {number} index */
export function tileStart({ origin }, level, index) {
  const span = tileNs(level);
  const before = Math.floor(origin / span);
  return (index - before) * span - (origin - before * span);
}

/** @param {Place} place */
function keyOf({ source, track, level, index }) {
  return `${source.key}/${track}.${level}.${index}`;
}

/** All tiles that are here, and those that are on their way. */
export class Tiles {
  /** @param {() => void} changed @param {(problem: string) => void} failed */
  constructor(changed, failed) {
    this.changed = changed;
    this.failed = failed;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    this.bytes = 0;
    this.frame = 0;
    /** @type {Map<string, Place>} */
    this.wanted = new Map();
    /** @type {Set<{ keys: Set<string>, stop: AbortController }>} */
    this.asked = new Set();
    /** @type {Map<string, number>} */
    this.refused = new Map();
    this.asks = 0;
    /** When all that was looked at first is here, or cannot be had: what is asked before that makes it wait. */
    this.first = new Promise((done) => (this.told = done));
  }

  /** Whether everything that is wanted is here. */
  get complete() {
    return this.wanted.size === 0 && this.asked.size === 0;
  }

  /** The tile of a place, or a coarser one that has it. @param {Place} place */
  find(place) {
    let { level, index } = place;
    while (level < place.source.levels) {
      const tile = this.kept.get(keyOf({ ...place, level, index }));
      if (tile) {
        tile.used = this.frame;
        return tile;
      }
      if (level > 0) index = Math.floor(index / 4);
      level++;
    }
    return undefined;
  }

  /** Says what is looked at in this frame, the most urgent first. @param {Place[]} places */
  want(places) {
    this.frame++;
    const now = Date.now();
    this.wanted.clear();
    const keys = new Set();
    for (const place of places) {
      const key = keyOf(place);
      keys.add(key);
      const kept = this.kept.get(key);
      if (kept) kept.used = this.frame;
      else if ((this.refused.get(key) ?? 0) < now) this.wanted.set(key, place);
    }
    for (const one of this.asked) {
      if ([...one.keys].some((key) => keys.has(key))) for (const key of one.keys) this.wanted.delete(key);
      else one.stop.abort();
    }
    this.#next();
  }

  /** Forgets the tiles of a track, which has more events now. @param {Source} source @param {number} track */
  forget(source, track) {
    const start = `${source.key}/${track}.`;
    for (const [key, { bytes }] of this.kept) {
      if (!key.startsWith(start)) continue;
      this.kept.delete(key);
      this.bytes -= bytes;
    }
  }

  /** Asks for what is most urgent, of one trace at a time. */
  #next() {
    while (this.wanted.size && this.asked.size < MOST_ASKED) {
      /** @type {Map<string, Place>} */
      const some = new Map();
      let source;
      for (const [key, place] of this.wanted) {
        source ??= place.source;
        if (place.source === source) some.set(key, place);
        if (some.size === IN_A_QUESTION) break;
      }
      for (const key of some.keys()) this.wanted.delete(key);
      if (source) this.#ask(source, some);
    }
  }

  /** @param {Source} source @param {Map<string, Place>} some */
  async #ask(source, some) {
    const one = { keys: new Set(some.keys()), stop: new AbortController() };
    this.asked.add(one);
    this.asks++;
    const tiles = [...some.values()].map(({ track, level, index }) => `${track}:${level}:${index}`).join(",");
    try {
      const bytes = await askBytes("tile", { trace: source.key, tiles }, one.stop.signal);
      const parts = split(bytes);
      [...some.keys()].forEach((key, place) => this.#keep(key, decode(parts[place], source.origin)));
    } catch (error) {
      if (!isAbort(error)) {
        for (const key of some.keys()) this.refused.set(key, Date.now() + AGAIN_MS);
        this.failed(saying(error));
      }
    } finally {
      this.asked.delete(one);
      this.#next();
      this.changed();
      if (this.complete) this.told?.(undefined);
    }
  }

  /** @param {string} key @param {Tile} tile */
  #keep(key, tile) {
    tile.used = this.frame;
    this.bytes += tile.bytes - (this.kept.get(key)?.bytes ?? 0);
    this.kept.set(key, tile);
    if (this.bytes <= MOST_BYTES) return;
    const oldest = [...this.kept].sort((a, b) => a[1].used - b[1].used);
    for (const [old, { bytes }] of oldest) {
      if (this.bytes <= MOST_BYTES * 0.8) break;
      this.kept.delete(old);
      this.bytes -= bytes;
    }
  }
}

/** The tiles of an answer: their number, the length of each, then their bytes, all at multiples of 8.
 * @param {ArrayBuffer} bytes */
function split(bytes) {
  const heads = new DataView(bytes);
  const many = heads.getUint32(0, true);
  const parts = [];
  let at = Math.ceil((8 + 4 * many) / 8) * 8;
  for (let part = 0; part < many; part++) {
    const length = heads.getUint32(8 + 4 * part, true);
    parts.push(bytes.slice(at, at + length)); // of its own, so that it can be given up alone
    at += Math.ceil(length / 8) * 8;
  }
  return parts;
}

/** The columns of a tile, as they lie in its bytes; times become ns after the origin.
 * @param {ArrayBuffer} bytes @param {number} origin @returns {Tile} */
export function decode(bytes, origin) {
  const [n, lanes] = new Uint32Array(bytes, 0, 4);
  let at = 16;
  const next = (/** @type {number} */ size) => (at += size * n) - size * n;
  const start = new Float64Array(bytes, next(8), n);
  const dur = new Float64Array(bytes, next(8), n);
  const busy = new Float64Array(bytes, next(8), n);
  const event = new Float64Array(bytes, next(8), n);
  const name = new Uint32Array(bytes, next(4), n);
  const count = new Uint32Array(bytes, next(4), n);
  const lane = new Uint16Array(bytes, next(2), n);
  const kind = new Uint8Array(bytes, next(1), n);
  const first = new Uint32Array(lanes + 1);
  for (let box = 0; box < n; box++) {
    start[box] -= origin;
    first[lane[box] + 1]++;
  }
  for (let one = 0; one < lanes; one++) first[one + 1] += first[one];
  return { n, lanes: first, start, dur, busy, event, name, count, kind, bytes: bytes.byteLength + 400, used: 0 };
}
