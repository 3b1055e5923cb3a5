// @ts-check
// The search: the next event whose name has the text, or the one before.

import { ask, saying } from "../asking.js";
import { button, make } from "../dom.js";
import { count } from "../units.js";

/**
 * @typedef {import("./sources.js").Source} Source
 * @typedef {{ track: number, event: number, start_ns: number, dur_ns: number, text: string, lane: number,
 *   kind: number }} Found
 */

/** The search of a timeline: its field, its two buttons, and what it says. */
export class Search {
  /** @param {() => { source: Source, from: string, event?: number }} here where the search goes on
   * @param {(source: Source, found: Found) => void} show */
  constructor(here, show) {
    this.here = here;
    this.show = show;
    this.field = make("input", { type: "search", placeholder: "Find events by name  /", "aria-label": "Find events by name" });
    this.said = make("output", { "aria-live": "polite" });
    this.element = make("form", { class: "tl-search", role: "search" },
      this.field,
      this.#button("‹", "Previous event (Shift+Enter)", true),
      this.#button("›", "Next event (Enter)", false),
      this.said);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.go(false);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) {
        event.preventDefault();
        this.go(true);
      } else if (event.key === "Escape") {
        event.preventDefault(); // the browser would empty the field, and N would find nothing
        this.field.blur();
      }
    });
    this.field.addEventListener("input", () => (this.said.textContent = ""));
  }

  /** Goes to the next or the one before. @param {boolean} back */
  async go(back) {
    const text = this.field.value.trim();
    if (!text) {
      this.field.focus();
      return;
    }
    const { source, from, event } = this.here();
    this.said.textContent = "searching …";
    try {
      const given = { trace: source.key, text, from, event, back: back ? 1 : undefined };
      let { found, names } = await ask("find", given);
      let around = "";
      if (!found && names) {
        const end = source.address(source.seen(back ? source.last : source.first) + (back ? 1000 : -1000));
        ({ found } = await ask("find", { ...given, from: end, event: undefined }));
        around = back ? ", from the end" : ", from the start";
      }
      if (!found) this.said.textContent = "no event has this in its name";
      else {
        this.said.textContent = `${count(names)} ${names === 1 ? "name" : "names"}${around}`;
        this.show(source, found);
      }
    } catch (error) {
      this.said.textContent = saying(error);
    }
  }

  /** @param {string} sign @param {string} label @param {boolean} back */
  #button(sign, label, back) {
    return button(sign, () => this.go(back), { title: label, "aria-label": label });
  }
}
