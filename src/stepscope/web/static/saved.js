// @ts-check
// A page in a file: there is no server to ask, and no other page to go to. What the page may ask was
// answered when the file was made.

import { make } from "./dom.js";

const ALONE = "This is a saved page. Open the trace with `stepscope open` to see more.";
/** Which options of an address tell one question from another. */
const OPTIONS = /** @type {Record<string, string[]>} */ ({
  tracks: ["trace"], counters: ["trace"], marks: ["trace", "parts"], event: ["trace", "event"], range: ["trace", "from", "to"],
});
const HEADER = 16;

/** @type {Record<string, any>} */
const answers = JSON.parse(document.getElementById("answers")?.textContent ?? "{}");
/** @type {Map<string, Promise<Map<string, Uint8Array<ArrayBuffer>>>>} */
const unpacked = new Map();

/** What a question is called among the answers. @param {URL} address @param {any} body */
function called({ pathname, searchParams }, body) {
  const name = pathname.slice("/api/".length);
  if (name === "sql") return `sql ${body.sql}`;
  if (name === "whatif" && searchParams.has("each")) return "whatif each";
  if (name === "whatif") {
    const { named, kernels, ranges, host, transfers, like_median, ranks } = body;
    const more = [...kernels, ...ranges, ...ranks].length || like_median || host !== "x1" || transfers !== "x1";
    return more ? "" : `whatif ${named.join(",")}`;
  }
  return [name, ...(OPTIONS[name] ?? []).map((option) => searchParams.get(option))].join(" ");
}

/** The tiles of a trace by their place. @param {string} trace */
function tilesOf(trace) {
  let found = unpacked.get(trace);
  if (!found) {
    found = unpack(answers[`tiles ${trace}`]);
    unpacked.set(trace, found);
  }
  return found;
}

/** @param {{ lengths: Record<string, number>, gzip: string }} packed */
async function unpack({ lengths, gzip }) {
  const bytes = Uint8Array.from(atob(gzip), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = await new Response(stream).arrayBuffer();
  /** @type {Map<string, Uint8Array<ArrayBuffer>>} */
  const tiles = new Map();
  let at = 0;
  for (const [place, length] of Object.entries(lengths)) {
    tiles.set(place, new Uint8Array(all, at, length));
    at += length;
  }
  return tiles;
}

/** Tiles as the server sends them; where there are no boxes, empty ones. @param {URLSearchParams} given */
async function tiles(given) {
  const known = await tilesOf(given.get("trace") ?? "");
  const parts = (given.get("tiles") ?? "").split(",").map((place) => known.get(place) ?? new Uint8Array(HEADER));
  const even = (/** @type {number} */ length) => Math.ceil(length / 8) * 8;
  const start = even(8 + 4 * parts.length);
  const answer = new Uint8Array(parts.reduce((sum, part) => sum + even(part.length), start));
  const head = new DataView(answer.buffer);
  head.setUint32(0, parts.length, true);
  let at = start;
  parts.forEach((part, place) => {
    head.setUint32(8 + 4 * place, part.length, true);
    answer.set(part, at);
    at += even(part.length);
  });
  return answer;
}

/** @param {any} where @param {RequestInit} [how] */
async function answered(where, how) {
  const address = new URL(String(where), "http://saved/");
  if (address.pathname === "/api/tile") return new Response(await tiles(address.searchParams));
  if (address.pathname === "/api/names") {
    const known = answers[`names ${address.searchParams.get("trace")}`];
    const ids = (address.searchParams.get("ids") ?? "").split(",");
    return Response.json({ names: ids.map((id) => known[id] ?? "") });
  }
  const found = answers[called(address, how?.body ? JSON.parse(String(how.body)) : {})];
  if (found === undefined) throw new Error(ALONE);
  return Response.json(found);
}

globalThis.fetch = answered;

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='/']") : null;
  if (!link) return;
  event.preventDefault();
  let told = document.getElementById("saved-note");
  if (!told) {
    told = make("p", { id: "saved-note", role: "status" });
    document.body.append(told);
  }
  told.textContent = ALONE;
}, { capture: true });
