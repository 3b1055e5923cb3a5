// @ts-check
// Says that the next page is being made, and what takes so long: the old one is on screen until it comes.

import { askState } from "./asking.js";

const QUIET_MS = 400;
const EVERY_MS = 300;

/** @param {HTMLElement | null} told Where it is said. */
export function watchLoading(told) {
  if (!told) return;
  /** @type {number | undefined} */
  let timer;
  addEventListener("beforeunload", () => {
    clearTimeout(timer);
    timer = setTimeout(() => say(told), QUIET_MS);
  });
  // Who comes back with the browser's button sees a page that waits for nothing.
  addEventListener("pageshow", () => {
    clearTimeout(timer);
    told.textContent = "";
    told.classList.remove("working");
  });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[download]") : null;
    if (link) setTimeout(() => clearTimeout(timer)); // a download leaves no page
  });
}

/** @param {HTMLElement} told */
async function say(told) {
  told.classList.add("working");
  told.textContent = "Working…";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (!told.classList.contains("working")) return;
    try {
      const state = await askState();
      const share = state.share === null ? "" : `, ${Math.round(state.share * 100)} %`;
      told.textContent = state.doing ? `Working: ${state.doing}${share}` : "Working…";
    } catch {
      told.textContent = "The server does not answer. Was it ended?";
      told.classList.remove("working");
    }
  }
}
