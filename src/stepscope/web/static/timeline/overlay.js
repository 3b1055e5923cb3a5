// @ts-check
// What lies over the picture: the selected event, its arrows, the selected range, and the mouse.

import { duration } from "../units.js";
import { LANE } from "./rows.js";

/**
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {import("./sources.js").Source} Source
 * @typedef {{ event: number | null, track: number, name: string | null, kind: string, start_ns: number | null,
 *   dur_ns: number | null }} Ref
 * @typedef {{ from: Ref, to: Ref, means: string }} Arrow
 * @typedef {{ source: Source, ref: Ref, last: boolean }} Peer the same collective on a rank; the last one came last
 * @typedef {{ source: Source, ref: Ref, arrows: Arrow[], peers?: Peer[] }} Selected
 * @typedef {{ from: number, to: number }} Range in time of the view
 */

const HEAD = 5;

/** Draws over a scene, on a canvas of its own, so that moving the mouse draws no boxes again. */
export class Overlay {
  /** @param {HTMLCanvasElement} canvas @param {Scene} scene */
  constructor(canvas, scene) {
    this.canvas = canvas;
    this.on = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.scene = scene;
    /** @type {Selected | undefined} */
    this.selected = undefined;
    /** @type {Range | undefined} */
    this.range = undefined;
    /** @type {number | undefined} */
    this.mouse = undefined;
  }

  resize() {
    const { canvas } = this.scene;
    this.canvas.width = canvas.width;
    this.canvas.height = canvas.height;
    this.canvas.style.width = canvas.style.width;
    this.canvas.style.height = canvas.style.height;
  }

  draw() {
    const { on, scene } = this;
    on.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
    on.clearRect(0, 0, scene.view.width, scene.height);
    if (this.range) this.#range(this.range);
    if (this.selected) this.#selected(this.selected);
    if (this.mouse !== undefined) {
      on.fillStyle = scene.colours.css.muted;
      on.globalAlpha = 0.5;
      on.fillRect(Math.round(this.mouse), 0, 1, scene.height);
      on.globalAlpha = 1;
    }
  }

  /** Where an event is on the screen, even if outside of it. @param {Source} source @param {Ref} ref */
  place(source, ref) {
    const { scene } = this;
    const track = source.tracks.find((one) => one.id === ref.track);
    if (!track || ref.start_ns === null) return undefined;
    const row = scene.rows.of(source, ref.track) ??
      scene.rows.all.find((one) => one.source === source && one.kind === "group" && one.group === track.group);
    if (!row) return undefined;
    const lane = ref.event === null ? 0 : scene.laneOf(row, track, ref.event, ref.start_ns - source.origin);
    const left = scene.view.x(source.seen(ref.start_ns));
    const right = scene.view.x(source.seen(ref.start_ns + (ref.dur_ns ?? 0)));
    return { left, right: Math.max(right, left + 1), y: scene.laneY(row, lane) };
  }

  /** @param {Selected} selected */
  #selected({ source, ref, arrows, peers }) {
    const { on, scene } = this;
    const { css } = scene.colours;
    for (const arrow of arrows) this.#arrow(source, arrow);
    if (peers) this.#peers(peers);
    const at = this.place(source, ref);
    if (!at) return;
    on.strokeStyle = css.text;
    on.lineWidth = 2;
    on.strokeRect(at.left - 1, at.y - 1, Math.max(at.right - at.left, 2) + 2, LANE + 1);
    on.strokeStyle = css.panel;
    on.lineWidth = 1;
    if (at.right - at.left > 6) on.strokeRect(at.left + 0.5, at.y + 0.5, at.right - at.left - 1, LANE - 2);
  }

  /** A line through the arrivals of all ranks, from the top of the screen to its end. @param {Peer[]} peers */
  #peers(peers) {
    const { on, scene } = this;
    const { css } = scene.colours;
    const placed = peers.flatMap(({ source, ref, last }) => {
      const at = this.place(source, ref);
      return at ? [{ ...at, last }] : [];
    }).sort((one, other) => one.y - other.y);
    on.strokeStyle = css.communication;
    on.lineWidth = 1.6;
    on.beginPath();
    for (const { left, y } of placed) on.lineTo(left, y + LANE / 2);
    on.stroke();
    for (const { left, right, y, last } of placed) {
      on.strokeStyle = on.fillStyle = last ? css.high : css.communication;
      on.strokeRect(left - 0.5, y - 0.5, Math.max(right - left, 2), LANE);
      on.beginPath();
      on.arc(left, y + LANE / 2, 3.5, 0, 2 * Math.PI);
      on.fill();
    }
  }

  /** A curve from the one that causes to the one that follows. @param {Source} source @param {Arrow} arrow */
  #arrow(source, { from, to }) {
    const begin = this.place(source, from);
    const end = this.place(source, to);
    if (!begin || !end) return;
    const { on, scene } = this;
    const x0 = begin.left;
    const y0 = begin.y + LANE / 2;
    const x1 = end.left;
    const y1 = end.y + LANE / 2;
    if (Math.max(x0, x1) < -50 || Math.min(x0, x1) > scene.view.width + 50) return;
    const bend = Math.min(Math.max(Math.abs(x1 - x0) / 2, 24), 120);
    on.strokeStyle = on.fillStyle = scene.colours.css.high;
    on.lineWidth = 1.4;
    on.beginPath();
    on.moveTo(x0, y0);
    on.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - HEAD, y1);
    on.stroke();
    on.beginPath();
    on.moveTo(x1, y1);
    on.lineTo(x1 - HEAD - 2, y1 - HEAD + 1);
    on.lineTo(x1 - HEAD - 2, y1 + HEAD - 1);
    on.fill();
  }

  /** @param {Range} range */
  #range({ from, to }) {
    const { on, scene } = this;
    const { css } = scene.colours;
    const left = scene.view.x(from);
    const right = scene.view.x(to);
    on.fillStyle = css.link;
    on.globalAlpha = 0.1;
    on.fillRect(left, 0, right - left, scene.height);
    on.globalAlpha = 1;
    on.fillRect(Math.round(left), 0, 1, scene.height);
    on.fillRect(Math.round(right), 0, 1, scene.height);
    on.font = "600 11px system-ui, sans-serif";
    const words = duration(to - from);
    const wide = on.measureText(words).width + 10;
    const middle = Math.min(Math.max((left + right) / 2, wide / 2 + 2), scene.view.width - wide / 2 - 2);
    if (right < 0 || left > scene.view.width) return;
    on.fillRect(middle - wide / 2, 2, wide, 16);
    on.fillStyle = css.on;
    on.textBaseline = "middle";
    on.fillText(words, middle - wide / 2 + 5, 10.5);
  }
}

/** The arrows of an event: from what caused it, to what it caused. @param {any} event the answer of the server
 * @returns {Arrow[]} */
export function arrowsOf(event) {
  const { links } = event;
  /** @type {Arrow[]} */
  const arrows = [];
  const add = (/** @type {Ref | null | undefined} */ from, /** @type {Ref | null | undefined} */ to, /** @type {string} */ means) => {
    if (from && to && from.event !== to.event) arrows.push({ from, to, means });
  };
  const onDevice = ["kernel", "copy", "fill", "communication"].includes(event.kind);
  if (onDevice) add(links.launch ?? links.op, event, "launches");
  else for (const kernel of (links.kernels?.first ?? []).slice(0, 20)) add(event, kernel, "launches");
  add(links.forward, event, "backward");
  for (const one of (links.backward?.first ?? []).slice(0, 5)) add(event, one, "backward");
  return arrows;
}
