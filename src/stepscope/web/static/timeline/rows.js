// @ts-check
// Where everything stands, from the top: traces, their groups, and in these idle time, counters and tracks.

/**
 * @typedef {import("./sources.js").Source} Source
 * @typedef {import("./sources.js").Track} Track
 * @typedef {{
 *   kind: "trace" | "group" | "gaps" | "counter" | "track", id: string, label: string, title: string,
 *   depth: number, y: number, height: number, folds: boolean, open: boolean,
 *   source: Source, group: string, track?: Track, lanes: number, series?: string, device?: string,
 *   tracks: Track[],
 * }} Row
 */

export const LANE = 16;
const HEADING = 22;
const GAPS = 18;
const COUNTER = 34;
const SPACE = 5;
/** More lanes than these of a thread are folded at first: somebody who wants them unfolds it. */
const MOST_AT_FIRST = 40;
/** So many threads of the host are unfolded at first. */
const THREADS_AT_FIRST = 2;

/** What is folded, and what follows from it. */
export class Rows {
  constructor() {
    /** @type {Row[]} */
    this.all = [];
    /** @type {Map<string, boolean>} what was opened or folded by hand */
    this.chosen = new Map();
    this.height = 0;
  }

  /** Lays everything out again. @param {Source[]} sources */
  lay(sources) {
    const several = sources.length > 1;
    this.all = [];
    this.height = 0;
    for (const source of sources) {
      if (several && !this.#add({ kind: "trace", id: source.key, label: source.label, source, folds: true, open: true })) {
        continue;
      }
      this.#groups(source, several ? 1 : 0);
    }
  }

  /** Opens or folds. @param {Row} row @param {boolean} [open] */
  turn(row, open = !row.open) {
    this.chosen.set(row.id, open);
  }

  /** The row at a height. @param {number} y */
  at(y) {
    return this.all[this.indexAt(y)];
  }

  /** The place of the first row that ends below a height. @param {number} y */
  indexAt(y) {
    let low = 0;
    let high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].y + this.all[middle].height <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The row of a track, unless it is hidden in a folded group. @param {Source} source @param {number} track */
  of(source, track) {
    return this.all.find((row) => row.source === source && row.track?.id === track);
  }

  /** Opens what hides a track. @param {Source} source @param {number} track */
  open(source, track) {
    const found = source.tracks.find((one) => one.id === track);
    if (!found) return;
    for (const id of [source.key, `${source.key}/${found.group}`, `${source.key}/${track}`]) {
      this.chosen.set(id, true);
    }
  }

  /** @param {Source} source @param {number} depth */
  #groups(source, depth) {
    /** @type {Map<string, Track[]>} */
    const groups = new Map();
    for (const track of source.tracks) {
      const list = groups.get(track.group);
      if (list) list.push(track);
      else groups.set(track.group, [track]);
    }
    const busiest = source.tracks
      .filter((track) => track.side === "host")
      .sort((a, b) => b.events - a.events)
      .slice(0, THREADS_AT_FIRST);
    for (const [group, tracks] of groups) {
      const id = `${source.key}/${group}`;
      const device = tracks[0].side === "device" ? deviceOf(group) : undefined;
      if (!this.#add({ kind: "group", id, label: group, source, group, tracks, depth, folds: true, open: true, device })) continue;
      if (device !== undefined) this.#charts(source, group, device, depth + 1);
      for (const track of tracks) this.#track(source, track, depth + 1, busiest);
    }
    this.#charts(source, "", undefined, depth);
  }

  /** @param {Source} source @param {string} group @param {string | undefined} device @param {number} depth */
  #charts(source, group, device, depth) {
    if (device !== undefined && source.gaps.devices.includes(device)) {
      this.#add({
        kind: "gaps", id: `${source.key}/gaps/${device}`, label: "idle by cause", source, group, device, depth,
        height: GAPS, title: `Where GPU ${device} waits, and for what`,
      });
    }
    for (const one of source.counters.listed) {
      if ((one.device ?? undefined) !== device) continue;
      // Below the head of its device it need not name it again.
      const label = one.title.startsWith(`${group} `) ? one.title.slice(group.length + 1) : one.title;
      this.#add({
        kind: "counter", id: `${source.key}/counter/${one.id}`, label, source, group, device, depth,
        height: COUNTER, series: one.id, title: one.title,
      });
    }
  }

  /** @param {Source} source @param {Track} track @param {number} depth @param {Track[]} busiest */
  #track(source, track, depth, busiest) {
    const id = `${source.key}/${track.id}`;
    const folds = track.lanes > 1;
    const open = this.chosen.get(id) ?? (track.side === "device" || (busiest.includes(track) && track.lanes <= MOST_AT_FIRST));
    const lanes = folds && open ? track.lanes : 1;
    this.#add({
      kind: "track", id, label: track.label, source, group: track.group, track, depth, folds, open, lanes,
      height: lanes * LANE + SPACE,
      title: `${track.label}: ${track.events.toLocaleString("en")} events`,
    });
  }

  /** Puts a row below the others; whether what is in it is shown.
   * @param {Partial<Row> & Pick<Row, "kind" | "id" | "label" | "source">} row */
  #add(row) {
    const open = row.folds ? (this.chosen.get(row.id) ?? row.open ?? true) : true;
    const height = row.height ?? (open || row.kind === "trace" ? HEADING : HEADING + LANE);
    this.all.push({
      depth: 0, folds: false, group: "", lanes: 0, tracks: [], title: row.label, ...row, open, height, y: this.height,
    });
    this.height += height;
    return open;
  }
}

/** The number of a device in what people call it. @param {string} group */
function deviceOf(group) {
  return /(\d+)\s*$/.exec(group)?.[1] ?? group;
}
