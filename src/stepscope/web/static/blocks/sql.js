// @ts-check
// An editor for SQL with the schema beside it; answers as a grid and as a chart; questions that are kept.

import { SAVED, askWith, isAbort, problem } from "../asking.js";
import { chart } from "../chart.js";
import { button, make } from "../dom.js";
import { addShortcuts } from "../keys.js";
import { count, duration } from "../units.js";
import { draw as grid } from "./grid.js";

const KEPT = "stepscope.questions";
/** @typedef {{ name: string, description: string, columns: [string, string][] }} SchemaTable */
/** @typedef {{ asker: string, trace: string, schema: SchemaTable[], questions: [string, string][], sql: string, limits: string }} Data */

/** @param {HTMLElement} element @param {Data} data */
export function draw(element, data) {
  const { asker } = data;
  const editor = make("textarea", {
    rows: 7, spellcheck: "false", autocapitalize: "off", "aria-label": "SQL",
  });
  editor.value = data.sql;
  editor.readOnly = SAVED;
  const run = button("Run", answer, "primary");
  const stop = button("Stop", () => {
    asking?.abort();
    askWith("sql", {}, { stop: true, asker }).catch(() => {});
  }, { hidden: true });
  const keep = button("Save question", () => {
    const name = editor.value.trim().split("\n")[0].slice(0, 80);
    if (!name) return;
    localStorage.setItem(KEPT, JSON.stringify([...kept().filter(([, sql]) => sql !== editor.value), [name, editor.value]]));
    questions();
  });
  const told = make("span", { class: "small muted sql-told", "aria-live": "polite" }, data.limits);
  const result = make("div", "sql-result");
  const lists = make("div", "sql-questions");
  const tools = make("div", "sql-tools", ...(SAVED ? [] : [run, stop, keep, make("span", "small muted", "Ctrl-Enter")]), told);
  const main = make("div", "sql-main", editor, tools, result);
  element.replaceChildren(SAVED ? main : make("div", "sql-page", main,
    make("aside", "sql-side", lists, schema(data.schema, insert))));
  questions();
  addShortcuts(SAVED ? [] : [{ keys: "Ctrl-Enter", does: "run the query" }]);

  /** @param {string} text */
  function insert(text) {
    editor.setRangeText(text, editor.selectionStart, editor.selectionEnd, "end");
    editor.focus();
  }

  /** @type {AbortController | null} */ let asking = null;
  async function answer() {
    asking?.abort();
    const mine = asking = new AbortController();
    stop.hidden = false;
    told.textContent = "Running …";
    try {
      const found = await askWith("sql", { trace: data.trace }, { sql: editor.value, asker }, mine.signal);
      if (mine !== asking) return;
      const more = found.more ? `the first ${count(found.rows)} rows` : `${count(found.rows)} row${found.rows === 1 ? "" : "s"}`;
      told.textContent = `${more} in ${duration(found.took_ns)}`;
      show(found);
      if (!SAVED) remember(editor.value);
    } catch (error) {
      if (mine !== asking) return;
      told.textContent = "";
      result.replaceChildren(isAbort(error) ? make("p", "muted", "Stopped.") : problem(error));
    } finally {
      if (mine === asking) stop.hidden = true;
    }
  }

  /** @param {any} found */
  function show(found) {
    if (!found.rows) {
      result.replaceChildren(make("p", "panel muted", "The query has no rows."));
      return;
    }
    const table = make("div", { class: "block grid", role: "group", "aria-label": "Rows" });
    result.replaceChildren(chart(found), table);
    grid(table, { name: "query", ...encoded(found), sort: "", links: [], rows: found.rows });
  }

  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      answer();
    }
  });
  if (SAVED) answer();
  else addEventListener("pagehide", () => navigator.sendBeacon("/api/sql", JSON.stringify({ stop: true, asker })));

  function questions() {
    const own = kept().map(([name, sql]) => question(name, sql, () => {
      localStorage.setItem(KEPT, JSON.stringify(kept().filter(([, other]) => other !== sql)));
      questions();
    }));
    lists.replaceChildren(
      ...(own.length ? [make("h3", "", "Saved"), make("ul", "", ...own)] : []),
      make("h3", "", "Questions"), make("ul", "", ...data.questions.map(([name, sql]) => question(name, sql))),
    );
  }

  /** @param {string} name @param {string} sql @param {(() => void)} [remove] */
  function question(name, sql, remove) {
    const choose = button(name, () => {
      editor.value = sql;
      answer();
    }, "quiet");
    return make("li", "", choose, remove ? button("×", remove, { class: "quiet", "aria-label": `Remove ${name}` }) : null);
  }
}

/** Puts a query into the address: who opens or saves it sees the same. @param {string} sql */
function remember(sql) {
  const address = new URL(location.href);
  address.searchParams.set("q", sql);
  history.replaceState(history.state, "", address);
}

/** The columns as a grid has them: of texts their places among distinct ones. @param {any} found */
function encoded(found) {
  /** @type {any[]} */ const columns = [];
  /** @type {any[][]} */ const values = [];
  found.columns.forEach((/** @type {any} */ column, /** @type {number} */ place) => {
    const given = found.values[place];
    if (column.type === "str") {
      const places = new Map();
      for (const value of given) if (value !== null && !places.has(value)) places.set(value, places.size);
      columns.push({ ...column, texts: [...places.keys()] });
      values.push(given.map((/** @type {any} */ value) => value === null ? null : places.get(value)));
      return;
    }
    // What is too large for a number of the browser came as text.
    const large = given.some((/** @type {any} */ value) => typeof value === "string");
    const exact = large ? { exact: given.map((/** @type {any} */ value) => value === null ? null : String(value)) } : {};
    columns.push({ ...column, ...exact });
    values.push(large ? given.map((/** @type {any} */ value) => value === null ? null : Number(value)) : given);
  });
  return { columns, values };
}

/** @returns {[string, string][]} */
function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    /** @type {(one: unknown) => one is [string, string]} */
    const isQuestion = (one) => Array.isArray(one) && one.length === 2 && one.every((two) => typeof two === "string");
    return Array.isArray(found) ? found.filter(isQuestion) : [];
  } catch {
    return [];
  }
}

/** @param {SchemaTable[]} tables @param {(text: string) => void} insert */
function schema(tables, insert) {
  const find = make("input", { type: "search", placeholder: "Tables and columns", "aria-label": "Search the schema" });
  const list = make("div", "sql-tables");
  const entries = tables.map((table) => {
    const name = button(`Insert ${table.name}`, () => insert(table.name), { class: "quiet", title: table.description });
    const columns = table.columns.map(([column, description]) => {
      const choose = button(column, () => insert(column), { class: "quiet", title: description });
      return make("li", "", choose, make("span", "small muted", description));
    });
    const details = make("details", "", make("summary", { title: table.description }, table.name),
      make("p", "small muted", table.description), name, make("ul", "", ...columns));
    list.append(details);
    return { details, words: `${table.name} ${table.columns.map(([column]) => column).join(" ")}`.toLowerCase() };
  });
  find.addEventListener("input", () => {
    for (const one of entries) one.details.hidden = !one.words.includes(find.value.toLowerCase());
  });
  return make("section", "", make("h3", "", "Schema"), find, list);
}
