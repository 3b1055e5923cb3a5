// @ts-check
// Elements made by scripts. Texts come from profiles: they become text, never markup.

/**
 * @typedef {Record<string, string | number | boolean | undefined> & { style?: never, [on: `on${string}`]: never }} Attributes
 *   true is one without a value, false and undefined leave it out; style and handlers are never made of text
 * @typedef {string | Attributes} Given the class, or all attributes
 * @typedef {Node | string | null | undefined} Inside null and undefined are left out
 */

/**
 * An element with what is in it.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Given} [given] @param {Inside[]} inside @returns {HTMLElementTagNameMap[Name]}
 */
export function make(name, given = "", ...inside) {
  return filled(document.createElement(name), given, inside);
}

/**
 * An element of a drawing.
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name @param {Given} [given] @param {Inside[]} inside @returns {SVGElementTagNameMap[Name]}
 */
export function drawn(name, given = "", ...inside) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), given, inside);
}

/** @template {Element} Made @param {Made} element @param {Given} given @param {Inside[]} inside */
function filled(element, given, inside) {
  for (const [key, value] of Object.entries(typeof given === "string" ? { class: given } : given)) {
    if (value === undefined || value === false || (key === "class" && !value)) continue;
    element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...inside.filter((one) => one !== null && one !== undefined));
  return element;
}

/** A button. @param {string} text @param {(event: MouseEvent) => void} click @param {Given} [given] */
export function button(text, click, given = "") {
  const element = make("button", given, text);
  element.type = "button";
  element.addEventListener("click", click);
  return element;
}

/** What the colours of a drawing mean. @param {[string, string][]} keys the class of each colour, and its meaning */
export function legend(keys) {
  return make("ul", "legend keys", ...keys.map(([kind, text]) => make("li", "", make("span", `swatch ${kind}`), text)));
}

/** A colour of the sheet, in the theme that is shown. @param {string} name */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Calls a function now, and again when the theme or the width of an element changes. */
export function redrawn(/** @type {HTMLElement} */ element, /** @type {() => void} */ draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  }).observe(element);
  onTheme(draw);
}

/** Calls a function when the theme changes, by our button or by the system. @param {() => void} draw */
export function onTheme(draw) {
  addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
