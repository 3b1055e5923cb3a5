// @ts-check
// The timeline of a trace.

import { make } from "../dom.js";
import { Timeline } from "../timeline/main.js";

/** @param {HTMLElement} element @param {import("../timeline/main.js").Given} data */
export function draw(element, data) {
  new Timeline(element, data).open().catch((error) => {
    element.dataset.state = "failed";
    element.replaceChildren(make("p", "problem", `The timeline could not be drawn: ${error.message}`));
  });
}
