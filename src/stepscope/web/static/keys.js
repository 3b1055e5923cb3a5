// @ts-check
// Keys that work on every page, and the list of all keys, which `?` shows.

import { button, make } from "./dom.js";

/** @typedef {{ keys: string, does: string }} Shortcut */

/** @type {Shortcut[]} */
const known = [
  { keys: "?", does: "this help" },
  { keys: "/", does: "search or filter, where the page can" },
  { keys: "Esc", does: "leave a field, close a dialog" },
];

/** @type {Map<string, (key: string) => void>} */
const prefixes = new Map();
let begun = "";
let begunAt = 0;
const PATIENCE_MS = 1500;

/** Adds keys to the list that `?` shows. @param {Shortcut[]} more */
export function addShortcuts(more) {
  known.push(...more);
}

/** Calls with the key that is typed after another one, as in `g k`.
 * @param {string} first @param {(key: string) => void} then */
export function onKeys(first, then) {
  prefixes.set(first, then);
}

/** Shows the list of keys. */
export function shortcuts() {
  const list = known.flatMap(({ keys, does }) => [
    make("dt", "", ...keys.split(" ").flatMap((one) => [make("kbd", "", one), " "])),
    make("dd", "", does),
  ]);
  const dialog = make("dialog", { class: "keys", "aria-labelledby": "keys-heading" },
    make("h2", { id: "keys-heading" }, "Keyboard"),
    make("dl", "", ...list),
    button("Close", () => dialog.close()));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Whether what is typed belongs to a field of the page. @param {KeyboardEvent} event */
export function isTyping(event) {
  const at = event.target;
  return at instanceof Element && at.matches("input, textarea, select, [contenteditable]");
}

/** The field that `/` leads to. @returns {HTMLElement | null} */
function searchField() {
  return document.querySelector("main [data-search], main input[type='search']");
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isTyping(event) && event.target instanceof HTMLElement) {
    event.target.blur();
    return;
  }
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  const now = performance.now();
  const then = prefixes.get(begun);
  if (then && now - begunAt < PATIENCE_MS) {
    begun = "";
    // A page may have keys of its own, which are not meant here.
    event.stopImmediatePropagation();
    then(event.key);
    return;
  }
  begun = prefixes.has(event.key) ? event.key : "";
  begunAt = now;
  if (event.key === "?") shortcuts();
  if (event.key === "/") {
    const field = searchField();
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
}, { capture: true });
