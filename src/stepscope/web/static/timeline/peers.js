// @ts-check
// A collective on other ranks: who waited for whom, told in the panel and drawn from rank to rank.

import { SAVED, ask } from "../asking.js";
import { button, make } from "../dom.js";
import { count, duration } from "../units.js";
import { part, table } from "./elements.js";

/**
 * @typedef {import("./main.js").Timeline} Timeline
 * @typedef {import("./sources.js").Source} Source
 * @typedef {import("./overlay.js").Ref} Ref
 * @typedef {import("./overlay.js").Peer} Peer
 * @typedef {{ key: string, wait_ns: number | null, dur_ns: number, event: Ref | null }} OnRank
 * @typedef {{ kind: string, ranks: OnRank[], count: number }} Together
 */

/** What a collective may be recorded as. */
const KINDS = ["communication", "annotation", "other"];

/** The ranks that did the collective of an event; none where it is no collective.
 * @param {Timeline} timeline @param {Source} source @param {any} event @param {AbortSignal} [signal]
 * @returns {Promise<Together | undefined>} */
export async function together(timeline, source, event, signal) {
  if (SAVED || timeline.given.traces.length < 2 || !KINDS.includes(event.kind)) return undefined;
  const shown = timeline.sources.map(({ key }) => key).join(",");
  const found = await ask("peers", { trace: source.key, event: event.event, shown }, signal);
  return found.ranks.length > 1 ? found : undefined;
}

/** Where the collective is on the ranks that are shown. @param {Together | undefined} found @param {Timeline} timeline
 * @returns {Peer[]} */
export function peersOf(found, timeline) {
  return (found?.ranks ?? []).flatMap(({ key, wait_ns, event }) => {
    const source = timeline.sources.find((one) => one.key === key);
    return source && event ? [{ source, ref: event, last: wait_ns === 0 }] : [];
  });
}

/** @param {Together} found @param {string} own the rank that is selected @param {(key: string) => void} go */
export function ranksPanel({ kind, ranks, count: all }, own, go) {
  const rows = ranks.map(({ key, wait_ns, dur_ns }) => {
    const name = key.replace("rank", "rank ");
    const to = key === own ? make("span", "strong", name) : button(name, () => go(key), "tl-jump");
    const waited = wait_ns === null ? "clock not aligned" : wait_ns === 0 ? "came last" : duration(wait_ns);
    return [to, waited, duration(dur_ns)];
  });
  const more = all > ranks.length ? make("p", "muted small", `and ${count(all - ranks.length)} more`) : null;
  return part(`${kind} on ${count(all)} ranks`, table(["rank", "waited:", "in it:"], rows), more);
}
