// @ts-check
// The parts of the page: tools, ruler, names and picture, panel, legend.

import { button, make } from "../dom.js";
import { KINDS } from "./colours.js";
import { RULER } from "./ruler.js";

/** What the colours of idle time mean. */
const SIDES = [
  ["host", "waiting for the host"], ["launch", "waiting for a launch"], ["device", "waiting for other device work"], ["unknown", "unknown"],
];

/** Builds the page. @param {HTMLElement} element */
export function layout(element) {
  const canvas = make("canvas", {
    class: "tl-canvas", tabindex: 0, role: "application",
    "aria-label": "Timeline of threads and streams. W and S zoom, A and D move, slash searches, F fits. What is selected is told in the panel below.",
  });
  const overlay = make("canvas", { class: "tl-overlay", "aria-hidden": "true" });
  const ruler = make("canvas", { class: "tl-ruler", "aria-hidden": "true" });
  const tip = make("div", { class: "tl-tip", hidden: true });
  const picture = make("div", "tl-picture", canvas, overlay, tip);
  const column = make("div", "tl-names");
  const stage = make("div", "tl-stage", column, picture);
  const span = make("div", "tl-span");
  const panel = make("section", { class: "tl-panel", hidden: true, tabindex: 0, "aria-label": "What is selected" });
  const tools = make("div", "tl-tools");
  const status = make("output", { class: "tl-status", "aria-live": "polite" });
  const foot = make("footer", "tl-foot", legend(), status);
  const head = make("div", "tl-head", span, ruler);
  head.style.height = `${RULER}px`;
  element.replaceChildren(tools, head, stage, panel, foot);
  return { canvas, overlay, ruler, tip, picture, column, stage, span, panel, tools, status };
}

function legend() {
  const list = make("ul", { class: "tl-legend", "aria-label": "Colours" });
  for (const [kind, , words] of KINDS) {
    if (kind !== "other") list.append(make("li", "", make("span", `swatch tl-kind-${kind}`), words));
  }
  list.append(make("li", "tl-apart", "GPU idle:"));
  for (const [side, words] of SIDES) list.append(make("li", "", make("span", `swatch tl-side-${side}`), words));
  return list;
}

/** Buttons for those without a wheel or keys.
 * @param {{ zoomIn: () => void, zoomOut: () => void, fit: () => void, range: (on: boolean) => void }} does */
export function buttons(does) {
  const range = button("Select a range", () => {
    const on = range.getAttribute("aria-pressed") !== "true";
    range.setAttribute("aria-pressed", String(on));
    does.range(on);
  }, { class: "tl-range-tool", "aria-pressed": "false", title: "Drag selects a range; or hold Shift (R)" });
  const tool = (/** @type {string} */ sign, /** @type {() => void} */ click, /** @type {string} */ words) =>
    button(sign, click, { title: words, "aria-label": words });
  const group = make("div", "tl-buttons",
    tool("−", does.zoomOut, "Zoom out (S)"), tool("+", does.zoomIn, "Zoom in (W)"),
    tool("Fit", does.fit, "Show the selection, or everything (F)"), range);
  return { group, range };
}

/** The choice of more ranks, with those that are shown.
 * @param {{ key: string, label: string }[]} others @param {string[]} shown
 * @param {(key: string, on: boolean) => void} turn */
export function ranks(others, shown, turn) {
  const more = others.filter(({ key }) => !shown.includes(key)).map(({ key, label }) => make("option", { value: key }, label));
  const select = make("select", { "aria-label": "Add a rank" }, make("option", "", "Add a rank …"), ...more);
  select.addEventListener("change", () => turn(select.value, true));
  const chips = others.filter(({ key }) => shown.includes(key)).map(({ key, label }) =>
    button(`${label} ×`, () => turn(key, false), { class: "tl-chip", "aria-label": `Remove ${label}` }));
  return make("div", "tl-ranks", ...chips, select);
}
