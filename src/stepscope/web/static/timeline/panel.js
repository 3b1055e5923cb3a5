// @ts-check
// The panel below the tracks about one event: what it is, what belongs to it, and where else it happens.

import { button, make } from "../dom.js";
import { count, duration, share, size } from "../units.js";
import { facts, part } from "./elements.js";
import { shortened } from "./names.js";
import { moment } from "./ruler.js";

/**
 * @typedef {import("./overlay.js").Ref} Ref
 * @typedef {(ref: Ref) => void} Go
 */

const MOST_ARGUMENTS = 60;
const MOST_LETTERS = 600;

/** @param {any} event the server's answer @param {number} origin what is called 0 @param {Go} go
 * @param {HTMLElement | null} more what is known from elsewhere @returns {HTMLElement[]} */
export function eventPanel(event, origin, go, more) {
  return [
    heading(event),
    make("div", "tl-columns",
      part("Event", times(event, origin)),
      more,
      links(event, go),
      stack(event, go),
      alike(event, go),
      roofline(event),
      inputs(event),
      argumentsOf(event),
    ),
  ];
}

/** What a box tells, where nobody can be asked for more. @param {Ref} ref @param {number} origin
 * @param {string} why @returns {HTMLElement[]} */
export function boxPanel(ref, origin, why) {
  const known = facts([
    ["duration", ref.dur_ns === null ? null : duration(ref.dur_ns)],
    ["start", ref.start_ns === null ? null : moment(ref.start_ns - origin, 1)],
    ["number", String(ref.event)],
  ]);
  return [heading(ref), make("div", "tl-columns", part("Event", known, make("p", "muted small", why)))];
}

/** @param {any} event */
function heading(event) {
  const swatch = make("span", `swatch inline tl-kind-${event.kind}`);
  const title = make("h2", { title: event.name ?? "" }, swatch, event.name ?? "(no name)");
  return make("header", "tl-title", title, make("span", "muted small", event.kind.replaceAll("_", " ")));
}

/** @param {any} event @param {number} origin */
function times(event, origin) {
  const end = (event.start_ns ?? 0) + (event.dur_ns ?? 0);
  return facts([
    ["duration", event.dur_ns === null ? null : duration(event.dur_ns)],
    ["of its own", event.self_ns === null || event.self_ns === undefined ? null : duration(event.self_ns)],
    ["start", event.start_ns === null ? null : moment(event.start_ns - origin, 1)],
    ["end", event.dur_ns === null ? null : moment(end - origin, 1)],
    ["recorded as", event.recorded_ns ? `${duration(event.recorded_ns)}, which cannot be` : null],
    ["step", event.step ? String(event.step.step) : null],
    ["phase", event.phase],
    ["module", event.module],
    ["launch to start", event.queue_ns === null || event.queue_ns === undefined ? null : duration(event.queue_ns)],
    ["device", event.device],
    ["bytes", event.bytes === null || event.bytes === undefined ? null : size(event.bytes)],
    ["throughput", event.gb_per_s ? `${event.gb_per_s.toFixed(event.gb_per_s < 10 ? 2 : 0)} GB/s` : null],
    ["category", event.category],
    ["thread", `${event.pid ?? "–"} / ${event.tid ?? "–"}`],
    ["number", String(event.event)],
  ]);
}

/** A button that leads to another event. @param {Ref} ref @param {Go} go @param {string} [more] */
function jump(ref, go, more = "") {
  const given = { class: "tl-jump", title: ref.name ?? "", "data-event": String(ref.event) };
  const element = button(shortened(ref.name ?? "(no name)"), () => go(ref), given);
  const told = more || (ref.dur_ns === null ? "" : duration(ref.dur_ns));
  return make("span", "tl-ref", element, make("span", "muted small", told));
}

