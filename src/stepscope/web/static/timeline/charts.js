// @ts-check
// What is drawn beside the boxes: idle time by cause, and counters.

import { size } from "../units.js";

/**
 * @typedef {import("./view.js").View} View
 * @typedef {import("./colours.js").Colours} Colours
 * @typedef {import("./rows.js").Row} Row
 * @typedef {import("./sources.js").Gap} Gap
 * @typedef {import("./sources.js").Series} Series
 */

/** Idle time of the row's device in a stretch, in the trace's own time. @param {Row} row @param {View} view
 * @returns {Gap[]} */
export function gapsOf(row, view) {
  const { source } = row;
  const found = source.gaps.get(source.own(view.from), source.own(view.to), Math.round(view.width));
  return found?.value.gaps[row.device ?? ""] ?? [];
}

/** The first gap that ends after a time. @param {Gap[]} gaps @param {number} time */
export function firstGap(gaps, time) {
  let low = 0;
  let high = gaps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (gaps[middle].start_ns + gaps[middle].dur_ns <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Draws idle time, each in the colour of its cause.
 * @param {CanvasRenderingContext2D} on @param {Row} row @param {number} y @param {View} view @param {Colours} colours */
export function drawGaps(on, row, y, view, colours) {
  const { source } = row;
  const gaps = gapsOf(row, view);
  const from = source.own(view.from);
  const to = source.own(view.to);
  const top = y + 3;
  const high = row.height - 6;
  on.font = "10.5px system-ui, sans-serif";
  on.textBaseline = "middle";
  for (let at = firstGap(gaps, from); at < gaps.length && gaps[at].start_ns < to; at++) {
    const gap = gaps[at];
    const left = Math.max(view.x(source.seen(gap.start_ns)), 0);
    const right = Math.min(view.x(source.seen(gap.start_ns + gap.dur_ns)), view.width);
    const wide = Math.max(right - left, 1);
    on.fillStyle = colours.side(gap.side);
    on.globalAlpha = 0.3 + 0.55 * Math.min(gap.dur_ns ? gap.idle_ns / gap.dur_ns : 1, 1);
    on.fillRect(left, top, wide, high);
    on.globalAlpha = 1;
    const words = gap.cause.replaceAll("_", " ");
    if (wide > 34 && on.measureText(words).width < wide - 8) {
      on.fillStyle = colours.css.on;
      on.fillText(words, left + 4, top + high / 2 + 0.5);
    }
  }
}

/** The series of a row, and how its pixels lie. @param {Row} row @param {View} view */
export function seriesOf(row, view) {
  const { source } = row;
  const found = source.counters.get(source.own(view.from), source.own(view.to), Math.round(view.width));
  const series = found?.value.series.find((one) => one.id === row.series);
  return found && series ? { series, from: found.value.from, pixelNs: found.value.pixel_ns } : undefined;
}

/** The upper end of a series' axis: its natural one, or the highest value of the whole trace.
 * @param {Row} row @param {Series} series */
function topOf(row, series) {
  if (series.top) return series.top;
  const whole = row.source.counters.listed.find((one) => one.id === series.id) ?? series;
  return whole.max.reduce((most, one) => Math.max(most, one), 0) || 1;
}

/** Draws a counter as an area.
 * @param {CanvasRenderingContext2D} on @param {Row} row @param {number} y @param {View} view @param {Colours} colours */
export function drawCounter(on, row, y, view, colours) {
  const found = seriesOf(row, view);
  const base = y + row.height - 4;
  const high = row.height - 9;
  on.fillStyle = colours.css.line;
  on.fillRect(0, base, view.width, 1);
  if (!found) return;
  const { series } = found;
  const top = topOf(row, series);
  const area = new Path2D();
  const edge = new Path2D();
  trace(found, row, view, (x, value, first) => {
    const at = base - (Math.min(value / top, 1) * high);
    if (first) {
      area.moveTo(x, base);
      edge.moveTo(x, at);
    }
    area.lineTo(x, at);
    edge.lineTo(x, at);
  }, (x) => area.lineTo(x, base));
  const colour = colours.css[colourOf(series.id)];
  on.fillStyle = colour;
  on.globalAlpha = 0.22;
  on.fill(area);
  on.globalAlpha = 1;
  on.strokeStyle = colour;
  on.lineWidth = 1;
  on.stroke(edge);
  on.font = "10px system-ui, sans-serif";
  on.textBaseline = "top";
  on.textAlign = "right";
  // A rim of the ground keeps it readable on a curve that is as high.
  on.strokeStyle = colours.css.panel;
  on.lineWidth = 4;
  on.lineJoin = "round";
  on.strokeText(amount(top, series.unit), view.width - 5, y + 4);
  on.fillStyle = colours.css.text;
  on.fillText(amount(top, series.unit), view.width - 5, y + 4);
  on.textAlign = "left";
}

/** Walks along a series: steps from pixel to pixel that is listed.
 * @param {{ series: Series, from: number, pixelNs: number }} found @param {Row} row @param {View} view
 * @param {(x: number, value: number, first: boolean) => void} point @param {(x: number) => void} end */
function trace({ series, from, pixelNs }, row, view, point, end) {
  const { source } = row;
  const place = (/** @type {number} */ pixel) => view.x(source.seen(from + pixel * pixelNs));
  const { start } = series;
  // A device is busy or not: of a pixel, the part of its time tells something, and no peak.
  const values = series.unit === "share" ? series.mean : series.max;
  let at = Math.max(firstPixel(start, (source.own(view.from) - from) / pixelNs) - 1, 0);
  let first = true;
  let x = 0;
  for (; at < start.length; at++) {
    x = place(start[at]);
    if (x > view.width) break;
    const next = at + 1 < start.length ? start[at + 1] : series.hold ? start[at] + 1e9 : start[at] + 1;
    const until = series.hold ? next : Math.min(next, start[at] + 1);
    const left = Math.max(x, -2);
    point(left, values[at], first);
    first = false;
    x = Math.min(place(until), view.width + 2);
    point(x, values[at], false);
    if (until < next) {
      point(x, 0, false);
      point(Math.min(place(next), view.width + 2), 0, false);
    }
  }
  if (!first) end(Math.min(x, view.width + 2));
}

/** @param {number[]} start @param {number} pixel */
function firstPixel(start, pixel) {
  let low = 0;
  let high = start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] < pixel) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The value of a series at a time, in words. @param {Row} row @param {View} view @param {number} time */
export function valueAt(row, view, time) {
  const found = seriesOf(row, view);
  if (!found) return "";
  const pixel = Math.floor((row.source.own(time) - found.from) / found.pixelNs);
  const at = firstPixel(found.series.start, pixel + 1) - 1;
  const { series } = found;
  if (at < 0) return "not known here";
  if (!series.hold && series.start[at] !== pixel) return amount(0, series.unit);
  const [low, mean, most] = [series.min[at], series.mean[at], series.max[at]].map((one) => amount(one, series.unit));
  return low === most ? mean : `${mean} (${low} to ${most})`;
}

/** @param {number} value @param {string} unit */
function amount(value, unit) {
  if (unit === "share") return `${(value * 100).toFixed(value >= 0.1 || value === 0 ? 0 : 1)} %`;
  if (unit === "bytes") return size(value);
  const text = value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
  return unit === "count" ? text : `${text} ${unit === "C" ? "°C" : unit}`;
}

/** @param {string} id */
function colourOf(id) {
  const what = id.split(":")[0];
  return ({ busy: "device", sm: "device", allocated: "copy", reserved: "other", queue: "calls", power: "high",
    temperature: "high" })[what] ?? "low";
}
