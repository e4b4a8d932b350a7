// Who exchanges with whom, as SVG: members on circles, a line to each member from those whose updates went into its
// newest round. Lines light up as rounds are closed. Lines of exchanges that are counted are as broad as there were many. Places follow from the members' order: nothing has to settle.

const WIDTH = 1000, HEIGHT = 520;
const NAMED = 48; // members of a run that stand on a circle with their names; more would lie over each other
const FEW = 10; // members whose names stand as one reads
const NAME = 74; // units that a name is long
const LINE = 15; // units that a name is high
const FLASH_MS = 900;
const WEIGHTS = [1, 2, 3, 4]; // breadths of lines

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// Where each member stands: every run has a cell, in it a circle, or from NAMED members on a spiral without a middle.
// `names`: whether there is room for names, which stand in the direction of the radius.
function places(runs, width) {
  const even = Math.max(1, Math.round(Math.sqrt((runs.length * width) / HEIGHT / 1.4)));
  const columns = Math.min(runs.length, width > 700 ? Math.max(3, even) : even);
  const rows = Math.ceil(runs.length / columns);
  const spots = new Map();
  runs.forEach((members, run) => {
    const x = ((run % columns) + 0.5) * (width / columns), y = (Math.floor(run / columns) + 0.5) * (HEIGHT / rows);
    const many = members.length > NAMED;
    const reach = (below, beside) => {
      const high = Math.max(30, HEIGHT / rows / 2 - below);
      return [Math.max(30, Math.min(width / columns / 2 - beside, high * 1.6)), high];
    };
    let [wide, high] = reach(members.length <= FEW ? 34 : NAME, NAME);
    const names = !many && 2 * Math.PI * Math.min(wide, high) > LINE * members.length;
    if (!names) [wide, high] = reach(20, 20);
    const apart = many ? Math.sqrt((wide * high) / members.length) : (2 * Math.PI * Math.min(wide, high)) / members.length;
    const size = Math.max(2, Math.min(9, apart / 2.4));
    members.forEach((member, k) => {
      const angle = many ? k * 2.39996 : (2 * Math.PI * k) / members.length - Math.PI / 2;
      const far = members.length === 1 ? 0 : many ? Math.sqrt((k + 0.5) / members.length) : 1;
      spots.set(member, { x: x + wide * far * Math.cos(angle), y: y + high * far * Math.sin(angle), angle, names, size, radial: members.length > FEW });
    });
  });
  return spots;
}

// A member's name beside it: of a few members as one reads, of more in the direction of the radius.
function label(name, { angle, radial, size }) {
  const text = name.length > 16 ? `${name.slice(0, 14)}..` : name;
  const side = Math.cos(angle);
  if (radial) {
    const turn = (angle * 180) / Math.PI;
    const back = side < -1e-6;
    return element("text", { x: (back ? -1 : 1) * (size + 5), y: 4, transform: `rotate(${(back ? turn - 180 : turn).toFixed(1)})`, "text-anchor": back ? "end" : "start" }, text);
  }
  const middle = Math.abs(side) < 0.2;
  const above = Math.sin(angle) < 0;
  return element("text", { x: middle ? 0 : Math.sign(side) * (size + 6), y: middle ? (above ? -size - 7 : size + 17) : 4, "text-anchor": middle ? "middle" : side > 0 ? "start" : "end" }, text);
}

export class Exchanges {
  constructor(svg) {
    this.svg = svg;
    this.lines = element("g", { class: "exchanges" });
    this.dots = element("g");
    svg.append(this.lines, this.dots);
    this.shape = "";
    this.paths = new Map();
  }

  // `members`: {name, run, kind, words, rounds_done, dim: whether its lines are faint, else by kind}; `exchanges`: [author, reader, staleness, weight 1 to 4 or none]
  draw(members, exchanges) {
    const width = Math.max(320, Math.min(WIDTH, this.svg.clientWidth || WIDTH));
    const runs = grouped(members);
    const shape = JSON.stringify([width, members.map((it) => [it.name, it.run])]);
    if (shape !== this.shape) this.place(members, runs, width);
    this.shape = shape;
    members.forEach((it, n) => this.mark(n, it));
    const of = new Map();
    for (const [author, reader, , weight] of exchanges) {
      const key = `${reader} ${weight || 1}`;
      if (!of.has(key)) of.set(key, []);
      of.get(key).push(author);
    }
    members.forEach((it, n) => WEIGHTS.forEach((weight) => this.line(n, it, weight, of.get(`${n} ${weight}`) || [])));
  }

  place(members, runs, width) {
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.spots = places(runs, width);
    this.lines.replaceChildren();
    this.paths.clear();
    this.marks = members.map((it, n) => {
      const spot = this.spots.get(n);
      const group = element("g", { transform: `translate(${spot.x.toFixed(1)} ${spot.y.toFixed(1)})` });
      const cross = spot.size * 0.9;
      group.append(element("title"), element("circle", { r: spot.size }), element("path", { class: "cross", d: `M${-cross} ${-cross}L${cross} ${cross}M${-cross} ${cross}L${cross} ${-cross}` }));
      if (spot.names) group.append(label(it.name, spot));
      const light = (is) => WEIGHTS.forEach((weight) => this.paths.get(`${n} ${weight}`)?.path.classList.toggle("on", is));
      group.addEventListener("mouseenter", () => light(true));
      group.addEventListener("mouseleave", () => light(false));
      return group;
    });
    this.dots.replaceChildren(...this.marks);
  }

  mark(n, it) {
    const kind = `member ${it.kind}`;
    if (this.marks[n].getAttribute("class") !== kind) this.marks[n].setAttribute("class", kind);
    const title = this.marks[n].firstChild;
    if (title.textContent !== it.words) title.textContent = it.words;
  }

  line(n, it, weight, from) {
    let d = "";
    const { x, y } = this.spots.get(n), key = `${n} ${weight}`;
    for (const author of from) {
      const { x: u, y: v } = this.spots.get(author);
      d += `M${u.toFixed(0)} ${v.toFixed(0)}Q${((x + u) / 2 + 0.12 * (y - v)).toFixed(0)} ${((y + v) / 2 - 0.12 * (x - u)).toFixed(0)} ${x.toFixed(0)} ${y.toFixed(0)}`;
    }
    let known = this.paths.get(key);
    if (!known && !d) return;
    if (!known) {
      known = { path: element("path", { "stroke-width": weight }), d: "", round: it.rounds_done };
      this.paths.set(key, known);
      this.lines.append(known.path);
    }
    if (known.d !== d) known.path.setAttribute("d", d);
    known.d = d;
    known.path.classList.toggle("dim", it.dim ?? it.kind !== "good");
    if (known.round !== it.rounds_done) {
      known.path.classList.add("fresh");
      setTimeout(() => known.path.classList.remove("fresh"), FLASH_MS);
    }
    known.round = it.rounds_done;
  }
}

// The members' numbers by run.
function grouped(members) {
  const runs = new Map();
  members.forEach((it, n) => { if (!runs.has(it.run)) runs.set(it.run, []); runs.get(it.run).push(n); });
  return [...runs.values()];
}
