// @ts-check
// What is in a grid, without a page: which rows are shown, in which order, in which groups.

import { duration, parsed, text } from "../units.js";
import { shortName } from "../names.js";

/**
 * @typedef {{ name: string, title: string, type: string, unit: string, description: string, sum: string, named: boolean,
 *   bar: boolean, shown: boolean, texts?: string[], base?: string, zero?: number, exact?: (string | null)[] }} Column
 * @typedef {{ title: string, to: string, column: string }} Link
 * @typedef {{ name: string, columns: Column[], values: any[][], sort: string, links: Link[], rows: number, tree?: string,
 *   tall?: boolean, group?: string, chosen?: number, filter?: string, choose?: string }} Grid
 * @typedef {{ kind: "row", row: number, depth: number, inside: number, open: boolean }} RowItem
 * @typedef {{ kind: "group", key: string, rows: number[], depth: number, inside: number, open: boolean }} GroupItem
 * @typedef {RowItem | GroupItem} Item
 */

const COMPARISON = /^(>=|<=|!=|≥|≤|>|<|=)?\s*(.+)$/;
const collator = new Intl.Collator("en", { numeric: true });

export class Model {
  /** @param {Grid} data */
  constructor(data) {
    this.data = data;
    this.columns = data.columns;
    this.count = data.values[0]?.length ?? 0;
    this.sort = this.place(data.sort);
    this.down = true;
    this.group = this.place(data.group ?? "");
    this.words = "";
    /** @type {Map<number, string>} */
    this.conditions = new Map();
    /** @type {Set<string>} */
    this.open = new Set();
    /** @type {Map<number, Int32Array>} */
    this.ranks = new Map();
    /** @type {Map<number, string[]>} */
    this.lowered = new Map();
    this.parents = data.tree ? parentsOf(data.values[this.place(data.tree)]) : null;
    this.openFirst();
    this.partsOfOne();
    /** @type {Item[]} */
    this.items = [];
    this.matching = 0;
    this.update();
  }

  /** @param {string} name */
  place(name) {
    return this.columns.findIndex((column) => column.name === name);
  }

  /** Works out the items anew, after anything that says which are shown. */
  update() {
    const keeps = this.kept();
    if (this.parents) this.items = this.treeItems(keeps);
    else {
      const rows = [];
      for (let row = 0; row < this.count; row++) if (!keeps || keeps[row]) rows.push(row);
      this.matching = rows.length;
      this.sortRows(rows);
      this.items = this.group >= 0 ? this.groupItems(rows) : rows.map((row) => ({ kind: "row", row, depth: 0, inside: 0, open: false }));
    }
  }

  /** The rows that are shown, in their order, those in closed groups too. @returns {number[]} */
  rowsInOrder() {
    return this.items.flatMap((item) => (item.kind === "row" ? (item.depth && this.group >= 0 ? [] : [item.row]) : item.rows));
  }

  // ---------------------------------------------------------------- values

  /** @param {number} place @param {number} row @returns {any} */
  value(place, row) {
    const value = this.data.values[place][row];
    const texts = this.columns[place].texts;
    return texts && value !== null ? texts[value] : value;
  }

  /** A value as it is, for files. @param {number} place @param {number} row @returns {string} */
  exact(place, row) {
    const column = this.columns[place];
    const value = this.value(place, row);
    if (value === null) return "";
    if (column.exact) return column.exact[row] ?? "";
    if (column.base !== undefined) return String(BigInt(column.base) + BigInt(value));
    return String(value);
  }

  /** @param {number} place @param {number} row */
  shown(place, row) {
    const column = this.columns[place];
    const value = this.value(place, row);
    return column.named && value !== null ? shortName(value, 58) : written(value, column);
  }

  /** What a group has in a column. @param {GroupItem} item @param {number} place @returns {number | null} */
  total(item, place) {
    const column = this.columns[place];
    if (column.sum === "mean") {
      const [whole, calls] = [this.place("total_ns"), this.place("calls")];
      if (whole < 0 || calls < 0) return null;
      return (this.total(item, whole) ?? 0) / (this.total(item, calls) || 1);
    }
    const found = item.rows.map((row) => this.data.values[place][row]).filter((value) => value !== null);
    if (!column.sum || !found.length) return null;
    if (column.sum === "sum") return found.reduce((sum, value) => sum + value, 0);
    return found.reduce((best, value) => (column.sum === "max" ? Math.max(best, value) : Math.min(best, value)));
  }

