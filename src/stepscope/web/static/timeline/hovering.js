// @ts-check
// What is said of the place under the mouse.

import { make } from "../dom.js";
import { count, duration, share } from "../units.js";
import { firstGap, gapsOf, valueAt } from "./charts.js";
import { KINDS } from "./colours.js";

/** @typedef {import("./scene.js").Scene} Scene */

/** The lines of the tip at a point, or nothing. @param {Scene} scene @param {number} x @param {number} y */
export function tipAt(scene, x, y) {
  const row = scene.rows.at(y + scene.scroll);
  if (!row) return [];
  if (row.kind === "gaps") return gapTip(scene, row, x);
  if (row.kind === "counter") {
    return [make("b", "", row.label), make("span", "", valueAt(row, scene.view, scene.view.time(x)))];
  }
  const hit = scene.hit(x, y);
  if (!hit) return [];
  const { tile, box } = hit;
  const name = row.source.names.text(tile.name[box]) || "(no name)";
  const kind = KINDS[tile.kind[box]]?.[2] ?? "other";
  if (tile.count[box] === 1) return [make("b", "", name), make("span", "", `${kind}, ${duration(tile.dur[box])}`)];
  const busy = tile.dur[box] ? tile.busy[box] / tile.dur[box] : 1;
  return [
    make("b", "", `${count(tile.count[box])} events, mostly ${name}`),
    make("span", "", `in ${duration(tile.dur[box])}, ${share(Math.min(busy, 1))} of it filled`),
  ];
}

/** @param {Scene} scene @param {import("./rows.js").Row} row @param {number} x */
function gapTip(scene, row, x) {
  const gaps = gapsOf(row, scene.view);
  const time = row.source.own(scene.view.time(x));
  const near = scene.view.pixelNs * 2;
  const gap = gaps[firstGap(gaps, time - near)];
  if (!gap || gap.start_ns > time + near) return [make("span", "", "the device works")];
  const parts = Object.entries(gap.parts ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 4);
  return [
    make("b", "", gap.count > 1 ? `idle ${count(gap.count)} times, ${duration(gap.idle_ns)} together` : `idle for ${duration(gap.idle_ns)}`),
    ...parts.map(([cause, ns]) => make("span", "", `${cause.replaceAll("_", " ")}: ${duration(ns)}`)),
    gap.drained_by ? make("span", "", `after ${gap.drained_by}`) : make("span", "", gap.side === "unknown" ? "" : `limited by: ${gap.side}`),
  ];
}

/** Puts a tip beside the mouse, inside of its frame. @param {HTMLElement} tip @param {HTMLElement[]} lines
 * @param {number} x @param {number} y @param {HTMLElement} frame */
export function placeTip(tip, lines, x, y, frame) {
  tip.hidden = !lines.length;
  if (!lines.length) return;
  tip.replaceChildren(...lines);
  const { width, height } = frame.getBoundingClientRect();
  tip.style.left = `${Math.max(Math.min(x + 14, width - tip.offsetWidth - 4), 0)}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > height ? Math.max(y - tip.offsetHeight - 8, 0) : y + 18}px`;
}
