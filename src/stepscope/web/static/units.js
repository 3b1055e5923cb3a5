// @ts-check
// Values as people read them: the same words as in the terminal. `units.py` is the pattern, and a test asks both.

export const ABSENT = "–";

const MINUTE_NS = 60e9;
const TIMES = ["ns", "µs", "ms", "s"];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const RATES = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"];

/**
 * A value by the unit of its column; whole numbers and fractions without a unit differ in their digits.
 * @param {unknown} value @param {string} unit @param {string} [type]
 */
export function text(value, unit, type = "") {
  if (value === null || value === undefined) return ABSENT;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (unit === "ns") return duration(value);
  if (unit === "bytes") return size(value);
  if (unit === "share") return share(value);
  if (unit === "id") return String(value);
  return type === "float" || !Number.isInteger(value) ? number(value) : count(value);
}

/** A range of times in one unit, with two digits of the larger: `19–26 ms`. @param {number} low @param {number} high */
export function between(low, high) {
  const place = [1e9, 1e6, 1e3].findIndex((size) => high >= size);
  const unit = place < 0 ? "ns" : TIMES[3 - place];
  const size = place < 0 ? 1 : [1e9, 1e6, 1e3][place];
  const digits = high >= 10 * size || place < 0 ? 0 : high >= 2 * size ? 1 : 2;
  const ends = [low, high].map((value) => {
    const whole = Number((value / size).toFixed(digits));
    return whole ? whole.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "0";
  });
  const said = ends[0] === ends[1] ? ends[0] : ends.join("–");
  return said === "0" ? said : `${said} ${unit}`;
}

/** A length of time with three digits: `1.23 ms`; none at all is `0`. @param {number | null} ns */
export function duration(ns) {
  if (ns === null) return ABSENT;
  if (Math.abs(ns) < 1) return ns === 0 ? "0" : "<1 ns";
  if (Math.abs(ns) < MINUTE_NS - 5e7) return scaled(ns, 1000, TIMES);
  const sign = ns < 0 ? "-" : "";
  const seconds = halfEven(Math.abs(ns) / 1e9);
  if (seconds < 3600) return `${sign}${Math.floor(seconds / 60)} min ${pair(seconds % 60)} s`;
  const minutes = halfEven(Math.abs(ns) / MINUTE_NS);
  return `${sign}${count(Math.floor(minutes / 60))} h ${pair(minutes % 60)} min`;
}

/** An amount of memory with three digits, in powers of 1024: `1.50 GiB`. @param {number | null} bytes */
export function size(bytes) {
  return bytes === null ? ABSENT : scaled(bytes, 1024, SIZES);
}

/** Bytes in a length of time, in powers of 1000: `3.35 TB/s`. @param {number | null} bytes @param {number | null} ns */
export function rate(bytes, ns) {
  return bytes === null || !ns ? ABSENT : scaled((bytes / ns) * 1e9, 1000, RATES);
}

/** A ratio as per cent: `28.3 %`; only zero itself reads as zero. @param {number | null} part */
export function share(part) {
  if (part === null) return ABSENT;
  if (part !== 0 && Math.abs(part) < 0.0005) return part > 0 ? "<0.1 %" : ">-0.1 %";
  return `${fixed(part * 100, 1)} %`;
}

/** A whole number with its thousands set apart: `60,841,999`. @param {number | null} value */
export function count(value) {
  return value === null ? ABSENT : grouped(String(value));
}

/** A number without a unit, with three digits: `0.0123`. @param {number | null} value */
export function number(value) {
  if (value === null) return ABSENT;
  if (Math.abs(value) >= 999.5) return grouped(fixed(value, 0));
  if (value === 0 || Math.abs(value) >= 1) return threeDigits(value);
  const [digits, power] = value.toExponential(2).split("e");
  if (Number(power) >= -4) return String(Number(value.toPrecision(3)));
  return `${String(Number(digits))}e-${pair(-Number(power))}`;
}

/** Bytes or a time after a base, for axes. @param {number} value @param {string} unit */
export function short(value, unit) {
  return text(value, unit, "float").replace(/\.0+(?=\D|$)/, "");
}

/**
 * What people type into a filter, in the unit of the column: `1.5 ms`, `2 GiB`, `5 %`. NaN if it is none.
 * @param {string} typed @param {string} unit
 */
export function parsed(typed, unit) {
  const found = /^(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([a-zµ%/]*)$/i.exec(typed.trim());
  if (!found) return NaN;
  const value = Number(found[1].replaceAll(",", ""));
  const named = found[2].toLowerCase().replace("us", "µs");
  if (!named) return unit === "share" && Math.abs(value) > 1 ? value / 100 : value;
  if (unit === "share") return named === "%" ? value / 100 : NaN;
  const [names, step] = unit === "ns" ? [TIMES, 1000] : unit === "bytes" ? [SIZES, 1024] : [["", "k", "m", "g", "t"], 1000];
  const spelled = named.replace(/^([kmgtp])b$/, "$1ib");
  const power = names.findIndex((name) => name.toLowerCase() === spelled);
  return power < 0 ? NaN : value * step ** power;
}

/** @param {number} value @param {number} step @param {string[]} names */
function scaled(value, step, names) {
  if (Number.isInteger(value) && Math.abs(value) < step) return `${value} ${names[0]}`;
  for (const name of names) {
    // Half a digit below the step rounds up to it: that is 1.00 of the next unit.
    if (name === names[names.length - 1] || Math.abs(value) < step - 0.5) return `${threeDigits(value)} ${name}`;
    value /= step;
  }
  return ABSENT;
}

/** @param {number} value */
function threeDigits(value) {
  if (Math.abs(value) < 9.995) return fixed(value, 2);
  if (Math.abs(value) < 99.95) return fixed(value, 1);
  return grouped(fixed(value, 0));
}

/** As Python rounds: of two equally near values the even one, where `toFixed` takes the larger. */
function fixed(/** @type {number} */ value, /** @type {number} */ digits) {
  const halves = Math.abs(value) * 2 ** (digits + 1);
  if (halves % 2 !== 1) return value.toFixed(digits);
  const sign = value < 0 ? "-" : "";
  return sign + (halfEven(Math.abs(value) * 10 ** digits) / 10 ** digits).toFixed(digits);
}

/** @param {number} value */
function halfEven(value) {
  const low = Math.floor(value);
  return value - low === 0.5 ? low + (low % 2) : Math.round(value);
}

/** @param {string} digits */
function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+$)/g, ",");
}

/** @param {number} value */
function pair(value) {
  return String(value).padStart(2, "0");
}
