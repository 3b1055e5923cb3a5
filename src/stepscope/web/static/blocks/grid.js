// @ts-check
// A table to sort, filter, group and copy. Only the rows that can be seen are in the page.

import { button, make } from "../dom.js";
import { detail, linksOf } from "../grid/detail.js";
import { copy, tsv } from "../grid/files.js";
import { Model, written } from "../grid/model.js";
import { tools } from "../grid/tools.js";

/**
 * @typedef {import("../grid/model.js").Grid} Grid
 * @typedef {import("../grid/model.js").Item} Item
 */

const HEIGHT = 27;
const BEYOND = 12;
/** What a table has in a window 1280 pixels wide. */
const ROOM = 1060;
let grids = 0;

/** @param {HTMLElement} element @param {Grid} data */
export function draw(element, data) {
  element.dataset.grid = data.name;
  new View(element, data);
}

class View {
  /** @param {HTMLElement} element @param {Grid} data */
  constructor(element, data) {
    this.model = new Model(data);
    this.model.words = data.filter ?? "";
    if (data.filter) this.model.update();
    this.id = `grid-${++grids}`;
    this.current = -1;
    this.first = this.last = -1;
    /** @type {Set<number>} */
    this.selected = new Set();
    this.anchor = -1;
    this.hasConditions = false;
    this.tools = tools(this.model, {
      changed: () => this.changed(),
      columns: () => this.frame(),
      conditions: () => {
        this.hasConditions = !this.hasConditions;
        if (!this.hasConditions) this.model.conditions.clear();
        this.changed();
        this.frame();
      },
      chosen: () => this.model.rowsInOrder().filter((row) => this.selected.has(row)),
    });
    this.body = make("tbody");
    this.table = make("table", { "aria-label": element.getAttribute("aria-label") ?? data.name, tabindex: 0 });
    this.scroller = make("div", data.tall ? "grid-scroll tall" : "grid-scroll", this.table);
    this.beside = make("div", "grid-beside", this.scroller);
    element.append(this.tools.element, this.beside);
    this.listen(element);
    this.frame();
    if (data.chosen !== undefined) this.show(data.chosen);
  }

