// @ts-check
// The row of tools over a grid: filter, groups, columns, copy and file.

import { button, make } from "../dom.js";
import { count } from "../units.js";
import { copy, csv, download, tsv } from "./files.js";

/**
 * @typedef {import("./model.js").Model} Model
 * @typedef {{ element: HTMLElement, told: (text?: string) => void, focus: () => void }} Tools
 * @typedef {{ changed: () => void, columns: () => void, conditions: () => void, chosen: () => number[] }} Calls
 */

/** @param {Model} model @param {Calls} calls @returns {Tools} */
export function tools(model, calls) {
  const filter = make("input", {
    class: "grid-filter", type: "search", placeholder: "Filter", "aria-label": "Filter the rows by words in them",
  });
  filter.value = model.words;
  filter.addEventListener("input", () => {
    model.words = filter.value;
    calls.changed();
  });
  const told = make("span", { class: "grid-told muted small", "aria-live": "polite" });
  const say = (text = "") => {
    const rows = `${count(model.matching)}${model.matching < model.count ? ` of ${count(model.count)}` : ""} rows`;
    told.textContent = text || (model.count === 1 ? "1 row" : rows);
    if (text) setTimeout(say, 1500);
  };
  const element = make("div", "grid-tools",
    filter, model.count > 7 ? conditionsButton(calls) : null, groupChoice(model, calls), columnChoice(model, calls),
    told, ...fileButtons(model, calls, say));
  say();
  return { element, told: say, focus: () => filter.focus() };
}

/** @param {Calls} calls */
function conditionsButton(calls) {
  const made = button("≷", () => {
    made.setAttribute("aria-pressed", String(made.getAttribute("aria-pressed") !== "true"));
    calls.conditions();
  }, { title: "Conditions on columns, such as > 1 ms", "aria-label": "Conditions on columns", "aria-pressed": "false" });
  return made;
}

/** @param {Model} model @param {Calls} calls */
function groupChoice(model, calls) {
  const most = Math.max(2, model.count / 2);
  const able = model.columns.filter((column) => column.texts && column.texts.length <= most && column.texts.length > 1);
  if (model.parents || !able.length || model.count < 6) return null;
  const ways = [["", "nothing"], ...able.map((column) => [column.name, column.title])];
  const choice = make("select", "", ...ways.map(([value, title]) =>
    make("option", { value, selected: model.place(value) === model.group }, title)));
  choice.addEventListener("change", () => {
    model.group = model.place(choice.value);
    calls.changed();
  });
  return make("label", "grid-group small", "Group by ", choice);
}

/** @param {Model} model @param {Calls} calls */
function columnChoice(model, calls) {
  const list = model.columns.map((column) => {
    const box = make("input", { type: "checkbox", checked: column.shown });
    box.addEventListener("change", () => {
      column.shown = box.checked;
      calls.columns();
    });
    return make("label", { class: "small", title: column.description }, box, ` ${column.title}`);
  });
  const menu = make("details", "grid-menu", make("summary", "", "Columns"), make("div", "grid-menu-list", ...list));
  document.addEventListener("click", (event) => {
    if (!menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu.open = false;
  });
  return menu;
}

/** @param {Model} model @param {Calls} calls @param {(text: string) => void} say */
function fileButtons(model, calls, say) {
  const shown = () => model.columns.flatMap((column, place) => (column.shown ? [place] : []));
  const all = model.columns.map((_, place) => place);
  const copied = button("Copy", async () => {
    const rows = calls.chosen();
    const taken = rows.length ? rows : model.rowsInOrder();
    try {
      await copy(tsv(model, shown(), taken));
      say(`${count(taken.length)} rows copied`);
    } catch (error) {
      say(/** @type {Error} */ (error).message);
    }
  }, { title: "Copies the selected rows, or all that are shown, for a spreadsheet" });
  const file = button("CSV", () => {
    download(`${model.data.name}.csv`, csv(model, all, model.rowsInOrder()));
  }, { title: "The rows that are shown, with all columns, as a file" });
  return [copied, file];
}
