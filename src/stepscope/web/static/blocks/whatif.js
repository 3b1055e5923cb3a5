// @ts-check
// Switches and sliders over the simulation: every change is answered at once.

import { SAVED, ask, askWith, problem } from "../asking.js";
import { enliven } from "../copying.js";
import { button, make } from "../dom.js";
import { between, duration } from "../units.js";

/** @typedef {{ trace: string, changes: { name: string, title: string, help: string }[], kernels: string[], ranges: string[], ranks: number[] | null }} Data */

/** @param {HTMLElement} element @param {Data} data */
export function draw(element, data) {
  const bars = make("div", { class: "whatif-bars", "aria-live": "polite" });
  const command = make("code");
  const copy = make("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  const copied = make("div", "copied", make("pre", "", command), copy);
  enliven(copy);
  const lines = make("dl", "whatif-lines small");
  const answer = make("section", "panel whatif-answer", bars, lines, copied);

  const switches = data.changes.map((one) => toggle(one));
  const host = slider("Host work", "all host work takes this part of its time");
  const transfers = slider("Transfers", "transfers between ranks take this part of their time");
  const median = toggle({ name: "like_median", title: "Ranks like the median", help: "the ranks take no longer for anything than the median" });
  const ranks = make("input", { type: "text", placeholder: "all", "aria-label": "Ranks that are changed" });
  const kernels = patterns("Kernels and copies", "*gemm*", data.kernels, "kernel-names");
  const ranges = patterns("Operators and ranges", "Optimizer.step*", data.ranges, "range-names");
  const reset = button("Reset", () => {
    for (const one of [...switches, median]) one.input.checked = false;
    for (const one of [host, transfers]) one.set("1");
    ranks.value = "";
    kernels.clear();
    ranges.clear();
    changed();
  });
  const ofRun = data.ranks
    ? [median.row, transfers.row, make("label", "whatif-slider", make("span", "", "Ranks"), ranks)]
    : [];
  // A file knows what changes with a name do, and cannot simulate others.
  const scale = SAVED ? [] : [make("section", "panel", make("h3", "", "Scale"), host.row, ...ofRun, kernels.box, ranges.box, reset)];
  element.replaceChildren(
    answer,
    make("div", "whatif-controls",
      make("section", "panel", make("h3", "", "Change"), ...switches.map((one) => one.row)), ...scale),
  );

  const wish = () => ({
    named: switches.filter((one) => one.input.checked).map((one) => one.name),
    kernels: kernels.pairs(), ranges: ranges.pairs(),
    host: `x${host.input.value}`, transfers: `x${transfers.input.value}`, like_median: median.input.checked,
    ranks: ranks.value.split(/[\s,]+/).filter(Boolean).map(Number).filter(Number.isInteger),
  });
  let asking = false;
  let again = false;

  // One question at a time, and none waits for a clock: what was moved meanwhile is asked for as soon as an answer is here.
  // So a slider that is dragged shows answers all the way, and the last one is that of where it was left.
  async function changed() {
    again = true;
    if (asking) return;
    asking = true;
    while (again) {
      again = false;
      try {
        show(await askWith("whatif", { trace: data.trace }, wish()));
      } catch (error) {
        bars.replaceChildren(problem(error));
      }
    }
    asking = false;
  }

  /** @param {any} found */
  function show(found) {
    /** @type {[string, [number, number], string][]} */
    const rows = [["recorded", [found.recorded_ns, found.recorded_ns], "other"]];
    if (found.unprofiled_ns) rows.push(["without the profiler", found.unprofiled_ns, "low"]);
    rows.push(["changed", found.changed_ns ?? found.unprofiled_ns ?? [found.recorded_ns, found.recorded_ns], "device"]);
    const top = Math.max(...rows.map((row) => row[1][1]));
    const said = found.changed_ns
      ? (found.lines.find((/** @type {string[]} */ line) => line[0] === "changed") ?? ["", ""])[1]
      : "Nothing is changed yet: switch something on.";
    bars.replaceChildren(
      make("p", "whatif-said", said),
      ...rows.map(([name, ends, colour]) => bar(name, ends, top, colour)),
    );
    lines.replaceChildren(...found.lines.flatMap((/** @type {string[]} */ [label, text]) => [make("dt", "", label), make("dd", "", text)]));
    command.textContent = found.command;
    copied.hidden = !found.command;
    element.dataset.answered = String(Number(element.dataset.answered ?? 0) + 1);
  }

  element.addEventListener("input", changed);
  element.addEventListener("patterns", changed);
  changed().then(() => ask("whatif", { trace: data.trace, each: 1 })).then((each) => {
    for (const one of switches) one.tell(each.gains[one.name]);
  }).catch(() => {});  // what each gains alone is an extra
}

/** @param {string} name @param {number[]} ends @param {number} top @param {string} colour */
function bar(name, [low, high], top, colour) {
  const track = make("div", "whatif-track");
  const sure = make("div", `whatif-bar ${colour}`);
  sure.style.width = `${low / top * 100}%`;
  track.append(sure);
  if (high > low) {
    const perhaps = make("div", `whatif-bar perhaps ${colour}`);
    perhaps.style.left = `${low / top * 100}%`;
    perhaps.style.width = `${(high - low) / top * 100}%`;
    track.append(perhaps);
  }
  const text = duration(low) === duration(high) ? duration(low) : between(low, high);
  return make("div", "whatif-row", make("span", "", name), track, make("span", "number", text));
}

/** What stands between backticks is code. @param {string} text */
function coded(text) {
  return text.split("`").map((piece, place) => (place % 2 ? make("code", "", piece) : piece));
}

/** @param {{ name: string, title: string, help: string }} one */
function toggle(one) {
  const input = make("input", { type: "checkbox", role: "switch", name: one.name });
  const gain = make("span", "number small whatif-gain muted");
  const row = make("label", "whatif-switch", input,
    make("span", "", make("span", "strong", one.title), make("span", "small muted help", ...coded(one.help))), gain);
  /** @param {number[] | undefined} gains */
  const tell = (gains) => {
    if (!gains?.length) return;
    const ends = gains.map((value) => Math.max(0, Math.round(value * 100)));
    gain.textContent = ends[1] < 1 ? "no gain" : `${ends[0] === ends[1] ? ends[0] : ends[0] ? ends.join("–") : `up to ${ends[1]}`} % shorter`;
    gain.title = "what it gains alone";
  };
  return { name: one.name, input, row, tell };
}

/** @param {string} title @param {string} help */
function slider(title, help) {
  const input = make("input", { type: "range", min: 0, max: 2, step: 0.05, value: 1 });
  const told = make("output", "number", "×1");
  const row = make("label", { class: "whatif-slider", title: help }, make("span", "", title), input, told);
  input.addEventListener("input", () => { told.textContent = `×${input.value}`; });
  return { input, row, set: (/** @type {string} */ value) => { input.value = value; told.textContent = `×${value}`; } };
}

/** @param {string} title @param {string} example @param {string[]} names @param {string} id */
function patterns(title, example, names, id) {
  const list = make("datalist", { id }, ...names.map((name) => make("option", { value: name })));
  const rows = make("div", "whatif-patterns");
  const add = button("Add a pattern", () => one().focus(), "small");
  const box = make("div", "whatif-scaled", make("h4", "", title), list, rows, add);
  const one = () => {
    const pattern = make("input", { type: "text", list: id, placeholder: example, "aria-label": `${title}: name or pattern` });
    const times = make("input", { type: "range", min: 0, max: 2, step: 0.05, value: 0.5, "aria-label": `${title}: factor` });
    const told = make("output", "number", "×0.5");
    const remove = button("×", () => {
      row.remove();
      box.dispatchEvent(new Event("patterns", { bubbles: true }));
    }, { "aria-label": "Remove the pattern" });
    const row = make("div", "whatif-pattern", pattern, times, told, remove);
    times.addEventListener("input", () => { told.textContent = `×${times.value}`; });
    rows.append(row);
    return pattern;
  };
  const pairs = () => [...rows.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value))
    .filter(([pattern]) => pattern).map(([pattern, times]) => [pattern, `x${times}`]);
  return { box, pairs, clear: () => rows.replaceChildren() };
}
