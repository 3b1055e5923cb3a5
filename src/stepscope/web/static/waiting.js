// @ts-check
// Says how far the opening is, and shows the page when it is done.

import { askState } from "./asking.js";
import { count } from "./units.js";

const EVERY_MS = 250;
const doing = /** @type {HTMLElement} */ (document.getElementById("doing"));
const progress = /** @type {HTMLProgressElement} */ (document.getElementById("progress"));

async function look() {
  try {
    const state = await askState();
    if (state.ready || state.problem) {
      // This page stays on screen until the next one is made.
      doing.textContent = state.ready ? "looking at it" : state.problem;
      progress.removeAttribute("value");
      location.reload();
      return;
    }
    const parts = [state.doing];
    if (state.bytes) parts.push(`${(state.bytes / 2 ** 20).toFixed(0)} MiB`);
    if (state.events) parts.push(`${count(state.events)} events`);
    doing.textContent = parts.join(", ");
    if (state.share === null) progress.removeAttribute("value");
    else progress.value = state.share;
  } catch {
    doing.textContent = "The server does not answer. Was it ended? The terminal says why.";
  }
  setTimeout(look, EVERY_MS);
}

look();