  /** The largest value of a column, which a bar of full length stands for. @param {number} place */
  most(place) {
    let most = 0;
    if (this.group >= 0) for (const item of this.items) if (item.kind === "group") most = Math.max(most, this.total(item, place) ?? 0);
    for (const value of this.group >= 0 ? [] : this.data.values[place]) if (value > most) most = value;
    return most;
  }

  // ---------------------------------------------------------------- filters

  /** Which rows pass all filters; null if there is none. */
  kept() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = [...this.conditions].map(([place, typed]) => this.test(place, typed)).filter((one) => one !== null);
    if (!words.length && !tests.length) return null;
    const texts = this.columns.map((column, place) => (column.texts ? place : -1)).filter((place) => place >= 0);
    const keeps = new Uint8Array(this.count).fill(1);
    for (const word of words) {
      const found = texts.map((place) => this.lower(place).map((one) => one.includes(word)));
      for (let row = 0; row < this.count; row++) {
        if (keeps[row] && !texts.some((place, at) => found[at][this.data.values[place][row]])) keeps[row] = 0;
      }
    }
    for (const test of tests) for (let row = 0; row < this.count; row++) if (keeps[row] && !test(row)) keeps[row] = 0;
    return keeps;
  }

  /**
   * What a condition on a column says of a row; null if it cannot be read.
   * @param {number} place @param {string} typed @returns {((row: number) => boolean) | null}
   */
  test(place, typed) {
    const column = this.columns[place];
    const values = this.data.values[place];
    if (column.type === "str") {
      const wanted = typed.toLowerCase();
      const found = this.lower(place).map((one) => one.includes(wanted));
      return (row) => values[row] !== null && found[values[row]];
    }
    if (column.type === "bool") return (row) => (values[row] ? "yes" : "no").startsWith(typed.trim().toLowerCase());
    const compare = comparison(typed, column.unit === "instant" ? "ns" : column.unit);
    const zero = column.zero ?? 0;
    return compare && ((row) => values[row] !== null && compare(values[row] - zero));
  }

  /** @param {number} place */
  lower(place) {
    let found = this.lowered.get(place);
    if (!found) {
      found = (this.columns[place].texts ?? []).map((one) => one.toLowerCase());
      this.lowered.set(place, found);
    }
    return found;
  }

  // ---------------------------------------------------------------- order

  /** The value by which a row is sorted: texts by their place among all, in the order of people. */
  key(/** @type {number} */ place, /** @type {number} */ row) {
    const value = this.data.values[place][row];
    const texts = this.columns[place].texts;
    if (!texts || value === null) return value;
    let ranks = this.ranks.get(place);
    if (!ranks) {
      const order = texts.map((_, at) => at).sort((one, other) => collator.compare(texts[one], texts[other]));
      ranks = new Int32Array(texts.length);
      order.forEach((at, rank) => (/** @type {Int32Array} */ (ranks)[at] = rank));
      this.ranks.set(place, ranks);
    }
    return ranks[value];
  }

  /** @param {number[]} rows */
  sortRows(rows) {
    const place = this.sort;
    if (place < 0) return;
    const keys = new Float64Array(this.count);
    for (const row of rows) keys[row] = Number(this.key(place, row) ?? NaN);
    rows.sort((one, other) => ordered(keys[one], keys[other], this.down) || one - other);
  }

  /** @param {number[]} rows @returns {Item[]} */
  groupItems(rows) {
    /** @type {Map<string, GroupItem>} */
    const groups = new Map();
    for (const row of rows) {
      const key = String(this.value(this.group, row) ?? "–");
      const found = groups.get(key);
      if (found) found.rows.push(row);
      else groups.set(key, { kind: "group", key, rows: [row], depth: 0, inside: 1, open: this.open.has(key) });
    }
    const found = [...groups.values()];
    const sort = this.sort;
    if (sort === this.group) found.sort((one, other) => collator.compare(one.key, other.key) * (this.down ? -1 : 1));
    else if (sort >= 0 && this.columns[sort].sum) {
      const totals = new Map(found.map((item) => [item, this.total(item, sort) ?? NaN]));
      found.sort((one, other) => ordered(totals.get(one) ?? NaN, totals.get(other) ?? NaN, this.down));
    }
    return found.flatMap((item) => [
      item,
      ...(item.open ? item.rows.map((row) => /** @type {Item} */ ({ kind: "row", row, depth: 1, inside: 0, open: false })) : []),
    ]);
  }

  /** Shares of several wholes, as of each device's peak, have no sum. */
  partsOfOne() {
    this.columns.forEach((column, place) => {
      if (column.unit !== "share" || column.sum !== "sum") return;
      const whole = this.data.values[place].reduce((sum, value) => sum + (value ?? 0), 0);
      if (whole > 1.001) column.sum = "";
    });
  }

  // ---------------------------------------------------------------- trees

  /** Opens the first levels of a tree, so that something is to be seen and not everything. */
  openFirst() {
    if (!this.parents) return;
    const depths = this.data.values[this.place(this.data.tree ?? "")];
    for (let level = 0, shown = 0; level < 12; level++) {
      const rows = [];
      for (let row = 0; row < this.count; row++) if (depths[row] === level) rows.push(row);
      shown += rows.length;
      if (!rows.length || shown > 24) break;
      for (const row of rows) this.open.add(String(row));
    }
  }

  /** @param {Uint8Array | null} keeps @returns {Item[]} */
  treeItems(keeps) {
    const parents = /** @type {Int32Array} */ (this.parents);
    const wanted = keeps ? keeps.slice() : null;
    if (wanted) for (let row = this.count - 1; row >= 0; row--) if (wanted[row] && parents[row] >= 0) wanted[parents[row]] = 1;
    /** @type {number[][]} */
    const inside = Array.from({ length: this.count }, () => []);
    /** @type {number[]} */
    const tops = [];
    this.matching = 0;
    for (let row = 0; row < this.count; row++) {
      if (wanted && !wanted[row]) continue;
      this.matching += 1;
      (parents[row] >= 0 ? inside[parents[row]] : tops).push(row);
    }
    /** @type {Item[]} */
    const items = [];
    /** @type {[number, number][]} */
    const stack = [];
    const push = (/** @type {number[]} */ rows, /** @type {number} */ depth) => {
      this.sortRows(rows);
      for (let at = rows.length - 1; at >= 0; at--) stack.push([rows[at], depth]);
    };
    push(tops, 0);
    for (let next = stack.pop(); next; next = stack.pop()) {
      const [row, depth] = next;
      const open = wanted !== null || this.open.has(String(row));
      items.push({ kind: "row", row, depth, inside: inside[row].length, open });
      if (open) push(inside[row], depth + 1);
    }
    return items;
  }

  /** Opens or closes a group, or a row of a tree. @param {Item} item @param {boolean} [to] */
  toggle(item, to) {
    const key = item.kind === "group" ? item.key : String(item.row);
    if (to ?? !item.open) this.open.add(key);
    else this.open.delete(key);
    this.update();
  }
}

