// @ts-check
// The ruler above the tracks: time, and the steps of the program.

import { duration } from "../units.js";

/**
 * @typedef {import("./view.js").View} View
 * @typedef {import("./colours.js").Colours} Colours
 * @typedef {{ step: number, name: string, start_ns: number, end_ns: number, warm_up: boolean }} Step
 */

export const RULER = 46;
const TIMES = 22;
/** A mark of time has at least so many pixels. */
const APART = 90;

/** The distance of marks: 1, 2 or 5 of a power of ten. @param {number} least */
export function spacing(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return power * ([1, 2, 5, 10].find((times) => times * power >= least) ?? 10);
}

/** Marks of time in view. @param {View} view */
export function marks(view) {
  const apart = spacing(view.pixelNs * APART);
  const all = [];
  for (let at = Math.ceil(view.from / apart); at * apart <= view.to; at++) all.push(at * apart);
  return { apart, all };
}

/** A time after the first event, to as many digits as the marks differ by. @param {number} ns @param {number} apart */
export function moment(ns, apart) {
  const [unit, size] = /** @type {[string, number]} */ (
    Math.abs(ns) >= 1e9 || apart >= 1e9 ? ["s", 1e9] : Math.abs(ns) >= 1e6 || apart >= 1e6 ? ["ms", 1e6]
      : apart >= 1e3 || Math.abs(ns) >= 1e3 ? ["µs", 1e3] : ["ns", 1]
  );
  const digits = Math.max(0, Math.ceil(Math.log10(size / apart) - 1e-9));
  const value = (Math.round(ns) / size + 0).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${value.replace("-", "−")} ${unit}`;
}

/** Draws the ruler.
 * @param {CanvasRenderingContext2D} on @param {View} view @param {Step[]} steps @param {Colours} colours */
export function drawRuler(on, view, steps, colours) {
  const { css } = colours;
  on.fillStyle = css.panel;
  on.fillRect(0, 0, view.width, RULER);
  on.font = "11px system-ui, sans-serif";
  on.textBaseline = "middle";
  on.fillStyle = css.muted;
  const { apart, all } = marks(view);
  for (const time of all) {
    const x = Math.round(view.x(time));
    on.fillRect(x, TIMES - 6, 1, 6);
    on.fillText(moment(time, apart), x + 4, TIMES / 2 + 1);
  }
  on.fillStyle = css.line;
  on.fillRect(0, TIMES, view.width, 1);
  drawSteps(on, view, steps, colours);
  on.fillStyle = css.line;
  on.fillRect(0, RULER - 1, view.width, 1);
}

/** @param {CanvasRenderingContext2D} on @param {View} view @param {Step[]} steps @param {Colours} colours */
function drawSteps(on, view, steps, { css }) {
  const top = TIMES + 4;
  const high = RULER - TIMES - 8;
  let said = -Infinity;
  for (const step of steps) {
    if (step.end_ns < view.from || step.start_ns > view.to) continue;
    const left = Math.max(Math.round(view.x(step.start_ns)), 0);
    const right = Math.min(Math.max(Math.round(view.x(step.end_ns)), left + 1), view.width);
    on.fillStyle = step.warm_up ? css.other : css.low;
    on.globalAlpha = step.warm_up ? 0.16 : 0.28;
    on.fillRect(left, top, Math.max(right - left - 1, 1), high);
    on.globalAlpha = 1;
    on.fillRect(left, top, 1, high);
    const long = `step ${step.step} · ${duration(step.end_ns - step.start_ns)}${step.warm_up ? " · warm-up" : ""}`;
    const room = right - Math.max(left, said) - 8;
    const words = [long, `step ${step.step}`, String(step.step)].find((one) => on.measureText(one).width <= room);
    if (!words) continue;
    on.fillStyle = css.text;
    on.fillText(words, left + 5, top + high / 2 + 1);
    said = left + 5 + on.measureText(words).width;
  }
}

/** Lines through all tracks: where steps begin, and the marks of time, fainter.
 * @param {CanvasRenderingContext2D} on @param {View} view @param {Step[]} steps @param {Colours} colours
 * @param {number} height */
export function drawLines(on, view, steps, { css }, height) {
  on.fillStyle = css.line;
  on.globalAlpha = 0.5;
  for (const time of marks(view).all) on.fillRect(Math.round(view.x(time)), 0, 1, height);
  on.globalAlpha = 0.55;
  on.fillStyle = css.low;
  let before = -Infinity;
  for (const step of steps) {
    const x = Math.round(view.x(step.start_ns));
    if (x < 0 || x > view.width || x - before < 14) continue;
    on.fillRect(x, 0, 1, height);
    before = x;
  }
  on.globalAlpha = 1;
}
