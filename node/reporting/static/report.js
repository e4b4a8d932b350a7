// A report: draws the data that stand in the file. All of it is others' claims: text that stays text.

import { NOTHING, amount, at, copyLine, fixed, isNumber, make, percent, plain, plural, show, size } from "./words.js";
import { Chart, join, redraw } from "./chart.js";
import { Exchanges } from "./exchanges.js";
import { isNarrow, plane } from "./plane.js";

const told = JSON.parse(at("data").textContent);
const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7", "--s8"];
const STATES = { finished: "good", running: "good", done: "good", interrupted: "warn", failed: "bad", dead: "bad" };
const TABLE_ROWS = 25; // of a chart's table: evenly spaced, the first and the last among them
const FRAME_MS = 120;
const SPARSE = 12; // points of a line that are drawn as dots as well
const CROWD = 400; // pairs from which on broad lines would hide each other
const PAIRS = 200; // rows of the table of exchanges
const MARKED = 1500; // moments listed at a time

const FORMATS = {
  plain, amount, bytes: size, share: percent, text: (value) => (value === null || value === "" ? NOTHING : String(value)),
  count: (value) => (isNumber(value) ? String(Number(value.toFixed(2))) : NOTHING),
  seconds: (value) => (isNumber(value) ? spell(value) : NOTHING),
  bits: (value) => (isNumber(value) ? `${Number(value.toPrecision(3))} bits` : NOTHING),
};

function spell(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

const said = (value, format) => (typeof value === "string" ? value || NOTHING : value === null ? NOTHING : FORMATS[format](value));

// ---- words and tables

function table({ title, columns, formats, rows, note, folded }, parent) {
  const panel = make("section", "panel");
  const heading = make("h2", "", title);
  const scroll = make("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", title);
  scroll.append(grid(columns, formats, rows, "cards"));
  panel.append(heading);
  if (folded) {
    const more = make("details");
    more.append(make("summary", "", "Show"), scroll);
    panel.append(more);
  } else panel.append(scroll);
  if (note) panel.append(make("p", "note", note));
  parent.append(panel);
}

function grid(columns, formats, rows, kind = "") {
  const made = make("table", kind);
  const head = made.createTHead().insertRow();
  const right = columns.map((_, n) => n > 0 && formats[n] !== "text");
  columns.forEach((name, n) => {
    const cell = make("th", right[n] ? "n" : "", name);
    cell.scope = "col";
    head.append(cell);
  });
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, n) => {
      const cell = make(n ? "td" : "th", right[n] ? "n" : "", said(value, formats[n]));
      if (!n) cell.scope = "row";
      if (n) cell.dataset.label = columns[n];
      if (columns[n] === "End" || columns[n] === "State") cell.className = STATES[String(value).split(" ")[0]] || "";
      line.append(cell);
    });
  }
  return made;
}

function tile({ title, value, format, detail, tip, wide }) {
  const made = make("div", `tile ${wide ? "wide" : ""}`);
  if (tip) made.title = tip;
  const line = make("p");
  line.append(make("b", "", said(value, format)), document.createTextNode(" "), make("span", "", detail));
  made.append(make("h2", "", title), line);
  return made;
}

// ---- charts, each with a table of the same numbers

const evenly = (rows, most) => (rows.length <= most ? rows : Array.from({ length: most }, (_, n) => rows[Math.floor((n * (rows.length - 1)) / (most - 1))]));