  /** @param {HTMLElement} element */
  listen(element) {
    let waiting = false;
    this.scroller.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.rows();
      });
    });
    new ResizeObserver(() => this.rows()).observe(this.scroller);
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.table.addEventListener("keydown", (event) => this.pressed(event));
    element.addEventListener("chooserow", (event) => this.show(/** @type {CustomEvent} */ (event).detail.row));
  }

  /** After another order or filter: from the top. */
  changed() {
    this.model.update();
    this.current = -1;
    this.scroller.scrollTop = 0;
    this.tools.told();
    this.rows(true);
  }

  /** Whether rows stand inside others. */
  get folds() {
    return Boolean(this.model.parents) || this.model.group >= 0;
  }

  get places() {
    return this.model.columns.flatMap((column, place) => (column.shown ? [place] : []));
  }

  // ---------------------------------------------------------------- head

  /** The columns and their heads, and the rows below. */
  frame() {
    this.table.setAttribute("role", this.folds ? "treegrid" : "grid");
    const columns = make("colgroup");
    const line = make("tr");
    const conditions = make("tr", "grid-conditions");
    this.flexible = this.places.find((place) => this.model.columns[place].named) ?? this.places.find((place) => this.model.columns[place].texts);
    const widths = this.widths();
    for (const [nth, place] of this.places.entries()) {
      const column = make("col");
      const width = widths[nth];
      if (place !== this.flexible) column.style.width = `${width}px`;
      columns.append(column);
      line.append(this.head(place));
      if (this.hasConditions) conditions.append(this.condition(place));
    }
    const head = make("thead", "", line, this.hasConditions ? conditions : null);
    this.table.style.minWidth = `${widths.reduce((sum, width) => sum + width, 0)}px`;
    this.table.replaceChildren(columns, head, this.body);
    this.rows(true);
  }

  /** @param {number} place */
  head(place) {
    const column = this.model.columns[place];
    const sorted = this.model.sort === place;
    const order = sorted ? (this.model.down ? "descending" : "ascending") : "none";
    const sorting = button(column.title, () => {
      const again = this.model.sort === place;
      this.model.down = again ? !this.model.down : !column.texts;
      this.model.sort = place;
      this.changed();
      this.frame();
      /** @type {HTMLElement | null} */ (this.table.querySelector(`thead th:nth-child(${this.places.indexOf(place) + 1}) button`))?.focus();
    }, { title: `${column.description}\nClick to sort.` });
    return make("th", { class: column.texts ? "" : "number", scope: "col", "aria-sort": order }, sorting);
  }

  /** @param {number} place */
  condition(place) {
    const column = this.model.columns[place];
    const hint = { ns: "> 1 ms", instant: "> 1 ms", bytes: "> 1 MiB", share: "> 5 %" }[column.unit] ?? "> 10";
    const field = make("input", {
      placeholder: column.texts ? "contains" : column.type === "bool" ? "yes" : hint, "aria-label": `Condition on ${column.title}`,
    });
    field.value = this.model.conditions.get(place) ?? "";
    field.addEventListener("input", () => {
      const typed = field.value.trim();
      const bad = typed !== "" && !this.model.test(place, typed);
      field.setAttribute("aria-invalid", String(bad));
      field.title = bad ? `Type a comparison: ${hint}, or two ends: 1 .. 5` : "";
      if (typed) this.model.conditions.set(place, typed);
      else this.model.conditions.delete(place);
      this.changed();
    });
    return make("th", "", field);
  }

  /** How wide all columns should be: where they do not fit, texts are cut, for tips and details have them whole. */
  widths() {
    const [some, fewer] = [230, 160].map((longest) => this.places.map((place) => this.width(place, longest)));
    return some.reduce((sum, width) => sum + width, 0) > ROOM ? fewer : some;
  }

  /** How wide a column should be, from its first values. @param {number} place @param {number} longestText */
  width(place, longestText) {
    const column = this.model.columns[place];
    let longest = Math.max(...column.title.split(" ").map((word) => word.length)) + 1;
    for (let row = 0; row < Math.min(200, this.model.count); row++) longest = Math.max(longest, this.model.shown(place, row).length);
    if (place === this.flexible) return 180;
    if (this.model.group >= 0 && place === this.places[0]) return 170;
    return Math.round(Math.min(column.texts ? longestText : 150, Math.max(52, longest * 7.5 + 24)));
  }

  // ---------------------------------------------------------------- rows

  /** The rows that can be seen, between two that stand for all others. @param {boolean} [anew] */
  rows(anew = false) {
    const { items } = this.model;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / HEIGHT) - BEYOND);
    const last = Math.min(items.length, first + Math.ceil((this.scroller.clientHeight || 600) / HEIGHT) + 2 * BEYOND);
    if (!anew && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    this.table.setAttribute("aria-rowcount", String(items.length + 1));
    const places = this.places;
    const most = new Map(places.filter((place) => this.model.columns[place].bar).map((place) => [place, this.model.most(place)]));
    const lines = [this.room(first)];
    for (let at = first; at < last; at++) lines.push(this.line(items[at], at, places, most));
    lines.push(this.room(items.length - last));
    if (!items.length) lines.push(this.nothing(places.length));
    this.body.replaceChildren(...lines);
  }

  /** @param {number} rows */
  room(rows) {
    const line = make("tr", { class: "grid-room", "aria-hidden": "true" });
    line.style.height = `${rows * HEIGHT}px`;
    return line;
  }

  /** @param {number} columns */
  nothing(columns) {
    return make("tr", "", make("td", { class: "muted grid-nothing", colspan: columns }, "No row fits the filter."));
  }

  /** @param {Item} item @param {number} at @param {number[]} places @param {Map<number, number>} most */
  line(item, at, places, most) {
    const line = make("tr", {
      class: item.kind === "group" ? "grid-sum" : "", id: `${this.id}-${at}`, "data-at": at, "aria-rowindex": at + 2,
    });
    if (item.inside) line.setAttribute("aria-expanded", String(item.open));
    if (this.folds) line.setAttribute("aria-level", String(item.depth + 1));
    if (item.kind === "row" && this.selected.has(item.row)) line.setAttribute("aria-selected", "true");
    if (at === this.current) line.classList.add("current");
    places.forEach((place, nth) => line.append(this.cell(item, place, nth, most.get(place))));
    return line;
  }

  /** @param {Item} item @param {number} place @param {number} nth @param {number | undefined} most */
  cell(item, place, nth, most) {
    const column = this.model.columns[place];
    const cell = make("td", column.texts ? "" : "number");
    const value = item.kind === "row" ? this.model.value(place, item.row) : this.model.total(item, place);
    let shown = item.kind === "row" ? this.model.shown(place, item.row) : value === null ? "" : written(value, column);
    if (item.kind === "group" && nth === 0) shown = `${item.key === "" ? "–" : item.key} (${item.rows.length})`;
    if (item.kind === "row" && column.texts && value !== null) cell.title = value.slice(0, 2000);
    if (most && typeof value === "number" && value > 0) {
      const bar = make("span", "grid-bar");
      bar.style.width = `${Math.min(100, (value / most) * 100)}%`;
      cell.append(bar);
    }
    if (nth === 0 && (item.inside || item.depth || this.model.parents)) {
      const mark = make("span", "grid-fold", item.inside ? (item.open ? "▾" : "▸") : "");
      mark.style.marginLeft = `${item.depth * 14}px`;
      cell.append(mark);
    }
    cell.append(shown);
    if (nth === 0 && item.kind === "row") {
      const link = linksOf(this.model, item.row).find((one) => one.pathname === "/timeline");
      if (link) {
        link.textContent = "↗";
        link.className = "grid-go";
        link.title = "Show in the timeline";
        link.setAttribute("aria-label", "Show in the timeline");
        link.tabIndex = -1;
        cell.append(link);
      }
    }
    return cell;
  }

  // ---------------------------------------------------------------- choosing

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const line = target.closest("tr");
    if (!line?.dataset.at || target.closest("a")) return;
    const at = Number(line.dataset.at);
    const item = this.model.items[at];
    this.table.focus({ preventScroll: true });
    if (item.kind === "group" || target.classList.contains("grid-fold")) {
      this.fold(at);
      return;
    }
    if (event.shiftKey && this.anchor >= 0) this.range(this.anchor, at);
    else if (event.ctrlKey || event.metaKey) this.flip(item.row);
    else {
      this.selected.clear();
      this.selected.add(item.row);
    }
    if (!event.shiftKey) this.anchor = at;
    this.current = at;
    if (!event.shiftKey && !event.ctrlKey && !event.metaKey) this.detail(item.row);
    this.rows(true);
  }

  /** @param {number} row */
  flip(row) {
    if (!this.selected.delete(row)) this.selected.add(row);
  }

  /** @param {number} from @param {number} to */
  range(from, to) {
    for (const item of this.model.items.slice(Math.min(from, to), Math.max(from, to) + 1)) if (item.kind === "row") this.selected.add(item.row);
  }

  /** @param {number} at @param {boolean} [to] */
  fold(at, to) {
    this.model.toggle(this.model.items[at], to);
    this.current = at;
    this.rows(true);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.target !== this.table) return;
    const { items } = this.model;
    const item = items[this.current];
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / HEIGHT) - 2);
    /** @type {Record<string, () => void>} */
    const moves = {
      ArrowDown: () => this.move(this.current + 1, event.shiftKey),
      ArrowUp: () => this.move(this.current - 1, event.shiftKey),
      PageDown: () => this.move(this.current + page, event.shiftKey),
      PageUp: () => this.move(this.current - page, event.shiftKey),
      Home: () => this.move(0, false),
      End: () => this.move(items.length - 1, false),
      ArrowRight: () => item?.inside && this.fold(this.current, true),
      ArrowLeft: () => item?.inside && this.fold(this.current, false),
      Enter: () => (item?.kind === "row" ? this.detail(item.row) : item && this.fold(this.current)),
      " ": () => {
        if (item?.kind === "row") this.flip(item.row);
        this.rows(true);
      },
      Escape: () => this.close(),
      "/": () => this.tools.focus(),
    };
    const held = event.ctrlKey || event.metaKey;
    if (held && event.key === "c") this.copySelected();
    else if (held && event.key === "a") this.range(0, items.length);
    else if (held || !(event.key in moves)) return;
    else moves[event.key]();
    event.preventDefault();
    this.rows(true);
  }

  copySelected() {
    const rows = this.model.rowsInOrder().filter((row) => this.selected.has(row));
    if (rows.length) copy(tsv(this.model, this.places, rows)).then(() => this.tools.told(`${rows.length} rows copied`));
  }

  /** @param {number} to @param {boolean} selects */
  move(to, selects) {
    const before = this.current;
    this.current = Math.max(0, Math.min(this.model.items.length - 1, to));
    if (selects) this.range(Math.max(0, before), this.current);
    const head = this.table.tHead?.offsetHeight ?? 0;
    const top = this.current * HEIGHT;
    const room = this.scroller.clientHeight - head;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + HEIGHT > this.scroller.scrollTop + room) this.scroller.scrollTop = top + HEIGHT - room;
    this.rows(true);
    this.table.setAttribute("aria-activedescendant", `${this.id}-${this.current}`);
  }

  /** Chooses a row of the data, wherever it is now. @param {number} row */
  show(row) {
    const at = this.model.items.findIndex((item) => item.kind === "row" && item.row === row);
    if (at < 0) return;
    this.selected = new Set([row]);
    this.move(at, false);
    this.detail(row);
  }

  /** @param {number} row */
  detail(row) {
    this.close();
    this.beside.append(detail(this.model, row, () => this.close()));
    this.beside.classList.add("has-detail");
  }

  close() {
    this.beside.querySelector(".grid-detail")?.remove();
    this.beside.classList.remove("has-detail");
  }
}
