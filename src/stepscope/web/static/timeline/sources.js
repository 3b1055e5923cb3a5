// @ts-check
// A trace in the timeline: its tracks, its clock, and what is drawn beside the boxes.

import { ask, askPatiently } from "../asking.js";
import { Names } from "./names.js";
import { Windowed } from "./windowed.js";

/**
 * @typedef {{ id: number, side: "host" | "device", group: string, label: string, lanes: number, events: number,
 *   first_ns: number, last_ns: number, first: number, last: number, done: boolean }} Track first and last: after the origin
 * @typedef {import("./ruler.js").Step} Step
 * @typedef {{ start_ns: number, dur_ns: number, idle_ns: number, side: string, cause: string, count: number,
 *   drained_by: string | null, parts: Record<string, number> }} Gap
 * @typedef {{ id: string, title: string, unit: string, device: string | null, hold: boolean, top: number | null,
 *   start: number[], min: number[], mean: number[], max: number[] }} Series
 * @typedef {{ key: string, label: string, shift: number, rate: number, aligned: boolean }} Clocked
 *   time in the view = rate × own time + shift
 */

const COARSE = 2000;

/** A trace that is shown. */
export class Source {
  /** @param {Clocked} clocked @param {() => void} changed @param {(problem: string) => void} failed */
  constructor(clocked, changed, failed) {
    this.key = clocked.key;
    this.label = clocked.label + (clocked.aligned ? "" : " (clock not aligned)");
    /** What its times are counted from here, ns after its base: numbers near 0 are exact. */
    this.origin = NaN;
    this.clocked = clocked;
    this.shift = 0;
    this.rate = clocked.rate;
    /** @type {Track[]} */
    this.tracks = [];
    this.levels = 1;
    /** The lowest level that has tiles. */
    this.finest = 0;
    /** The share of the boxes that the server has made. */
    this.made = 0;
    /** Whether steps, idle time and counters are here, too: rows do not move any more. */
    this.whole = false;
    this.first = 0;
    this.last = 1;
    /** @type {Step[]} */
    this.steps = [];
    this.names = new Names(this.key, changed, failed);
    const answer = (/** @type {string} */ name, /** @type {Record<string, string>} */ more) =>
      (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ pixels, /** @type {AbortSignal} */ signal) =>
        ask(name, { trace: this.key, from: Math.floor(from), to: Math.ceil(to), pixels, ...more }, signal);
    /** @type {Windowed<{ gaps: Record<string, Gap[]> }> & { devices: string[] }} */
    this.gaps = Object.assign(new Windowed(answer("marks", { parts: "gaps" }), changed, failed), { devices: [] });
    /** @type {Windowed<{ series: Series[], pixel_ns: number, from: number }> & { listed: Series[] }} */
    this.counters = Object.assign(new Windowed(answer("counters", {}), changed, failed), { listed: [] });
  }

  /** A time of the view in ns after the origin. @param {number} time */
  local(time) {
    return (time - this.shift) / this.rate;
  }

  /** A time of the view in ns after the base, as near as a number can be. @param {number} time */
  own(time) {
    return this.origin + this.local(time);
  }

  /** A time of the view in ns after the base, as addresses have it. @param {number} time */
  address(time) {
    return String(BigInt(this.origin) + BigInt(Math.round(this.local(time))));
  }

  /** The time in the view of ns after the base. @param {number | bigint} time */
  seen(time) {
    const local = typeof time === "bigint" ? Number(time - BigInt(this.origin)) : time - this.origin;
    return this.at(local);
  }

  /** The time in the view of ns after the origin. @param {number} local */
  at(local) {
    return local * this.rate + this.shift;
  }

  /** Puts its clock beside that of the trace that was chosen. @param {Source} chosen */
  align(chosen) {
    this.shift = chosen === this ? 0 : this.origin * this.rate - chosen.origin + this.clocked.shift;
  }

  /** What has to be known before anything can be drawn; gives the tracks that have more events than before. */
  async open() {
    const { tracks, finest, levels, first_ns, last_ns, made } = await askPatiently("tracks", { trace: this.key });
    const changed = this.tracks.filter((old) => !old.done);
    if (Number.isNaN(this.origin)) this.origin = first_ns;
    this.tracks = tracks.map((/** @type {Track} */ track) => ({
      ...track, first: track.first_ns - this.origin, last: track.last_ns - this.origin,
    }));
    this.levels = levels;
    this.finest = finest;
    this.first = first_ns;
    this.last = last_ns;
    this.made = made;
    return changed;
  }

  /** What comes when the tracks are drawn already. @param {() => void} laid after which rows have changed
   * @param {(problem: string) => void} failed */
  async more(laid, failed) {
    const told = (/** @type {Error} */ error) => failed(error.message);
    const { first, last, key } = this;
    await Promise.all([
      ask("marks", { trace: key, parts: "steps" }).then(({ steps }) => {
        this.steps = steps.map((/** @type {Step} */ one) => ({
          ...one, start_ns: this.seen(one.start_ns), end_ns: this.seen(one.end_ns),
        }));
        laid();
      }, told),
      this.gaps.start(first, last, COARSE).then(() => {
        const found = this.gaps.whole?.value.gaps ?? {};
        this.gaps.devices = Object.keys(found).filter((device) => found[device].length);
        laid();
      }, told),
      this.counters.start(first, last, COARSE).then(() => {
        this.counters.listed = this.counters.whole?.value.series ?? [];
        laid();
      }, told),
    ]);
    this.whole = true;
    laid();
  }
}