function lineChart(spec, parent) {
  const lines = spec.lines.filter((line) => line.points.length);
  if (!lines.length) return;
  const xText = FORMATS[spec.x_format], yText = FORMATS[spec.y_format];
  const isRounds = spec.x_format === "count";
  const chart = new Chart(parent, {
    id: spec.id, title: spec.title, unit: spec.unit, wide: spec.wide, format: yText, tick: yText, x: spec.x,
    xFormat: isRounds ? undefined : xText, xLog: spec.x_log, fromZero: spec.from_zero, log: spec.y_format !== "share",
    series: lines.flatMap((line, n) => seriesOf(line, n, spec.dots)),
  }, isRounds ? "rounds" : spec.id);
  chart.set(join(lines.map((line) => (banded(line) ? [0, 1, 3, 2] : [0, 1]).map((index) => line.points.map((point) => point[index])))));
  const rows = lines.flatMap((line) => evenly(line.points, Math.max(5, Math.floor(TABLE_ROWS / lines.length))).map(([x, y, low, high]) => [line.name, xText(x), yText(y), isNumber(low) ? `${yText(low)} to ${yText(high)}` : NOTHING]));
  numbers(chart.panel, spec.title, ["Line", spec.x, spec.title, "95% interval"], ["text", "text", "text", "text"], rows);
}

const banded = (line) => line.points.some((point) => isNumber(point[2]));

function seriesOf(line, n, dots) {
  const colour = COLOURS[n % COLOURS.length];
  const own = { name: line.name, colour, dots: dots || line.points.length <= SPARSE };
  return banded(line) ? [own, { name: "upper", colour, band: true }, { name: "lower", colour, band: true, fill: true }] : [own];
}

function numbers(panel, title, columns, formats, rows) {
  const more = make("details");
  const scroll = make("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", `Numbers of ${title}`);
  scroll.append(grid(columns, formats, rows, "plain"));
  more.append(make("summary", "", "Table"), scroll);
  panel.append(more);
}

function scatter(spec, parent) {
  const points = spec.points.filter((point) => point.x > 0);
  if (!points.length) return;
  const panel = make("section", "panel wide");
  const heading = make("h2", "", spec.unit ? `${spec.title} (${spec.unit})` : spec.title);
  heading.id = `${spec.id}-title`;
  panel.setAttribute("aria-labelledby", heading.id);
  const legend = make("p", "legend");
  legend.append(make("span", "key self", "on the Pareto front: none has less loss for as few bytes"), make("span", "key other", "others"));
  const drawn = () => plane({ ...spec, points, xText: FORMATS[spec.x_format], yText: plain, narrow: isNarrow() });
  let svg = drawn(), narrow = isNarrow();
  panel.append(heading, legend, svg);
  addEventListener("resize", () => {
    if (narrow === isNarrow()) return;
    narrow = isNarrow();
    const again = drawn();
    svg.replaceWith(again);
    svg = again;
  });
  const rows = [...points].sort((a, b) => a.x - b.x).map((point) => [point.name, point.x, point.y, point.half, point.front ? "front" : ""]);
  numbers(panel, spec.title, ["Point", spec.x, spec.unit || "value", "± 95%", "Front"], ["text", spec.x_format, "plain", "plain", "text"], rows);
  parent.append(panel);
}

function section(spec, parent) {
  const group = make("section", "group");
  const heading = make("h2", "", spec.title);
  heading.id = `section-${spec.id}`;
  group.setAttribute("aria-labelledby", heading.id);
  group.append(heading);
  if (spec.note) group.append(make("p", "note", spec.note));
  parent.append(group);
  const charts = make("div", "charts two");
  group.append(charts);
  for (const chart of spec.charts) (chart.kind === "scatter" ? scatter : lineChart)(chart, charts);
  for (const each of spec.tables) if (each.rows.length) table(each, group);
}

// ---- the timeline

class Player {
  constructor(timeline) {
    this.it = timeline;
    this.frame = timeline.frames.length - 1;
    this.timer = null;
    this.exchanges = new Exchanges(at("exchanges"));
    this.shown = new Set(Object.keys(timeline.counts).filter((kind) => kind !== "round" && kind !== "refusal"));
    at("timeline").hidden = false;
    show("timeline-note", timeline.note);
    at("slider").max = Math.max(0, this.frame);
    at("slider").addEventListener("input", () => { this.stop(); this.go(Number(at("slider").value)); });
    at("window").addEventListener("change", () => this.draw());
    at("play").addEventListener("click", () => this.toggle());
    at("timeline").addEventListener("keydown", (event) => this.key(event));
    this.kinds();
    this.list();
    this.go(this.frame);
    new ResizeObserver(() => this.draw()).observe(at("exchanges"));
  }

