// @ts-check
// Wheel, mouse, fingers and keys.

import { isTyping } from "../keys.js";

/**
 * @typedef {import("./view.js").View} View
 * @typedef {{
 *   view: View, stage: HTMLElement, canvas: HTMLElement, ranging: () => boolean,
 *   click: (x: number, y: number) => void, twice: (x: number, y: number) => void,
 *   hover: (x: number | undefined, y: number) => void,
 *   range: (from: number, to: number, done: boolean) => void,
 *   keys: Record<string, () => void>,
 * }} Handled
 */

/** Less than this is a click, not a drag. */
const STILL = 4;
const MOVES = /** @type {Record<string, [number, number]>} */ ({
  // of each key: by which part of the width it moves, and how much it zooms in, in a second
  a: [-1.4, 0], arrowleft: [-1.4, 0], d: [1.4, 0], arrowright: [1.4, 0],
  w: [0, 2.6], "+": [0, 2.6], "=": [0, 2.6], s: [0, -2.6], "-": [0, -2.6],
});
/** How long a key works at once, before the first frame. */
const AT_ONCE = 0.07;

/** Makes the timeline answer. @param {Handled} handled */
export function listen(handled) {
  listenToWheel(handled);
  listenToPointers(handled);
  listenToKeys(handled);
}

/** As in other viewers: the wheel scrolls, with Ctrl it zooms, sideways or with Shift it moves.
 * @param {Handled} handled */
function listenToWheel({ view, stage, canvas }) {
  stage.addEventListener("wheel", (event) => {
    const { left } = canvas.getBoundingClientRect();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault(); // the browser would make the page larger; a pinch on a pad comes like this, too
      const strength = Math.abs(dy) < 20 ? 0.012 : 0.0025;
      view.zoom(Math.exp(-dy * strength), Math.max(event.clientX - left, 0));
    } else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) {
      event.preventDefault();
      view.pan((event.shiftKey && !dx ? dy : dx) / view.width);
    }
  }, { passive: false });
}

/** @param {Handled} handled */
function listenToPointers({ view, stage, canvas, ranging, click, twice, hover, range }) {
  /** @type {Map<number, { x: number, y: number }>} */
  const down = new Map();
  let begun = { x: 0, y: 0, scroll: 0, from: 0, ranging: false };
  let moved = false;
  const at = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const here = at(event);
    down.set(event.pointerId, here);
    canvas.setPointerCapture(event.pointerId);
    moved = down.size > 1;
    begun = { ...here, scroll: stage.scrollTop, from: view.from, ranging: event.shiftKey || ranging() };
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = at(event);
    const last = down.get(event.pointerId);
    if (!last) return hover(here.x, here.y);
    if (Math.hypot(here.x - begun.x, here.y - begun.y) > STILL) moved = true;
    if (!moved) return;
    if (down.size === 2) pinch(view, canvas, down, event.pointerId, here);
    else if (begun.ranging) range(view.time(begun.x), view.time(here.x), false);
    else {
      hover(undefined, 0);
      const from = begun.from - (here.x - begun.x) * view.pixelNs;
      view.show(from, from + view.span);
      stage.scrollTop = begun.scroll - (here.y - begun.y);
    }
    down.set(event.pointerId, here);
  });
  const up = (/** @type {PointerEvent} */ event) => {
    if (!down.delete(event.pointerId)) return;
    const here = at(event);
    for (const [, rest] of down) begun = { ...rest, scroll: stage.scrollTop, from: view.from, ranging: false };
    if (event.type === "pointercancel") return;
    if (moved && begun.ranging) range(view.time(begun.x), view.time(here.x), true);
    else if (!moved) click(here.x, here.y);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => hover(undefined, 0));
  canvas.addEventListener("dblclick", (event) => twice(at(event).x, at(event).y));
}

/** Two fingers: what is between them stays there.
 * @param {View} view @param {HTMLElement} canvas @param {Map<number, { x: number, y: number }>} down
 * @param {number} id @param {{ x: number, y: number }} here */
function pinch(view, canvas, down, id, here) {
  const other = [...down].find(([one]) => one !== id)?.[1];
  const last = down.get(id);
  if (!other || !last) return;
  const before = Math.max(Math.abs(last.x - other.x), 10);
  const now = Math.max(Math.abs(here.x - other.x), 10);
  view.pan((last.x - here.x) / 2 / view.width);
  view.zoom(now / before, (here.x + other.x) / 2);
}

/** @param {Handled} handled */
function listenToKeys({ view, stage, keys }) {
  /** @type {Set<string>} */
  const held = new Set();
  let before = 0;
  const move = (/** @type {string} */ key, /** @type {number} */ seconds) => {
    const [pan, zoom] = MOVES[key];
    if (pan) view.pan(pan * seconds);
    if (zoom) view.zoom(Math.exp(zoom * seconds));
  };
  const frame = (/** @type {number} */ now) => {
    if (!held.size) return;
    const seconds = Math.min((now - before) / 1000, 0.05);
    before = now;
    for (const key of held) move(key, seconds);
    requestAnimationFrame(frame);
  };
  addEventListener("keydown", (event) => {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    if (key in MOVES) {
      if (key.startsWith("arrow") && /** @type {HTMLElement} */ (event.target).closest?.(".tl-panel")) return;
      event.preventDefault();
      if (held.has(key)) return;
      move(key, AT_ONCE);
      held.add(key);
      if (held.size === 1) {
        before = performance.now();
        requestAnimationFrame(frame);
      }
    } else if (keys[event.key] && !(event.key === "Enter" && /** @type {HTMLElement} */ (event.target).closest?.("button, a"))) {
      event.preventDefault();
      keys[event.key]();
    } else if (key === "arrowup" || key === "arrowdown") {
      if (/** @type {HTMLElement} */ (event.target).closest?.(".tl-panel")) return;
      event.preventDefault();
      stage.scrollTop += key === "arrowup" ? -60 : 60;
    }
  });
  addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
  addEventListener("blur", () => held.clear());
}
