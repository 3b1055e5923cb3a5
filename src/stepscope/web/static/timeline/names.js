// @ts-check
// The names of boxes: tiles have their numbers, and the texts are asked for once.

import { ask, isAbort, saying } from "../asking.js";
import { shadeOf } from "./colours.js";

/** The number of no name. */
const UNNAMED = 0xffffffff;
/** Numbers of names in one question. */
const AT_ONCE = 500;

/** The names of a trace. */
export class Names {
  /** @param {string} trace @param {() => void} changed @param {(problem: string) => void} failed */
  constructor(trace, changed, failed) {
    this.trace = trace;
    this.changed = changed;
    this.failed = failed;
    /** @type {Map<number, string>} */
    this.texts = new Map();
    /** @type {Map<number, string>} */
    this.short = new Map();
    /** The shade of each name, 0 until it is known. */
    this.shades = new Uint8Array(1024);
    /** @type {Set<number>} */
    this.wanted = new Set();
    /** @type {Set<number>} on their way */
    this.asked = new Set();
    this.asking = false;
  }

  /** Asks for the names of a tile that are not known. @param {Uint32Array} names */
  want(names) {
    for (let place = 0; place < names.length; place++) {
      const name = names[place];
      if (name === UNNAMED) continue;
      if (name >= this.shades.length) this.#grow(name);
      if (!this.texts.has(name) && !this.asked.has(name)) this.wanted.add(name);
    }
    if (this.wanted.size && !this.asking) this.#ask();
  }

  /** The whole name, or nothing while it is not known. @param {number} name */
  text(name) {
    return this.texts.get(name) ?? "";
  }

  /** What is written on a box. @param {number} name */
  label(name) {
    let found = this.short.get(name);
    if (found === undefined) {
      const text = this.texts.get(name);
      if (text === undefined) return "";
      found = shortened(text);
      this.short.set(name, found);
    }
    return found;
  }

  async #ask() {
    this.asking = true;
    try {
      while (this.wanted.size) {
        const some = [...this.wanted].slice(0, AT_ONCE);
        this.asked = new Set(some);
        for (const name of some) this.wanted.delete(name);
        const { names } = await ask("names", { trace: this.trace, ids: some.join(",") });
        some.forEach((name, place) => {
          const text = names[place] ?? "";
          this.texts.set(name, text);
          this.shades[name] = shadeOf(text);
        });
        this.changed();
      }
    } catch (error) {
      if (!isAbort(error)) this.failed(saying(error));
    } finally {
      this.asked.clear();
      this.asking = false;
    }
  }

  /** @param {number} name */
  #grow(name) {
    const more = new Uint8Array(Math.max(this.shades.length * 2, name + 1));
    more.set(this.shades);
    this.shades = more;
  }
}

/** A name as it is best known: kernels without what their templates are filled with, frames by their function.
 * @param {string} text */
export function shortened(text) {
  const frame = /^(.*?)\((\d+)\): (.+)$/.exec(text);
  if (frame) return `${frame[3]} (${frame[1].split("/").pop()}:${frame[2]})`;
  if (!/[<(]/.test(text) || text.startsWith("nn.Module") || text.startsWith("<")) return text;
  // Libraries wrap their kernels in one of these: what is meant is the name inside of it.
  const wrapped = /(?:^|[\s:])(?:Kernel2?|device_kernel)<(?:\w+ )?([\w:]+)/.exec(text);
  if (wrapped) return wrapped[1].split("::").pop() ?? text;
  const plain = unfilled(text.replace(/^(void|auto|int|float) /, ""));
  const last = plain.split("::").filter(Boolean);
  return last.length > 1 && /^[\w$~]+$/.test(last[last.length - 1]) ? last[last.length - 1] : plain || text;
}

/** Without everything in angle brackets, and without arguments behind it. @param {string} text */
function unfilled(text) {
  let depth = 0;
  let out = "";
  for (const letter of text.replaceAll("(anonymous namespace)", "")) {
    if (letter === "<") depth++;
    else if (letter === ">") depth = Math.max(depth - 1, 0);
    else if (letter === "(" && depth === 0 && out) break;
    else if (depth === 0) out += letter;
  }
  return out.trim();
}
