// @ts-check
// What part of time is seen: from, to, and how many pixels it has.

/** Nobody needs to see less than this at once. */
export const LEAST_NS = 40;

/** The stretch of time on the screen. All times are ns after the first event of the trace
 * that was chosen: its base may lie so far before that a number has no room for the ns. */
export class View {
  constructor() {
    this.from = 0;
    this.to = 1;
    /** The first and last time that can be reached. */
    this.low = 0;
    this.high = 1;
    /** In pixels of the page, not of the screen. */
    this.width = 1;
    /** @type {(() => void)[]} */
    this.listeners = [];
  }

  get span() {
    return this.to - this.from;
  }

  /** Whether all there is can be seen; ends of a stretch are as exact as numbers are. */
  get seesAll() {
    return this.span > this.high - this.low - 1;
  }

  /** ns in a pixel of the page. */
  get pixelNs() {
    return this.span / this.width;
  }

  /** @param {number} time */
  x(time) {
    return ((time - this.from) / this.span) * this.width;
  }

  /** @param {number} x */
  time(x) {
    return this.from + (x / this.width) * this.span;
  }

  /** Time that can be reached, with a little room at both ends. @param {number} first @param {number} last */
  bound(first, last) {
    const room = Math.max((last - first) * 0.02, 50);
    this.low = first - room;
    this.high = last + room;
  }

  /** Shows a stretch, as far as it can be. @param {number} from @param {number} to */
  show(from, to) {
    const whole = this.high - this.low;
    const span = Math.min(Math.max(to - from, LEAST_NS), whole);
    const middle = (from + to) / 2;
    const start = Math.min(Math.max(middle - span / 2, this.low), this.high - span);
    if (start === this.from && start + span === this.to) return;
    this.from = start;
    this.to = start + span;
    for (const told of this.listeners) told();
  }

  /** Shows all there is. */
  showAll() {
    this.show(this.low, this.high);
  }

  /** Shows a stretch with room at its sides. @param {number} from @param {number} to @param {number} room */
  fit(from, to, room = 0.15) {
    const more = Math.max((to - from) * room, 10);
    this.show(from - more, to + more);
  }

  /** Makes a time visible without changing the zoom, unless it is wider than the view.
   * @param {number} from @param {number} to */
  reveal(from, to) {
    if (to - from > this.span) this.fit(from, to);
    else if (from < this.from || to > this.to) {
      const middle = (from + to) / 2;
      this.show(middle - this.span / 2, middle + this.span / 2);
    }
  }

  /** Moves by a part of the width. @param {number} share */
  pan(share) {
    this.show(this.from + share * this.span, this.to + share * this.span);
  }

  /** Makes everything wider or narrower, with one pixel in its place.
   * @param {number} factor more than 1 shows less @param {number} x */
  zoom(factor, x = this.width / 2) {
    const whole = this.high - this.low;
    const span = Math.min(Math.max(this.span / factor, LEAST_NS), whole);
    const held = this.time(x);
    const from = held - (x / this.width) * span;
    this.show(from, from + span);
  }
}
