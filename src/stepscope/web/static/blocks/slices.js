// @ts-check
// What the time went to: one column for each slice of time, its parts one above the other.

import { drawn, legend, make } from "../dom.js";
import { duration, share } from "../units.js";

const HEIGHT = 150;
// No shares of all slices: they have the time between steps, and the mean step, which is told beside them, has not.
const HINT = "From the first step to the last. Point at a slice to read its parts; a click shows the moment in the timeline.";

/**
 * @typedef {{ columns: Record<string, number[]>, timeline: string, parts: [string, string, string][] }} Slices
 * @param {HTMLElement} element @param {Slices} data
 */
export function draw(element, data) {
  const columns = data.columns;
  const count = columns.start_ns.length;
  const parts = data.parts.filter(([name]) => columns[name]?.some((/** @type {number} */ ns) => ns > 0));
  const picture = drawn("svg", {
    viewBox: `0 0 ${count} ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", role: "img",
    "aria-label": "Parts of the time, slice by slice",
  });
  const floor = new Array(count).fill(0);
  for (const [name, colour] of parts) {
    let path = "";
    const upper = floor.map((low, place) => low + columns[name][place] / columns.dur_ns[place]);
    for (let place = 0; place < count; place++) {
      path += `${place ? "L" : "M"}${place} ${y(upper[place])}L${place + 1} ${y(upper[place])}`;
    }
    for (let place = count - 1; place >= 0; place--) {
      path += `L${place + 1} ${y(floor[place])}L${place} ${y(floor[place])}`;
    }
    picture.append(drawn("g", colour, drawn("path", { d: `${path}Z`, class: "mark" })));
    upper.forEach((value, place) => { floor[place] = value; });
  }
  const mark = make("div", { class: "slice-mark", hidden: true });
  const told = make("p", { class: "small muted slice-told", "aria-live": "off" }, HINT);
  const plot = make("div", "slices-plot", picture, mark);
  const first = columns.start_ns[0];
  const last = columns.start_ns[count - 1] + columns.dur_ns[count - 1];
  const ends = make("div", "slices-ends small muted", make("span", "", "0"),
    make("span", "", duration(last - first)));
  element.replaceChildren(plot, ends, legend(parts.map(([, colour, name]) => [colour, name])), told);

  /** @param {PointerEvent | MouseEvent} event */
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor((event.clientX - box.left) / box.width * count)));
  };
  plot.addEventListener("pointermove", (event) => {
    const place = at(event);
    mark.hidden = false;
    mark.style.left = `${place / count * 100}%`;
    mark.style.width = `${100 / count}%`;
    const said = parts
      .filter(([name]) => columns[name][place] > 0)
      .map(([name, , title]) => `${title} ${share(columns[name][place] / columns.dur_ns[place])}`);
    told.textContent = `at ${duration(columns.start_ns[place] - first)}, for ${duration(columns.dur_ns[place])}: ${said.join(", ")}`;
  });
  plot.addEventListener("pointerleave", () => {
    mark.hidden = true;
    told.textContent = HINT;
  });
  plot.addEventListener("click", (event) => {
    const place = at(event);
    const joint = data.timeline.includes("?") ? "&" : "?";
    const since = columns.start_ns[place];
    location.href = `${data.timeline}${joint}from=${since}&to=${since + columns.dur_ns[place]}`;
  });
}

/** @param {number} part */
const y = (part) => ((1 - Math.min(1, part)) * HEIGHT).toFixed(2);