  kinds() {
    for (const [kind, count] of Object.entries(this.it.counts)) {
      const button = make("button", "tool", `${kind} ${count}`);
      button.type = "button";
      button.setAttribute("aria-pressed", String(this.shown.has(kind)));
      button.addEventListener("click", () => {
        if (!this.shown.delete(kind)) this.shown.add(kind);
        button.setAttribute("aria-pressed", String(this.shown.has(kind)));
        this.list();
        this.mark();
      });
      at("kinds").append(button);
    }
  }

  list() {
    const listed = this.it.moments.filter(([, , kind]) => this.shown.has(kind));
    this.rows = listed.slice(0, MARKED).map(([seconds, member, kind, words]) => {
      const row = make("li"), button = make("button");
      button.type = "button";
      button.append(make("span", "when", spell(seconds)), document.createTextNode(kind === "partition" || member < 0 ? words : `${this.it.members[member][0]} ${words}`));
      button.addEventListener("click", () => { this.stop(); this.go(this.at(seconds)); });
      row.append(button);
      row.seconds = seconds;
      return row;
    });
    at("moments").replaceChildren(...this.rows);
    const counted = [...this.shown].reduce((sum, kind) => sum + (this.it.counts[kind] || 0), 0);
    show("moments-note", counted > this.rows.length ? `${this.rows.length} of ${counted} are listed, evenly.` : "");
  }

