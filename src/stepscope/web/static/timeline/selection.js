// @ts-check
// What is selected: an event or a range, by mouse, keys, search, address or finding; and what is told of it.

import { SAVED, ask, isAbort, saying } from "../asking.js";
import { button, make } from "../dom.js";
import { count, duration } from "../units.js";
import { KINDS } from "./colours.js";
import { arrowsOf } from "./overlay.js";
import { boxPanel, eventPanel } from "./panel.js";
import { peersOf, ranksPanel, together } from "./peers.js";
import { rangePanel } from "./range_panel.js";

/**
 * @typedef {import("./main.js").Timeline} Timeline
 * @typedef {import("./sources.js").Source} Source
 * @typedef {import("./overlay.js").Ref} Ref
 * @typedef {import("./overlay.js").Range} Range
 */

/** A finding's place is shown with as much again around it. */
const AROUND = 1;

/** The selection of a timeline. */
export class Selection {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {any} the server's answer on the selected event */
    this.told = undefined;
    this.finding = "";
    /** @type {AbortController | undefined} */
    this.asked = undefined;
  }

  /** What the address says of it. @returns {Record<string, string | undefined>} */
  address() {
    const { selected, range } = this.timeline.overlay;
    const first = this.timeline.sources[0];
    return {
      event: selected && typeof selected.ref.event === "number" ? String(selected.ref.event) : undefined,
      on: selected && selected.source !== first ? selected.source.key : undefined,
      range: range ? `${first.address(range.from)},${first.address(range.to)}` : undefined,
      finding: this.finding || undefined,
    };
  }

  /** Where a search goes on: behind the selected event, or at the left edge. */
  here() {
    const { overlay, sources, view } = this.timeline;
    const { selected } = overlay;
    if (selected && selected.ref.start_ns !== null && selected.ref.event !== null) {
      return { source: selected.source, from: String(selected.ref.start_ns), event: selected.ref.event };
    }
    return { source: sources[0], from: sources[0].address(view.from) };
  }

  /** Selects what the address names. @param {URLSearchParams} wanted */
  async restore(wanted) {
    const { view, sources } = this.timeline;
    const time = (/** @type {string | null | undefined} */ text) => (text && /^-?\d{1,19}$/.test(text) ? sources[0].seen(BigInt(text)) : NaN);
    const [from, to] = [time(wanted.get("from")), time(wanted.get("to"))];
    const event = wanted.has("event") ? Number(wanted.get("event")) : NaN;
    const placed = to > from;
    if (placed) view.show(from, to);
    const finding = wanted.get("finding");
    const source = sources.find((one) => one.key === wanted.get("on")) ?? sources[0];
    const [low, high] = (wanted.get("range") ?? "").split(",").map(time);
    if (finding && !(placed && (event >= 0 || high > low))) await this.toFinding(finding, !placed);
    else if (event >= 0) {
      this.finding = finding ?? "";
      await this.event(source, { event, track: -1, name: null, kind: "", start_ns: null, dur_ns: null }, { fit: !placed, finding: this.finding });
    } else if (high > low) this.range(low, high, true);
  }

  /** Goes to the best place of a finding. @param {string} id @param {boolean} move */
  async toFinding(id, move) {
    const { timeline } = this;
    const [source] = timeline.sources;
    timeline.say("looking for the finding …");
    try {
      const { findings } = await ask("marks", { trace: source.key, parts: "findings" });
      const found = findings.find((/** @type {any} */ one) => one.id === id);
      const place = found?.shown[0];
      if (!place) {
        timeline.say(found ? `“${found.title}” has no place in time.` : `There is no finding ${id}.`, true);
        return;
      }
      timeline.say("");
      this.finding = id;
      const range = { from: source.seen(place.start_ns), to: source.seen(place.end_ns) };
      if (move) timeline.view.fit(range.from, range.to, AROUND);
      if (place.track !== null) timeline.toTrack(source, place.track);
      timeline.overlay.range = range;
      await this.#totals(range, `${found.title}: ${place.what}`);
    } catch (error) {
      this.#failed(error);
    }
  }

  /** @param {number} x @param {number} y */
  click(x, y) {
    const { scene } = this.timeline;
    const hit = scene.hit(x, y);
    if (!hit) return this.clear();
    const { tile, box, row: { source } } = hit;
    const among = tile.count[box] === 1 ? undefined : {
      words: `The longest of ${count(tile.count[box])} events in these ${duration(tile.dur[box])}.`,
      from: source.at(tile.start[box]), to: source.at(tile.start[box] + tile.dur[box]),
    };
    this.event(source, refOf(hit), { among });
  }

  /** Fits the box at a point, or everything. @param {number} x @param {number} y */
  twice(x, y) {
    const { scene, view } = this.timeline;
    const hit = scene.hit(x, y);
    if (!hit) return view.showAll();
    const { tile, box, row } = hit;
    view.fit(row.source.at(tile.start[box]), row.source.at(tile.start[box] + tile.dur[box]));
  }

  /** Selects an event, and tells about it.
   * @param {Source} source @param {Ref} ref
   * @param {{ center?: boolean, fit?: boolean, finding?: string, among?: { words: string, from: number, to: number } }} [how] */
  async event(source, ref, how = {}) {
    const { timeline } = this;
    const { overlay } = timeline;
    this.asked?.abort();
    const asked = (this.asked = new AbortController());
    this.finding = how.finding ?? "";
    overlay.range = undefined;
    overlay.selected = { source, ref, arrows: [] };
    if (how.center) this.#reveal(source, ref, false);
    timeline.chosen();
    try {
      const given = { trace: source.key, event: ref.event ?? undefined };
      let told = await ask("event", given, asked.signal);
      /** @type {import("./peers.js").Together | undefined} */
      let ranks;
      const show = () => {
        this.told = told;
        overlay.selected = { source, ref: told, arrows: arrowsOf(told), peers: peersOf(ranks, timeline) };
        const more = ranks ? ranksPanel(ranks, source.key, (key) => this.#onRank(key, source, told)) : null;
        timeline.tell([...this.#among(how.among), ...eventPanel(told, source.origin, (to) => this.event(source, to, { center: true }), more)]);
        timeline.chosen();
      };
      if (how.fit || ref.start_ns === null) this.#reveal(source, told, Boolean(how.fit));
      show();
      if (how.center || how.fit) timeline.toTrack(source, told.track); // the panel may have hidden it
      ranks = await together(timeline, source, told, asked.signal);
      if (ranks) show();
      if (told.pending?.length) {
        told = await ask("event", { ...given, wait: 1 }, asked.signal);
        show();
      }
    } catch (error) {
      if (SAVED) timeline.tell([...this.#among(how.among), ...boxPanel(ref, source.origin, saying(error))]);
      else this.#failed(error);
    }
  }

  /** Goes to the same collective on another rank, which is shown for it. @param {string} key @param {Source} source
   * @param {any} told the event */
  async #onRank(key, source, told) {
    const { timeline } = this;
    try {
      await timeline.turn(key, true);
      const peer = peersOf(await together(timeline, source, told), timeline).find((one) => one.source.key === key);
      if (peer) await this.event(peer.source, peer.ref, { center: true });
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Selects a range, in time of the view. @param {number} one @param {number} other @param {boolean} done */
  range(one, other, done) {
    const range = { from: Math.min(one, other), to: Math.max(one, other) };
    const { timeline } = this;
    timeline.overlay.selected = undefined;
    this.told = undefined;
    this.finding = "";
    timeline.overlay.range = range;
    timeline.redrawOver();
    if (done) this.#totals(range, "");
  }

  /** Shows the selection as wide as it can be, or everything. */
  fit() {
    const { view, overlay } = this.timeline;
    const { selected, range } = overlay;
    if (range) view.fit(range.from, range.to);
    else if (selected && selected.ref.start_ns !== null) {
      const { source, ref } = selected;
      const start = ref.start_ns ?? 0;
      view.fit(source.seen(start), source.seen(start + (ref.dur_ns ?? 0)));
    } else view.showAll();
  }

  /** To the same name before or after. @param {"previous" | "next"} which */
  alike(which) {
    const ref = this.told?.alike?.[which];
    const { selected } = this.timeline.overlay;
    if (ref && selected) this.event(selected.source, ref, { center: true });
  }

  /** Selects the event nearest to the middle, for those who use no mouse. */
  nearest() {
    const { scene, view, parts } = this.timeline;
    if (document.activeElement !== parts.canvas) return;
    for (const band of scene.bands()) {
      const hit = scene.hit(view.width / 2, band.y + 4, view.width / 2);
      if (!hit) continue;
      this.event(hit.row.source, refOf(hit), { center: true });
      return;
    }
  }

  clear() {
    const { timeline } = this;
    this.asked?.abort();
    this.finding = "";
    this.told = undefined;
    timeline.overlay.selected = timeline.overlay.range = undefined;
    timeline.tell([]);
    timeline.chosen();
  }

  /** @param {{ words: string, from: number, to: number } | undefined} among */
  #among(among) {
    if (!among) return [];
    const zoom = button("Zoom in to see them", () => this.timeline.view.fit(among.from, among.to, 0.5));
    return [make("p", "tl-among small", among.words, " ", zoom)];
  }

  /** @param {Source} source @param {Ref} ref @param {boolean} fit */
  #reveal(source, ref, fit) {
    const { timeline } = this;
    if (ref.start_ns === null) return;
    timeline.toTrack(source, ref.track);
    const from = source.seen(ref.start_ns);
    const to = source.seen(ref.start_ns + (ref.dur_ns ?? 0));
    if (fit) timeline.view.fit(from, to, 2);
    else timeline.view.reveal(from, to);
  }

  /** @param {Range} range @param {string} title */
  async #totals(range, title) {
    const { timeline } = this;
    this.asked?.abort();
    const asked = (this.asked = new AbortController());
    const [source] = timeline.sources;
    timeline.chosen();
    try {
      const to = Math.max(range.to, range.from + 1);
      const given = { trace: source.key, from: source.address(range.from), to: source.address(to) };
      const told = await ask("range", given, asked.signal);
      timeline.tell(rangePanel(told, title, (ref) => this.event(source, ref, { center: true }), () => this.fit()));
    } catch (error) {
      if (SAVED) timeline.tell([make("p", "muted small", `${duration(range.to - range.from)} selected. ${saying(error)}`)]);
      else this.#failed(error);
    }
  }

  /** @param {unknown} error */
  #failed(error) {
    if (isAbort(error)) return;
    this.timeline.tell([make("p", "problem", saying(error))]);
  }
}

/** What a box knows of its event. @param {import("./scene.js").Hit} hit @returns {Ref} */
function refOf({ tile, box, row: { source }, track }) {
  const single = tile.count[box] === 1;
  return {
    event: tile.event[box], track: track.id, name: source.names.text(tile.name[box]), kind: KINDS[tile.kind[box]][0],
    start_ns: single ? tile.start[box] + source.origin : null, dur_ns: single ? tile.dur[box] : null,
  };
}
