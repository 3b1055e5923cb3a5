// @ts-check
// The page of `stepscope open --perfetto`.

import { openInPerfetto } from "./perfetto.js";

const button = /** @type {HTMLElement} */ (document.getElementById("perfetto-button"));
const told = /** @type {HTMLElement} */ (document.getElementById("perfetto-state"));
const address = new URL(location.href);
button.addEventListener("click", () => {
  const trace = address.searchParams.get("trace");
  openInPerfetto(trace ? { trace } : {}, told);
});