/** @param {any} event @param {Go} go */
function links(event, go) {
  const { links: known } = event;
  if (!known) return null;
  const list = make("dl", "tl-facts tl-links");
  const add = (/** @type {string} */ name, /** @type {Ref[]} */ refs, /** @type {string} */ more = "") => {
    if (!refs.length) return;
    list.append(make("dt", "", name), make("dd", "", ...refs.map((ref) => jump(ref, go)), more));
  };
  const one = (/** @type {Ref | null} */ ref) => (ref ? [ref] : []);
  add("operator", one(known.op));
  add("launch", one(known.launch));
  add("graph launch", one(known.graph));
  const { kernels, backward } = known;
  if (kernels?.count) {
    const more = kernels.count > kernels.first.length ? ` and ${count(kernels.count - kernels.first.length)} more` : "";
    add(`device work (${duration(kernels.total_ns)})`, kernels.first, more);
  }
  add("forward", one(known.forward));
  if (backward?.count) {
    const more = backward.count > backward.first.length ? ` and ${count(backward.count - backward.first.length)} more` : "";
    add("backward", backward.first, more);
  }
  add("inside of", one(known.parent));
  return list.children.length ? part("Belongs to", list) : null;
}

/** @param {any} event @param {Go} go */
function stack(event, go) {
  if (event.pending?.includes("stack")) return part("Python stack", make("p", "muted", "being worked out …"));
  if (!event.stack?.length) return null;
  const whose = /** @type {Record<string, string>} */ ({ forward: ", of its forward operator", op: ", of the operator that launched it" });
  const list = make("ol", "tl-stack");
  for (const frame of event.stack) {
    const where = frame.file ? `${frame.file}${frame.line === null ? "" : `:${frame.line}`}` : "";
    const name = frame.function ?? frame.name ?? "";
    const known = typeof frame.event === "number";
    const words = known ? button(name, () => go(frame), "tl-jump") : make("span", "", name);
    list.append(make("li", frame.user ? "user" : "", words, make("span", "muted small", where)));
  }
  return part(`Python stack${whose[event.stack_of] ?? ""}`, list);
}

/** @param {any} event @param {Go} go */
function alike(event, go) {
  const { alike: same } = event;
  if (!same || same.calls < 2) return null;
  const buttons = make("div", "tl-buttons");
  for (const [words, ref] of /** @type {[string, Ref | null][]} */ ([
    ["‹ previous", same.previous], ["next ›", same.next], ["longest", same.longest], ["first", same.first], ["last", same.last],
  ])) {
    if (!ref || ref.event === event.event) continue;
    buttons.append(button(words, () => go(ref), { title: ref.dur_ns === null ? "" : duration(ref.dur_ns) }));
  }
  const slower = same.faster_than_share === null || same.faster_than_share === undefined ? null : share(same.faster_than_share);
  return part("Same name elsewhere",
    facts([
      ["calls", count(same.calls)],
      ["together", duration(same.total_ns)],
      ["mean", duration(same.mean_ns)],
      ["took longer", slower && `${slower} of the others`],
    ]), buttons);
}

/** @param {any} event */
function roofline({ roofline: roof }) {
  if (!roof) return null;
  return part("Roofline of its operator",
    facts([
      ["limited by", roof.bound],
      ["of peak compute", roof.peak_share === null || roof.peak_share === undefined ? null : share(roof.peak_share)],
      ["of peak bandwidth", roof.bandwidth_share === null || roof.bandwidth_share === undefined ? null : share(roof.bandwidth_share)],
      ["floating-point operations", roof.flops ? count(roof.flops) : null],
      ["bytes", roof.bytes ? size(roof.bytes) : null],
      ["data type", roof.data_type],
      ["shapes", roof.shapes],
      ["why", roof.reason],
    ]));
}

/** @param {any} event */
function inputs({ inputs: given }) {
  if (!given?.length) return null;
  const list = make("ol", "tl-inputs");
  for (const one of given) {
    const words = [one.shape, one.type, one.value].filter(Boolean).join(" · ") || "–";
    list.append(make("li", "", words, one.strides ? make("span", "muted small", ` strides ${one.strides}`) : null));
  }
  return part("Inputs", list);
}

/** @param {any} event */
function argumentsOf({ args }) {
  const all = Object.entries(args ?? {});
  if (!all.length) return null;
  const shown = all.slice(0, MOST_ARGUMENTS).map(([key, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return /** @type {[string, string]} */ ([key, text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}…` : text]);
  });
  const more = all.length > shown.length ? make("p", "muted small", `and ${all.length - shown.length} more`) : null;
  return part("Arguments", facts(shown), more);
}
