// The swarm on a canvas: this node in the middle, its neighbours around it, the others on rings further out. Places
// follow from the order of names, so that nothing moves while nobody comes or goes, and nothing has to settle first.

import { colour } from "./chart.js";
import { pausedUntil, short } from "./words.js";

const GAP = 15; // pixels between two members on a ring, at the least while there is room
const LABELS = 16; // neighbours that are named in the picture; more would lie over each other
const LABEL = 64; // pixels that a name is wide
const STYLES = { good: "--good", warn: "--warn", bad: "--bad", other: "--edge" };

// The canvas at the screen's own resolution, cleared; sizes are in CSS pixels.
function surface(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
}

const clip = (name) => (name.length > 14 ? `${name.slice(0, 12)}..` : name);

// A score of 0 is spotless, 100 a ban. Who says that it is paused hides no charge by that.
export function trust(it) {
  if (it.banned || it.score >= 100) return ["bad", "banned"];
  const paused = it.here && it.paused ? pausedUntil(it.returns_at) : "";
  if (it.score >= 1) return ["warn", [it.score >= 50 ? "near a ban" : "charged", paused].filter(Boolean).join(", ")];
  return ["good", paused || "no offence"];
}

// Members of `graph` (numbers, the first is this node) with a kind each, and edges, those to live neighbours included.
function cast(graph, peers, me) {
  const members = graph.members.length ? graph.members.slice() : [me];
  const number = new Map(members.map((member, n) => [member, n]));
  const kinds = members.map(() => "other");
  kinds[0] = "self";
  const seen = new Set(graph.edges.map(([a, b]) => `${a} ${b}`));
  const edges = graph.edges.slice();
  for (const [peer, it] of peers) {
    if (!it.here) continue;
    if (!number.has(peer)) {
      number.set(peer, members.length);
      members.push(peer);
    }
    const n = number.get(peer);
    kinds[n] = trust(it)[0];
    if (!seen.has(`0 ${n}`)) edges.push([0, n]);
  }
  const names = new Map(peers.map(([peer, it]) => [peer, it.name ? clip(it.name) : short(peer)]));
  return { members, kinds, edges, labels: members.map((member) => names.get(member) || short(member)) };
}

function place({ kinds }, width, height) {
  const near = [], far = [];
  kinds.forEach((kind, n) => n && (kind === "other" ? far : near).push(n));
  const spots = new Array(kinds.length);
  spots[0] = [width / 2, height / 2];
  const outer = [Math.max(40, width / 2 - (far.length ? 0 : LABEL) - 14), height / 2 - 22];
  const rings = [];
  for (let left = far.length, radius = 0.55; left > 0; radius += 0.13) {
    const fits = Math.max(8, Math.floor((2 * Math.PI * radius * Math.min(...outer)) / GAP));
    rings.push(Math.min(fits, left));
    left -= fits;
  }
  const put = (numbers, share, turn) =>
    numbers.forEach((n, k) => {
      const angle = (2 * Math.PI * (k + turn)) / numbers.length - Math.PI / 2;
      spots[n] = [width / 2 + outer[0] * share * Math.cos(angle), height / 2 + outer[1] * share * Math.sin(angle)];
    });
  put(near, far.length ? 0.38 : 0.8, 0);
  let from = 0;
  rings.forEach((count, ring) => {
    put(far.slice(from, from + count), rings.length > 1 ? 0.55 + (0.45 * ring) / (rings.length - 1) : 0.85, 0.5);
    from += count;
  });
  return spots;
}

function glyph(pen, kind, [x, y], size) {
  pen.fillStyle = colour(kind === "self" ? "--accent" : STYLES[kind]);
  pen.beginPath();
  if (kind === "warn") {
    pen.moveTo(x, y - size - 1);
    pen.lineTo(x + size + 1, y);
    pen.lineTo(x, y + size + 1);
    pen.lineTo(x - size - 1, y);
  } else if (kind === "bad") {
    pen.rect(x - size, y - size, 2 * size, 2 * size);
  } else {
    pen.arc(x, y, size, 0, 2 * Math.PI);
  }
  pen.fill();
}

// `bow`: how far lines bend, so that one between two opposite members does not run through the middle.
function stroke(pen, edges, spots, { name, width, alpha, bow }) {
  pen.strokeStyle = colour(name);
  pen.lineWidth = width;
  pen.globalAlpha = alpha;
  pen.beginPath();
  for (const [a, b] of edges) {
    const [[x, y], [u, v]] = [spots[a], spots[b]];
    pen.moveTo(x, y);
    pen.quadraticCurveTo((x + u) / 2 + bow * (v - y), (y + v) / 2 - bow * (u - x), u, v);
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

export function drawSwarm(canvas, graph, peers, me) {
  const { pen, width, height } = surface(canvas);
  const swarm = cast(graph, peers, me);
  const spots = place(swarm, width, height);
  const many = swarm.members.length > 60;
  const crowd = swarm.edges.length > 500; // lines lie over each other: their sum is what is to be seen
  stroke(pen, swarm.edges.filter(([a]) => a), spots, { name: "--edge", width: 1, alpha: crowd ? 0.15 : many ? 0.4 : 1, bow: 0.15 });
  stroke(pen, swarm.edges.filter(([a]) => !a), spots, { name: "--accent", width: 2, alpha: 1, bow: 0 });
  const sizes = { self: 10, other: crowd ? 2.5 : many ? 3.5 : 5 };
  swarm.kinds.forEach((kind, n) => n && glyph(pen, kind, spots[n], sizes[kind] || 7));
  glyph(pen, "self", spots[0], sizes.self);
  const near = swarm.kinds.flatMap((kind, n) => (n && kind !== "other" ? [n] : []));
  if (near.length <= LABELS) label(pen, near, swarm, spots, width);
  return swarm;
}

function label(pen, numbers, { labels }, spots, width) {
  pen.textBaseline = "middle";
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  pen.strokeStyle = colour("--panel");
  pen.fillStyle = colour("--text");
  for (const n of numbers) {
    const [x, y] = spots[n];
    const right = x >= width / 2 - 1;
    pen.textAlign = right ? "left" : "right";
    pen.strokeText(labels[n], x + (right ? 12 : -12), y);
    pen.fillText(labels[n], x + (right ? 12 : -12), y);
  }
}
