// @ts-check
// What every page has: its lively blocks, the theme, the choice of a trace, and help for the keyboard.

import { enlivenAll } from "./copying.js";
import { make } from "./dom.js";
import { addShortcuts, onKeys, shortcuts } from "./keys.js";
import { openInPerfetto } from "./perfetto.js";
import { watchLoading } from "./loading.js";

/** @param {HTMLElement} element */
async function draw(element) {
  const kind = element.dataset.block ?? "";
  const source = element.querySelector("script[type='application/json']");
  const block = await import(`./blocks/${kind}.js`);
  block.draw(element, JSON.parse(source?.textContent ?? "null"));
}

for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-block]"))) {
  draw(element).catch((error) => {
    element.append(make("p", "problem", `This part could not be drawn: ${error.message}`));
  });
}

document.getElementById("trace-choice")?.addEventListener("change", (event) => {
  const address = new URL(location.href);
  address.searchParams.set("trace", /** @type {HTMLSelectElement} */ (event.target).value);
  location.href = address.href;
});

document.getElementById("theme-button")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // A browser may keep nothing: then the choice holds for this page.
  }
  dispatchEvent(new Event("themechange"));
});

document.getElementById("help-button")?.addEventListener("click", () => shortcuts());

// What the timeline shows is in its address; other pages are about the whole trace.
const perfetto = document.getElementById("perfetto-button");
perfetto?.addEventListener("click", () => {
  const shown = new URL(location.href).searchParams;
  /** @type {Record<string, string>} */
  const asked = { trace: perfetto.dataset.trace ?? "" };
  for (const name of ["from", "to"]) {
    const at = shown.get(name);
    if (at && document.body.dataset.page === "timeline") asked[name] = at;
  }
  openInPerfetto(asked, /** @type {HTMLElement} */ (document.getElementById("busy")));
});

// Options of the address belong to the page that is saved.
document.getElementById("save-link")?.addEventListener("click", (event) => {
  const link = /** @type {HTMLAnchorElement} */ (event.currentTarget);
  const address = new URL(link.href);
  for (const [name, value] of new URL(location.href).searchParams) address.searchParams.set(name, value);
  link.href = address.href;
});

/** @type {Map<string, HTMLAnchorElement>} */
const jumps = new Map();
for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav.side a[data-jump]"))) {
  jumps.set(link.dataset.jump ?? "", link);
}
if (jumps.size) {
  onKeys("g", (key) => jumps.get(key)?.click());
  addShortcuts([...jumps].map(([key, link]) => ({ keys: `g ${key}`, does: link.textContent ?? "" })));
}

watchLoading(document.getElementById("busy"));

enlivenAll();
