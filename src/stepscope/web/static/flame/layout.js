// @ts-check
// Where the bars of a flame graph lie: from paths, from calls in time, or from stacks of samples.

/**
 * @typedef {{ kind: "paths", names: string[], kinds: string[], name: number[], of: number[], parent: number[], total: number[],
 *   device: number[], unit: string }} Paths
 * @typedef {{ kind: "calls", names: string[], kinds: string[], name: number[], of: number[], start: number[], length: number[],
 *   unit: string }} Calls
 * @typedef {{ kind: "stacks", names: string[], kinds: string[], of: number[], stacks: number[][], weights: number[], unit: string }} Stacks
 * @typedef {{ names: string[], kinds: string[], name: Int32Array, of: Int32Array, parent: Int32Array, depth: Int32Array,
 *   low: Float64Array, high: Float64Array, device: Float64Array | null, levels: number[][], end: number, unit: string,
 *   timed: boolean }} Layout
 */

/** @param {Paths | Calls | Stacks} data @returns {Layout} */
export function layout(data) {
  if (data.kind === "calls") return ofCalls(data);
  return data.kind === "paths" ? ofPaths(data) : ofPaths(pathsOf(data));
}

/** Largest first inside each path: left-heavy. @param {Paths} data @returns {Layout} */
function ofPaths(data) {
  const count = data.name.length;
  /** @type {number[][]} */
  const inside = Array.from({ length: count + 1 }, () => []);
  for (let at = 0; at < count; at++) inside[data.parent[at] < 0 ? count : data.parent[at]].push(at);
  const found = empty(data, count, false);
  let end = 0;
  /** @type {number[]} */
  const stack = [];
  const push = (/** @type {number[]} */ nodes, /** @type {number} */ low, /** @type {number} */ depth) => {
    nodes.sort((one, other) => data.total[other] - data.total[one] || one - other);
    for (const at of nodes) {
      found.low[at] = low;
      found.high[at] = low += data.total[at];
      found.depth[at] = depth;
    }
    end = Math.max(end, low);
    for (let nth = nodes.length - 1; nth >= 0; nth--) stack.push(nodes[nth]);
  };
  push(inside[count], 0, 0);
  for (let at = stack.pop(); at !== undefined; at = stack.pop()) {
    (found.levels[found.depth[at]] ??= []).push(at);
    push(inside[at], found.low[at], found.depth[at] + 1);
  }
  found.parent = Int32Array.from(data.parent);
  found.name = Int32Array.from(data.name);
  found.of = Int32Array.from(data.of);
  found.device = Float64Array.from(data.device);
  found.end = end || 1;
  return found;
}

/** Each call below those that are open when it begins. @param {Calls} data @returns {Layout} */
function ofCalls(data) {
  const count = data.name.length;
  const found = empty(data, count, true);
  const order = Array.from({ length: count }, (_, at) => at);
  order.sort((one, other) => data.start[one] - data.start[other] || data.length[other] - data.length[one] || one - other);
  /** @type {number[]} */
  const open = [];
  order.forEach((from, at) => {
    const start = data.start[from];
    while (open.length && found.high[open[open.length - 1]] <= start) open.pop();
    found.parent[at] = open.length ? open[open.length - 1] : -1;
    found.depth[at] = open.length;
    found.low[at] = start;
    // Clocks differ by a little: what seems to outlast its caller ends with it.
    const end = start + data.length[from];
    found.high[at] = open.length ? Math.min(end, found.high[open[open.length - 1]]) : end;
    found.name[at] = data.name[from];
    found.of[at] = data.of[from];
    (found.levels[found.depth[at]] ??= []).push(at);
    found.end = Math.max(found.end, found.high[at]);
    open.push(at);
  });
  return found;
}

/** The tree of all stacks, each frame with what is above it. @param {Stacks} data @returns {Paths} */
function pathsOf(data) {
  /** @type {Paths} */
  const paths = { kind: "paths", names: data.names, kinds: data.kinds, name: [], of: [], parent: [], total: [], device: [], unit: data.unit };
  /** @type {Map<string, number>} */
  const known = new Map();
  data.stacks.forEach((stack, nth) => {
    let around = -1;
    for (const frame of stack) {
      const key = `${around} ${frame}`;
      let at = known.get(key);
      if (at === undefined) {
        at = paths.name.length;
        known.set(key, at);
        paths.name.push(frame);
        paths.of.push(data.of[frame]);
        paths.parent.push(around);
        paths.total.push(0);
        paths.device.push(0);
      }
      paths.total[at] += data.weights[nth];
      around = at;
    }
  });
  return paths;
}

/** @param {{ names: string[], kinds: string[], unit: string }} data @param {number} count @param {boolean} timed @returns {Layout} */
function empty(data, count, timed) {
  return {
    names: data.names,
    kinds: data.kinds,
    name: new Int32Array(count),
    of: new Int32Array(count),
    parent: new Int32Array(count).fill(-1),
    depth: new Int32Array(count),
    low: new Float64Array(count),
    high: new Float64Array(count),
    device: null,
    levels: [],
    end: 1,
    unit: data.unit,
    timed,
  };
}