  // The first frame that ends at or after a time.
  at(seconds) {
    const found = this.it.frames.findIndex(([end]) => end >= seconds);
    return found < 0 ? this.it.frames.length - 1 : found;
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const own = ["BUTTON", "SELECT", "SUMMARY"].includes(event.target.tagName);
    if (event.key === " " && !own) this.toggle();
    else if (event.target.id === "slider" || own || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    else this.go({ ArrowLeft: this.frame - 1, ArrowRight: this.frame + 1, Home: 0, End: Infinity }[event.key]);
    event.preventDefault();
  }

  toggle() {
    if (this.timer !== null) return this.stop();
    if (this.frame >= this.it.frames.length - 1) this.go(0);
    at("play").textContent = "Pause";
    at("play").setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.go(this.frame + 1);
      if (this.frame >= this.it.frames.length - 1) this.stop();
    }, FRAME_MS);
    return undefined;
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    at("play").textContent = "Play";
    at("play").setAttribute("aria-pressed", "false");
  }

  go(frame) {
    this.frame = Math.max(0, Math.min(this.it.frames.length - 1, frame));
    at("slider").value = this.frame;
    this.draw();
    this.mark();
  }

  mark() {
    const now = this.it.frames[this.frame]?.[0] ?? 0;
    let current = null;
    for (const row of this.rows) {
      const past = row.seconds <= now;
      row.classList.toggle("past", past);
      row.classList.remove("current");
      if (past) current = row;
    }
    if (!current) return;
    current.classList.add("current");
    const list = at("moments");
    if (this.timer !== null) list.scrollTop = Math.max(0, current.offsetTop - list.offsetTop - list.clientHeight / 2);
  }

  // What is counted up to the frame: exchanges of the window, and each member's newest round.
  draw() {
    const { frames, members } = this.it;
    if (!frames.length) return;
    const span = Number(at("window").value) || frames.length;
    const pairs = new Map(), rounds = new Map();
    for (let n = 0; n <= this.frame; n += 1) {
      const [, edges, closed] = frames[n];
      if (n > this.frame - span) {
        for (const [author, reader, count] of edges) {
          const key = `${author} ${reader}`;
          pairs.set(key, (pairs.get(key) || 0) + count);
        }
      }
      for (const [member, round, loss] of closed) rounds.set(member, [round, loss]);
    }
    const now = frames[this.frame][0];
    const most = Math.max(1, ...pairs.values()), broadest = pairs.size > CROWD ? 1 : 4;
    const exchanges = [...pairs].map(([key, count]) => [...key.split(" ").map(Number), 0, Math.max(1, Math.ceil((broadest * count) / most))]);
    const cast = members.map(([name, run, isHere], n) => {
      const [kind, words] = this.kindOf(n, now, isHere);
      const [round, loss] = rounds.get(n) || [0, null];
      return { name, run, kind, dim: false, rounds_done: round, words: `${name}: ${words}, round ${round}${isNumber(loss) ? `, training loss ${fixed(loss, 4)}` : ""}` };
    });
    this.exchanges.draw(cast, exchanges);
    const there = cast.filter((it) => it.kind === "good").length;
    const known = [...rounds.values()].map(([round]) => round), losses = [...rounds.values()].map(([, loss]) => loss).filter(isNumber);
    const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
    const mean = losses.length ? `, training loss ${fixed(losses.reduce((a, b) => a + b, 0) / losses.length, 4)}` : "";
    const line = `${spell(now)}: ${plural(there, "node")} training, round ${low === high ? low : `${low} to ${high}`}${mean}, ${plural([...pairs.values()].reduce((a, b) => a + b, 0), "update")} averaged`;
    show("now", line);
    at("slider").setAttribute("aria-valuetext", line);
    at("exchanges").setAttribute("aria-label", `${plural(members.length, "member")}, ${plural(pairs.size, "pair")} that exchanged; ${line}`);
    this.pairs(pairs);
  }

  kindOf(n, now, isHere) {
    const [first, last, state] = this.it.ends[n];
    if (!isHere) return ["other", "no log here"];
    if (first !== null && now < first) return ["other", "not there yet"];
    if (last !== null && now >= last) {
      if (state === "finished" || state === "interrupted") return ["other", state];
      if (state === "failed") return ["bad", "failed"];
      if (this.frame < this.it.frames.length - 1) return ["bad", "its log stops here"];
    }
    return ["good", "training"];
  }

  pairs(pairs) {
    const sorted = [...pairs].sort(([, a], [, b]) => b - a);
    const name = (n) => this.it.members[n][0];
    at("pairs").replaceChildren(...sorted.slice(0, PAIRS).map(([key, count]) => {
      const [author, reader] = key.split(" ").map(Number);
      const row = make("tr"), head = make("th", "", name(author));
      head.scope = "row";
      row.append(head, make("td", "", name(reader)), make("td", "n", String(count)));
      return row;
    }));
    show("pairs-note", sorted.length > PAIRS ? `${sorted.length - PAIRS} more pairs are not listed.` : "");
  }
}

// ---- all of it

document.title = `${told.title}: p2ptrain report`;
show("name", told.title);
show("about", told.about);
at("state").hidden = !told.state;
show("state", told.state);
at("state").className = `pill ${STATES[told.state] || ""}`;
at("tiles").append(...told.tiles.map(tile));
at("notes-panel").hidden = !told.notes.length;
at("notes").append(...told.notes.map((note) => make("li", "", note)));
told.sections.forEach((spec, n) => section(spec, at(n ? "sections" : "first")));
for (const each of told.tables) table(each, at("tables"));
at("command-list").append(...[["This file was made by", told.command], ...told.commands].flatMap(([what, command]) => [make("h3", "", what), copyLine(command, `the command: ${what}`)]));
show("made", `Made ${told.made} by p2ptrain ${told.version}. Nothing is loaded, and nothing is sent.`);
if (told.timeline && told.timeline.frames.length) new Player(told.timeline);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
