// @ts-check
// Rank by step on a canvas: a row is a rank, a column a step; 1,024 ranks are as quick as four.

import { ask, problem } from "../asking.js";
import { colour, make, redrawn } from "../dom.js";
import { duration } from "../units.js";

const LEFT = 64;

/** @param {HTMLElement} element @param {{ figures: [string, string][], timeline: string }} data */
export function draw(element, data) {
  const options = data.figures.map(([name, title]) => make("option", { value: name }, title));
  const choice = make("select", { "aria-label": "Figure" }, ...options);
  const told = make("span", "small muted heat-told");
  const canvas = make("canvas", { tabindex: 0, role: "img" });
  const box = make("div", "heat-box", canvas);
  element.replaceChildren(make("div", "heat-head", choice, told), box);
  /** @type {any} */ let found;
  /** @type {Float64Array} */ let values;
  /** @type {Float64Array} */ let steps;
  let cell = { width: 1, height: 1 };
  let most = 1;

  async function load() {
    try {
      found = await ask("rank_steps", { figure: choice.value });
    } catch (error) {
      box.replaceChildren(problem(error));
      return;
    }
    values = new Float64Array(found.ranks.length * found.columns).fill(NaN);
    steps = new Float64Array(values.length).fill(NaN);
    const rows = new Map(found.ranks.map((/** @type {number} */ rank, /** @type {number} */ place) => [rank, place]));
    most = 1;
    for (let i = 0; i < found.rank.length; i++) {
      const at = rows.get(found.rank[i]) * found.columns + found.place[i];
      values[at] = found.value[i];
      steps[at] = found.step[i];
      most = Math.max(most, found.value[i]);
    }
    canvas.setAttribute("aria-label", `${title()} of ${found.ranks.length} ranks, at most ${duration(most)}`);
    told.textContent = summary();
    paint();
  }

  const title = () => choice.selectedOptions[0].textContent ?? "";
  const summary = () => `at most ${duration(most)}${found.every > 1 ? `; the longest of every ${found.every} steps` : ""}`;

  function paint() {
    if (!found) return;
    const device = colour("device");
    const wide = Math.max(120, box.clientWidth - 2);
    cell = {
      width: (wide - LEFT) / found.columns,
      height: Math.max(3, Math.min(20, Math.floor(420 / found.ranks.length))),
    };
    const high = cell.height * found.ranks.length;
    const scale = devicePixelRatio || 1;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(high * scale);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(scale, scale);
    const gap = cell.height > 6 ? 1 : 0;
    const between = cell.width > 6 ? 1 : 0;
    for (let row = 0; row < found.ranks.length; row++) {
      for (let column = 0; column < found.columns; column++) {
        const value = values[row * found.columns + column];
        if (Number.isNaN(value)) continue;
        context.globalAlpha = 0.06 + 0.94 * value / most;
        context.fillStyle = device;
        context.fillRect(LEFT + column * cell.width, row * cell.height, cell.width - between, cell.height - gap);
      }
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("muted");
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.ceil(13 / cell.height);
    for (let row = 0; row < found.ranks.length; row += every) {
      context.fillText(`rank ${found.ranks[row]}`, LEFT - 8, (row + 0.5) * cell.height);
    }
  }

  /** @param {MouseEvent} event */
  function at(event) {
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left - LEFT) / cell.width);
    const row = Math.floor((event.clientY - place.top) / cell.height);
    if (!found || column < 0 || column >= found.columns || row < 0 || row >= found.ranks.length) return null;
    const index = row * found.columns + column;
    return Number.isNaN(values[index]) ? null : { rank: found.ranks[row], host: found.hosts[row], step: steps[index], value: values[index] };
  }

  choice.addEventListener("change", load);
  canvas.addEventListener("pointermove", (event) => {
    const one = at(event);
    canvas.style.cursor = one ? "pointer" : "default";
    told.textContent = one
      ? `rank ${one.rank}${one.host ? ` on ${one.host}` : ""}, step ${one.step}: ${duration(one.value)}`
      : summary();
  });
  canvas.addEventListener("pointerleave", () => { if (found) told.textContent = summary(); });
  canvas.addEventListener("click", (event) => {
    const one = at(event);
    if (one) location.href = `${data.timeline}?rank=${one.rank}&step=${one.step}`;
  });
  redrawn(box, paint);
  load();
}
