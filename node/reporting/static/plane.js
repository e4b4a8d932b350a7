// Points on a plane as SVG: what a method costs against what it reaches, with intervals, and the Pareto front joined.

const WIDTH = 1000, HEIGHT = 420;
const EDGE = { left: 64, right: 190, top: 14, bottom: 44 };
const NARROW = 600; // pixels below which names are shorter and the plane is as wide as a phone
const LETTER = 6.9; // units that a letter is wide

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// Marks of an axis: 1, 2 and 5 times a power of ten on a logarithmic one, five even ones else.
function marks(low, high, log, narrow = false) {
  const found = [];
  if (log) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const each of [1, 2, 5]) found.push(each * 10 ** power);
    }
    const inside = found.filter((value) => value >= low && value <= high);
    return inside.length > (narrow ? 3 : 6) ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : inside;
  }
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

// `points`: {name, x, y, half, front}, x above 0. `xText`, `yText`: numbers in words. `narrow`: for a phone.
export const isNarrow = () => innerWidth < NARROW;

export function plane({ id, title, x, unit, points, xText, yText, narrow }) {
  const width = narrow ? 350 : WIDTH;
  const svg = element("svg", { id, class: "plane", role: "img", viewBox: `0 0 ${width} ${HEIGHT}` });
  const front = points.filter((point) => point.front);
  svg.setAttribute("aria-label", `${title}: ${points.length} points; on the front ${front.map((point) => point.name).join(", ") || "none"}`);
  const xs = points.map((point) => point.x), ys = points.flatMap((point) => [point.y - (point.half || 0), point.y + (point.half || 0)]);
  const [x0, x1] = [Math.min(...xs) / 1.25, Math.max(...xs) * 1.25];
  const slack = (Math.max(...ys) - Math.min(...ys)) * 0.06 || Math.abs(ys[0]) * 0.1 || 1;
  const [y0, y1] = [Math.min(...ys) - slack, Math.max(...ys) + slack];
  const right = width - (narrow ? 14 : EDGE.right), below = HEIGHT - EDGE.bottom;
  const across = (value) => EDGE.left + ((Math.log(value) - Math.log(x0)) / (Math.log(x1) - Math.log(x0))) * (right - EDGE.left);
  const up = (value) => below - ((value - y0) / (y1 - y0)) * (below - EDGE.top);
  for (const value of marks(x0, x1, true, narrow)) {
    svg.append(element("line", { class: "axis", x1: across(value), x2: across(value), y1: EDGE.top, y2: below }));
    svg.append(element("text", { x: across(value), y: below + 16, "text-anchor": "middle" }, xText(value)));
  }
  for (const value of marks(y0, y1, false)) {
    svg.append(element("line", { class: "axis", x1: EDGE.left, x2: right, y1: up(value), y2: up(value) }));
    svg.append(element("text", { x: EDGE.left - 6, y: up(value) + 4, "text-anchor": "end" }, yText(value)));
  }
  svg.append(element("text", { x: (EDGE.left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x));
  svg.append(element("text", { x: 12, y: (EDGE.top + below) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(EDGE.top + below) / 2})` }, unit));
  front.sort((a, b) => a.x - b.x);
  if (front.length > 1) {
    const steps = front.map((point, n) => (n ? `H${across(point.x).toFixed(1)}V${up(point.y).toFixed(1)}` : `M${across(point.x).toFixed(1)} ${up(point.y).toFixed(1)}`));
    svg.append(element("path", { class: "stairs", d: steps.join("") }));
  }
  const taken = points.map((point) => [across(point.x) - 6, up(point.y) - 6, across(point.x) + 6, up(point.y) + 6]);
  for (const point of [...points].sort((a, b) => b.front - a.front)) {
    const group = element("g", { class: point.front ? "point front" : "point" });
    const [u, v] = [across(point.x), up(point.y)];
    group.append(element("title", {}, `${point.name}: ${xText(point.x)}, ${yText(point.y)}${point.half ? ` ± ${yText(point.half)}` : ""}${point.front ? ", on the front" : ""}`));
    if (point.half) group.append(element("line", { class: "half", x1: u, x2: u, y1: up(point.y - point.half), y2: up(point.y + point.half) }));
    group.append(element("circle", { cx: u, cy: v, r: point.front ? 6 : 4.5 }));
    named(group, point.name, u, v, width, taken, narrow ? 16 : 34, point.front && front.length > 1);
    svg.append(group);
  }
  return svg;
}

// A name beside its point, above or below it; none where every place is taken: the table has all.
function named(group, name, u, v, width, taken, most, isJoined) {
  const words = name.length > most ? `${name.slice(0, most - 2)}..` : name;
  const long = words.length * LETTER;
  const beside = isJoined ? [] : [[9, 4, "start"], [-9, 4, "end"]]; // where the front's line runs
  for (const [du, dv, anchor] of [...beside, [9, -10, "start"], [9, 18, "start"], [-9, -10, "end"], [-9, 18, "end"]]) {
    const from = anchor === "start" ? u + du : u + du - long;
    const box = [from, v + dv - 11, from + long, v + dv + 3];
    if (from < EDGE.left || box[2] > width || taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
    taken.push(box);
    group.append(element("text", { x: u + du, y: v + dv, "text-anchor": anchor }, words));
    return;
  }
}
