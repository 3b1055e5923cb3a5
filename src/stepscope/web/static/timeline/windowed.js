// @ts-check
// Values that the server gives for any stretch of time at any resolution: the whole trace coarsely, kept for
// good, and the stretch that is looked at finely, with as much again at both sides.

import { isAbort, saying } from "../asking.js";

/**
 * @template T
 * @typedef {{ from: number, to: number, pixelNs: number, value: T }} Stretch
 */

/** How long the view rests before it is asked for. */
const REST_MS = 120;

/** @template T */
export class Windowed {
  /** @param {(from: number, to: number, pixels: number, signal: AbortSignal) => Promise<T>} ask
   * @param {() => void} changed @param {(problem: string) => void} failed */
  constructor(ask, changed, failed) {
    this.ask = ask;
    this.changed = changed;
    this.failed = failed;
    /** @type {Stretch<T> | undefined} */
    this.whole = undefined;
    /** @type {Stretch<T> | undefined} */
    this.near = undefined;
    this.timer = 0;
    /** @type {AbortController | undefined} */
    this.asked = undefined;
  }

  /** The whole, once. @param {number} from @param {number} to @param {number} pixels */
  async start(from, to, pixels) {
    const value = await this.ask(from, to, pixels, new AbortController().signal);
    this.whole = { from, to, pixelNs: (to - from) / pixels, value };
    this.changed();
  }

  /** The best there is for a stretch; a better one is asked for. @param {number} from @param {number} to @param {number} pixels */
  get(from, to, pixels) {
    const pixelNs = (to - from) / pixels;
    const { whole, near } = this;
    if (!whole) return undefined;
    const inside = near && near.from <= Math.max(from, whole.from) && near.to >= Math.min(to, whole.to);
    const fine = whole.pixelNs <= pixelNs * 1.5;
    if (!fine && !(inside && near.pixelNs <= pixelNs * 1.5 && near.pixelNs > pixelNs / 8)) {
      this.#soon(from, to, pixels);
    }
    return !fine && inside ? near : whole;
  }

  /** @param {number} from @param {number} to @param {number} pixels */
  #soon(from, to, pixels) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#fetch(from, to, pixels), REST_MS);
  }

  /** @param {number} from @param {number} to @param {number} pixels */
  async #fetch(from, to, pixels) {
    this.asked?.abort();
    const asked = (this.asked = new AbortController());
    const span = to - from;
    const low = Math.floor(Math.max(from - span, this.whole?.from ?? from));
    const high = Math.ceil(Math.min(to + span, this.whole?.to ?? to));
    const many = Math.max(Math.round(((high - low) / span) * pixels), 1);
    try {
      const value = await this.ask(low, high, many, asked.signal);
      this.near = { from: low, to: high, pixelNs: (high - low) / many, value };
      this.changed();
    } catch (error) {
      if (!isAbort(error)) this.failed(saying(error));
    }
  }
}
