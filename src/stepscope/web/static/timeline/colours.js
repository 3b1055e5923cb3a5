// @ts-check
// The colour of every box: one of its kind, in a shade of its name. Read from the sheet, so that themes hold.

/** What a box can be, as the tiles number it, with the colour of the sheet that means it. */
export const KINDS = /** @type {const} */ ([
  ["python_frame", "low", "Python"],
  ["op", "host", "operator"],
  ["launch", "calls", "runtime call"],
  ["annotation", "pass", "annotation"],
  ["kernel", "device", "kernel"],
  ["copy", "copy", "copy"],
  ["fill", "fill", "fill"],
  ["communication", "communication", "communication"],
  ["other", "other", "other"],
]);

/** Shades of a kind, among which names are spread. */
export const SHADES = 8;

/** The colour of each cause of idle time; those of one side are alike. */
const SIDES = /** @type {Record<string, string>} */ ({
  host: "host", launch: "calls", device: "communication", unknown: "other",
});

/** @typedef {[number, number, number]} Rgb */

/** Colours as they are now. */
export class Colours {
  constructor() {
    /** Of kind × SHADES + shade, as pixels of an ImageData on a little-endian machine. */
    this.pixels = new Uint32Array(KINDS.length * SHADES);
    /** Whether the text on it is the light one of the theme. @type {string[]} */
    this.words = [];
    /** @type {Record<string, string>} */
    this.css = {};
    this.read();
  }

  /** Reads the sheet again, after the theme has changed. */
  read() {
    const style = getComputedStyle(document.documentElement);
    const of = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
    for (const name of ["ground", "panel", "line", "text", "muted", "link", "track", "on", "high", "medium",
      "device", "copy", "communication", "calls", "input", "host", "other", "low", "pass", "fill"]) {
      this.css[name] = of(name);
    }
    const panel = rgb(this.css.panel);
    const ends = [rgb(this.css.text), rgb(this.css.on)];
    KINDS.forEach(([, meaning], kind) => {
      const own = rgb(of(meaning));
      for (let shade = 0; shade < SHADES; shade++) {
        const made = shaded(own, panel, shade);
        this.pixels[kind * SHADES + shade] = packed(made);
        this.words[kind * SHADES + shade] = css(
          contrast(made, ends[0]) > contrast(made, ends[1]) ? ends[0] : ends[1],
        );
      }
    });
  }

  /** The plain colour of a kind. @param {string} kind */
  kind(kind) {
    const found = KINDS.find(([name]) => name === kind);
    return this.css[found ? found[1] : "other"] ?? this.css.other;
  }

  /** The colour of idle time by its side. @param {string} side */
  side(side) {
    return this.css[SIDES[side] ?? "other"];
  }
}

/** The shade of a name: the same in every trace. @param {string} name */
export function shadeOf(name) {
  let hash = 2166136261;
  for (let place = 0; place < name.length; place++) {
    hash = Math.imul(hash ^ name.charCodeAt(place), 16777619);
  }
  return (hash >>> 8) % SHADES;
}

/** Shades get paler towards the ground and turn a little, so that neighbours can be told apart and the kind
 * is still seen. @param {Rgb} own @param {Rgb} ground @param {number} shade @returns {Rgb} */
function shaded(own, ground, shade) {
  const pale = [0, 0.1, 0.2, 0.3][shade % 4];
  const turned = shade < 4 ? own : rotated(own);
  return /** @type {Rgb} */ (turned.map((part, at) => Math.round(part + (ground[at] - part) * pale)));
}

/** A neighbouring hue: the parts of the colour, each a little towards the next. @param {Rgb} of @returns {Rgb} */
function rotated([red, green, blue]) {
  const part = 0.14;
  return [red + (blue - red) * part, green + (red - green) * part, blue + (green - blue) * part];
}

/** @param {string} text `#rrggbb` or `rgb(…)` @returns {Rgb} */
export function rgb(text) {
  const hex = /^#([0-9a-f]{6})$/i.exec(text);
  if (hex) {
    const all = parseInt(hex[1], 16);
    return [all >> 16, (all >> 8) & 255, all & 255];
  }
  const found = text.match(/[\d.]+/g)?.map(Number) ?? [];
  return [found[0] ?? 128, found[1] ?? 128, found[2] ?? 128];
}

/** @param {Rgb} of */
function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {Rgb} of */
function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** @param {Rgb} one @param {Rgb} other */
function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

/** @param {Rgb} of */
function luminance(of) {
  const [red, green, blue] = of.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
