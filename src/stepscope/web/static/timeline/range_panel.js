// @ts-check
// The panel below the tracks about a range: what its time went to.

import { button, make } from "../dom.js";
import { count, duration, share, size } from "../units.js";
import { part, table } from "./elements.js";
import { shortened } from "./names.js";

/** @typedef {import("./overlay.js").Ref} Ref */

/** @param {any} range the server's answer @param {string} title @param {(ref: Ref) => void} go
 * @param {() => void} zoom @returns {HTMLElement[]} */
export function rangePanel(range, title, go, zoom) {
  const steps = range.steps_count ? `, in ${range.steps_count === 1 ? `step ${range.steps[0].step}` : `${count(range.steps_count)} steps`}` : "";
  const head = make("header", "tl-title", make("h2", "", title || `${duration(range.range_ns)} selected`),
    make("span", "muted small", `${title ? duration(range.range_ns) : ""}${steps}`.replace(/^, /, "")), button("Zoom to it", zoom));
  const columns = make("div", "tl-columns");
  for (const device of range.devices) columns.append(...aboutDevice(device, range.range_ns, go));
  for (const thread of range.threads.slice(0, 4)) columns.append(aboutThread(thread, range.range_ns));
  if (!columns.children.length) columns.append(make("p", "muted", "Nothing was recorded in this range."));
  return [head, columns];
}

/** @param {any} device @param {number} whole @param {(ref: Ref) => void} go */
function aboutDevice(device, whole, go) {
  const of = (/** @type {number} */ ns) => share(whole ? ns / whole : 0);
  const rows = [
    ["busy", duration(device.busy_ns), of(device.busy_ns), ""],
    ["idle", duration(device.idle_ns), of(device.idle_ns), ""],
    ...device.kinds.map((/** @type {any} */ one) => [
      make("span", "", make("span", `swatch inline tl-kind-${one.kind}`), one.kind), duration(one.busy_ns), of(one.busy_ns), count(one.calls),
    ]),
  ];
  const parts = [part(`GPU ${device.device}`, table(["", "time:", "of the range:", "calls:"], rows))];
  if (device.idle?.length) {
    const idle = device.idle.map((/** @type {any} */ one) => [one.cause.replaceAll("_", " "), one.side, duration(one.idle_ns), of(one.idle_ns)]);
    parts.push(part(`GPU ${device.device} idle by cause`, table(["cause", "side", "time:", "of the range:"], idle)));
  }
  if (device.names.length) {
    const names = device.names.slice(0, 12).map((/** @type {any} */ one) => {
      const given = { class: "tl-jump", title: `${one.name ?? ""} (to the longest)` };
      const name = button(shortened(one.name ?? "(no name)"), () => go(one.longest), given);
      return [name, duration(one.time_ns), of(one.time_ns), count(one.calls)];
    });
    parts.push(part(`GPU ${device.device} by name (${count(device.names_count)})`, table(["name", "time:", "of the range:", "calls:"], names)));
  }
  if (device.copies?.length) {
    const copies = device.copies.map((/** @type {any} */ one) => [one.direction, size(one.bytes), duration(one.time_ns), count(one.calls)]);
    parts.push(part(`GPU ${device.device} copies`, table(["direction", "bytes:", "time:", "calls:"], copies)));
  }
  return parts;
}

/** @param {any} thread @param {number} whole */
function aboutThread(thread, whole) {
  const rows = thread.names.slice(0, 10).map((/** @type {any} */ one) => {
    const name = make("span", { title: one.name ?? "" }, shortened(one.name ?? "(no name)"));
    return [name, duration(one.self_ns), share(whole ? one.self_ns / whole : 0), count(one.calls)];
  });
  return part(`Thread ${thread.tid}: ${duration(thread.covered_ns)} in calls`, table(["name", "of its own:", "of the range:", "calls:"], rows));
}