/** A comparison as people type it: `> 1 ms`, `1 ms .. 5 ms`, `!= 0`; null if it is none. */
export function comparison(/** @type {string} */ typed, /** @type {string} */ unit) {
  const ends = typed.split("..").map((end) => parsed(end, unit));
  if (ends.length === 2) {
    const [low, high] = ends;
    return ends.some(Number.isNaN) ? null : (/** @type {number} */ value) => value >= low && value <= high;
  }
  const found = COMPARISON.exec(typed.trim());
  const bound = found ? parsed(found[2], unit) : NaN;
  if (!found || Number.isNaN(bound)) return null;
  /** @type {Record<string, (value: number) => boolean>} */
  const tests = {
    ">": (value) => value > bound,
    "<": (value) => value < bound,
    ">=": (value) => value >= bound,
    "≥": (value) => value >= bound,
    "<=": (value) => value <= bound,
    "≤": (value) => value <= bound,
    "!=": (value) => value !== bound,
  };
  return tests[found[1] ?? "="] ?? ((value) => value === bound);
}

/** A value of a column as people read it. @param {any} value @param {Column} column */
export function written(value, column) {
  if (column.unit === "instant" && value !== null) return `+${duration(value - (column.zero ?? 0))}`;
  return text(value, column.unit, column.type);
}

/** Absent values come last, whichever way the others are sorted. */
function ordered(/** @type {number} */ one, /** @type {number} */ other, /** @type {boolean} */ down) {
  if (Number.isNaN(one) || Number.isNaN(other)) return Number(Number.isNaN(one)) - Number(Number.isNaN(other));
  return down ? other - one : one - other;
}

/** The row around each row, from the depths of rows that come before those inside them. @param {number[]} depths */
function parentsOf(depths) {
  const parents = new Int32Array(depths.length).fill(-1);
  /** @type {number[]} */
  const around = [];
  depths.forEach((depth, row) => {
    around.length = depth;
    parents[row] = depth ? around[depth - 1] ?? -1 : -1;
    around[depth] = row;
  });
  return parents;
}
