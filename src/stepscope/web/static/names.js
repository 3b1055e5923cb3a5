// @ts-check
// Names of kernels and of Python frames, short enough to read; the full name is always at hand elsewhere.

const LONGEST = 4000;
const MOST = 96;

/** @type {Map<string, string>} */
const known = new Map();

/**
 * A name for a narrow place: a kernel without return type, namespaces and arguments, its template's arguments one
 * level deep; a frame with the end of its path. What is neither stays as it is.
 * @param {string | null} name @param {number} [most]
 */
export function shortName(name, most = MOST) {
  if (name === null) return "–";
  let found = known.get(name);
  if (found === undefined) {
    if (known.size > 50_000) known.clear();
    found = FRAME.test(name) ? shortFrame(name) : shortKernel(name.slice(0, LONGEST));
    known.set(name, found);
  }
  return cut(found, most);
}

const FRAME = /^(.*?)([^/\\]*)\((\d+)\): (.+)$/s;
const PARENT = /[^/\\]+[/\\]$/;

/** `/home/me/project/train.py(12): step` as `project/train.py:12 step`. @param {string} name */
function shortFrame(name) {
  const found = FRAME.exec(name);
  if (!found) return name;
  return `${PARENT.exec(found[1])?.[0] ?? ""}${found[2]}:${found[3]} ${found[4]}`;
}

/** @param {string} name */
function shortKernel(name) {
  if (!/[<(]/.test(name) || name.startsWith("<")) return name;
  return new Parser(name).type(0) || name;
}

/** Reads C++ names as demanglers print them; whatever it does not understand it passes over. */
class Parser {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
    this.at = 0;
  }

  /** One type or function, up to a comma or the end of what is around it. @param {number} depth */
  type(depth) {
    let word = "";
    let template = "";
    let done = false;
    while (this.at < this.source.length) {
      const sign = this.source[this.at];
      if (depth && (sign === "," || sign === ">")) break;
      if (sign === "<" && word && !word.endsWith("operator")) {
        const inside = this.inside(depth + 1);
        if (!done) template = inside;
      } else if (sign === "(" || sign === "{" || sign === "[") {
        // A blank before it: no arguments, but what a copy is called: `Memcpy HtoD (Pageable -> Device)`.
        if (!depth && sign === "(" && this.source[this.at - 1] === " " && !this.source.startsWith("(anonymous", this.at)) {
          return this.source;
        }
        const anonymous = this.source.startsWith("(anonymous", this.at) || this.source.startsWith("(unnamed", this.at);
        this.skip();
        // What follows the arguments is a lambda in the function: the function says more.
        if (!anonymous && word) done = true;
      } else if (sign === ":" && this.source[this.at + 1] === ":") {
        this.at += 2;
        // A functor's call operator says less than the functor.
        if (word && this.source.startsWith("operator(", this.at)) done = true;
        if (!done) [word, template] = ["", ""];
      } else {
        if (!done) {
          if (sign === " " && word && depth === 0) [word, template] = ["", ""]; // the return type
          else if (sign !== " " || word) word += sign;
        }
        this.at += 1;
      }
    }
    const named = word.trim();
    return named + template;
  }

  /** The arguments of a template, folded where they are deep. @param {number} depth */
  inside(depth) {
    this.at += 1;
    /** @type {string[]} */
    const found = [];
    while (this.at < this.source.length && this.source[this.at] !== ">") {
      const before = this.at;
      const one = this.type(depth);
      if (one) found.push(one);
      if (this.source[this.at] === ",") this.at += 1;
      else if (this.at === before) this.at += 1;
    }
    this.at += 1;
    return folded(found, depth);
  }

  /** Passes over brackets and all that is in them. */
  skip() {
    let depth = 0;
    for (; this.at < this.source.length; this.at++) {
      const sign = this.source[this.at];
      if ("({[".includes(sign)) depth += 1;
      else if (")}]".includes(sign)) {
        depth -= 1;
        if (!depth) break;
      }
    }
    this.at += 1;
  }
}

const PLAIN = /^(const |unsigned )*(\(?[\d-]|(float|double|bool|int|long|char|short|void|Half|BFloat16|true|false)\b)/;
const NOISE = /^(array|Array)<char|OffsetCalculator|With(out)?Cast|^TensorListMetadata/;
const ROOM = 64;

/** The arguments of a template that tell kernels apart: functors rather than their types. */
function folded(/** @type {string[]} */ found, /** @type {number} */ depth) {
  const telling = found.filter((one) => !NOISE.test(one) && (depth < 2 || !PLAIN.test(one)));
  if (depth >= 2 && !telling.length) return depth > 2 || !found.length ? "" : `<${fitting(found, found.length)}>`;
  return `<${fitting(telling, depth < 2 ? found.length : telling.length)}>`;
}

/** As many as there is room for. */
function fitting(/** @type {string[]} */ parts, /** @type {number} */ of) {
  let line = "";
  let taken = 0;
  for (const part of parts) {
    if (taken && line.length + part.length > ROOM) break;
    line += taken ? `, ${part}` : part;
    taken += 1;
  }
  return taken < of ? `${line}${taken ? ", " : ""}…` : line;
}

/** The text with its middle left out: names differ at both ends. @param {string} text @param {number} most */
function cut(text, most) {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) / 3);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(-tail)}`;
}
