// The page of a whole swarm: listens to /events, keeps what it was told of each member, and shows it side by side.

import { Chart, join, redraw } from "./chart.js";
import { Exchanges } from "./exchanges.js";
import { listen } from "./live.js";
import { NOTHING, amount, at, bits, copyLine, fixed, isNumber, make, percent, plain, plural, show, size, speed } from "./words.js";

const MAX_ROWS = 100; // members in the table; the dead ones come first
const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7", "--s8"];
const SINGLE = 8; // members or runs with a line of their own: as many as there are colours
const BUCKETS = 256; // rounds are gathered into so many for a band, as many as a screen tells apart

const told = { columns: [], runs: [], members: [], exchanges: [], left_out: 0 };
const curves = []; // by member: {rounds: rows, held_out: rows}
const chosen = new Set(); // members whose curves are drawn by themselves, by number
let by = ""; // members or runs; empty: whichever fits
let lost = false;

// ---- what was told

function take(message) {
  if (message.anew) { // a folder was deleted: its number is another member's now
    begin();
    chosen.clear();
  }
  for (const key of ["columns", "runs", "exchanges", "left_out"]) if (key in message) told[key] = message[key];
  for (const [n, member] of Object.entries(message.members || {})) told.members[n] = member;
  for (const { member, curve, start, rows } of message.curves || []) {
    curves[member] ||= { rounds: [], held_out: [] };
    curves[member][curve].splice(start, Infinity, ...rows);
  }
  if (message.members || message.runs) showAll();
  drawSoon(Boolean(message.anew || message.curves || message.members));
}

function begin() {
  told.members.length = curves.length = 0;
}

const ENDED = { finished: "good", interrupted: "warn", failed: "bad" };
const works = (it) => !(it.state in ENDED) && it.state !== "dead";
const kindOf = (it) => (it.state === "dead" || it.state === "failed" ? "bad" : works(it) ? "good" : "other");
const mean = (values) => { const found = values.filter(isNumber); return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null; };
const sum = (values) => values.filter(isNumber).reduce((a, b) => a + b, 0);
const runName = (path) => told.runs.find((run) => run.path === path)?.name ?? path;

// ---- words

function showAll() {
  const all = told.members.filter(Boolean), working = all.filter(works), dead = all.filter((it) => it.state === "dead");
  const name = told.runs.length === 1 ? told.runs[0].name : plural(told.runs.length, "run");
  const state = lost ? "no connection" : working.length ? "running" : dead.length ? "dead" : all.length ? "ended" : "waiting";
  show("name", name);
  show("state", state);
  at("state").className = `pill ${lost ? "" : { running: "good", dead: "bad" }[state] || ""}`;
  document.title = `${lost ? "no connection: " : ""}${name}`;
  show("about", [plural(all.length, "member"), told.left_out ? `${told.left_out} more are not shown` : "", told.runs.length === 1 ? told.runs[0].path : ""].filter(Boolean).join(" · "));
  const rounds = (working.length ? working : all).map((it) => it.rounds_done);
  const [low, high, total] = [Math.min(...rounds), Math.max(...rounds), Math.max(0, ...all.map((it) => it.rounds))];
  show("round", all.length ? `${low === high ? low : `${low} to ${high}`}${total ? ` of ${total}` : ""}` : NOTHING);
  at("bar").max = total || 1;
  at("bar").value = all.length ? low : 0;
  show("working", String(working.length));
  show("ended", String(all.length - working.length - dead.length));
  show("dead", String(dead.length));
  at("dead").className = dead.length ? "bad" : "";
  show("train", fixed(mean(all.map((it) => it.train_loss)), 4));
  show("held_out", fixed(mean(all.map((it) => it.eval_loss)), 4));
  show("throughput", working.length && !lost ? `${amount(sum(working.map((it) => it.tokens_per_s)))}/s` : NOTHING);
  show("sent", size(sum(all.map((it) => it.bytes_sent))));
  const each = bits(mean(all.map((it) => it.sent_bits)), mean(all.map((it) => it.published_bits)));
  show("sent_bits", each && `a member: ${each}`);
  show("in_time", percent(mean(all.map((it) => it.updates_in_time))));
  showRuns(all);
  showMembers();
  showCommands(all);
}

function cells(body, count, kinds, labels) {
  const row = body.insertRow();
  const head = make("th");
  head.scope = "row";
  row.append(head);
  for (let n = 0; n < count; n += 1) {
    const cell = row.insertCell();
    cell.className = kinds(n);
    cell.dataset.label = labels[n];
  }
  return row;
}

const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };

const RUN_LABELS = ["Members", "At work", "Dead", "Round", "Training loss", "Held-out loss", "Tokens/s", "Sent"];

function showRuns(all) {
  const body = at("runs");
  at("runs-panel").hidden = told.runs.length < 2;
  const rows = told.runs.slice(0, MAX_ROWS);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach(({ name, path }, n) => {
    const row = body.rows[n] || cells(body, RUN_LABELS.length, () => "n", RUN_LABELS);
    const its = all.filter((it) => it.run === path), working = its.filter(works);
    const dead = its.filter((it) => it.state === "dead").length;
    row.cells[0].title = path;
    const done = Math.max(...its.map((it) => it.rounds_done)), total = Math.max(...its.map((it) => it.rounds));
    const texts = [name, String(its.length), String(working.length), String(dead), `${done}${total ? `/${total}` : ""}`,
      fixed(mean(its.map((it) => it.train_loss)), 4), fixed(mean(its.map((it) => it.eval_loss)), 4),
      amount(sum(working.map((it) => it.tokens_per_s))), size(sum(its.map((it) => it.bytes_sent)))];
    texts.forEach((text, k) => put(row.cells[k], text));
    row.cells[3].className = dead ? "n bad" : "n";
  });
}

const LABELS = ["State", "Round", "Behind", "Loss", "Held-out", "Tokens/s", "Sent", "Received", "Peers", "Refused", "In time", "Draw"];

function showMembers() {
  const body = at("members");
  const order = told.members.map((it, n) => [it, n]).filter(([it]) => it).sort(([a, n], [b, m]) => (b.state === "dead") - (a.state === "dead") || n - m);
  const front = new Map();
  for (const [it] of order) front.set(it.run, Math.max(front.get(it.run) ?? 0, it.rounds_done));
  const rows = order.slice(0, MAX_ROWS);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach(([it, n], k) => fill(body.rows[k] || newRow(body), it, n, front.get(it.run)));
  show("members-note", order.length ? (order.length > rows.length ? `${order.length - rows.length} more are not listed.` : "") : "Nobody yet.");
}

function newRow(body) {
  const row = cells(body, LABELS.length, (n) => (n && n < 11 ? "n" : ""), LABELS);
  row.cells[0].append(make("span", "name"));
  const box = make("input");
  box.type = "checkbox";
  box.addEventListener("change", () => {
    const n = Number(box.value);
    if (box.checked) chosen.add(n); else chosen.delete(n);
    drawSoon(true);
  });
  row.cells[12].append(box);
  return row;
}

function fill(row, it, n, front) {
  const name = told.runs.length > 1 ? `${runName(it.run)}/${it.name}` : it.name;
  const head = row.cells[0];
  if (head.firstChild.textContent !== name || (head.firstChild.href || "") !== (it.page || "")) {
    const link = make(it.page ? "a" : "span", "name", name);
    if (it.page) { link.href = it.page; link.title = it.wants_token ? "Its page, which wants the node's token" : "Its page"; }
    head.replaceChildren(link);
  }
  const texts = [it.state, `${it.rounds_done}${it.rounds ? `/${it.rounds}` : ""}`, String(front - it.rounds_done), fixed(it.train_loss, 4), fixed(it.eval_loss, 4),
    works(it) && it.tokens_per_s ? amount(it.tokens_per_s) : NOTHING, size(it.bytes_sent), size(it.bytes_received), String(it.neighbours), String(it.rejected), percent(it.updates_in_time)];
  texts.forEach((text, k) => put(row.cells[k + 1], text));
  row.cells[1].className = it.state === "dead" ? "bad" : works(it) ? "good" : ENDED[it.state] || "";
  row.cells[10].className = it.rejected ? "n warn" : "n";
  const box = row.cells[12].firstChild;
  box.value = n;
  box.checked = chosen.has(n);
  box.setAttribute("aria-label", `Draw the curves of ${name}`);
}

let commands = "";

function showCommands(all) {
  const joins = all.find((it) => it.join_command)?.join_command;
  const lines = [...(joins ? [["Another machine joins with", "the line that joins", joins]] : []),
    ...told.runs.slice(0, SINGLE).map((run) => [`Take the model home: the average of ${run.name}`, `the command that exports ${run.name}`, run.export_command])];
  const text = JSON.stringify(lines);
  if (text === commands) return;
  commands = text;
  at("commands").hidden = !lines.length;
  at("command-list").replaceChildren(...lines.flatMap(([what, name, command]) => [make("h3", "", what), copyLine(command, name)]));
}

// ---- pictures

const CHARTS = [
  { id: "train-chart", title: "Training loss", unit: "", format: plain, of: ["rounds", "train_loss"] },
  { id: "held-out-chart", title: "Held-out loss", unit: "", format: plain, of: ["held_out", ""] },
  { id: "throughput-chart", title: "Throughput", unit: "tokens/s", format: amount, tick: amount, of: ["rounds", "tokens_per_s"] },
  { id: "bandwidth", title: "Sent", unit: "bytes/s", format: speed, tick: size, of: ["rounds", "sent_bytes_per_s"] },
];

const exchanges = new Exchanges(at("exchanges"));
let charts = [], lines = "";

let due = false, curvesDue = false;
function drawSoon(isCurves) {
  curvesDue ||= isCurves;
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}

function draw() {
  const all = told.members.filter(Boolean);
  exchanges.draw(all.map((it) => ({ name: it.name, run: it.run, kind: kindOf(it), rounds_done: it.rounds_done, words: `${told.runs.length > 1 ? `${runName(it.run)}/` : ""}${it.name}: ${it.state}, round ${it.rounds_done}` })), told.exchanges);
  const words = `${plural(all.length, "member")}, ${plural(told.exchanges.length, "exchange")}, ${all.filter((it) => it.state === "dead").length} dead`;
  at("exchanges").setAttribute("aria-label", words);
  show("exchanges-note", told.left_out ? `${words}; ${told.left_out} more members are not drawn.` : `${words}.`);
  if (curvesDue) drawCurves();
  curvesDue = false;
}

// What is drawn: {name, members: numbers}; one number is a line, several are their mean in a band from least to most.
function groups() {
  const numbers = told.members.map((_, n) => n);
  const mode = by || (told.runs.length > 1 ? "runs" : "members");
  at("by-members").setAttribute("aria-pressed", String(mode === "members"));
  at("by-runs").setAttribute("aria-pressed", String(mode === "runs"));
  const single = (n) => ({ name: told.runs.length > 1 ? `${runName(told.members[n].run)}/${told.members[n].name}` : told.members[n].name, members: [n] });
  const own = [...chosen].filter((n) => told.members[n]);
  if (mode === "members") {
    if (own.length) return [...(numbers.length > own.length ? [{ name: "all", members: numbers }] : []), ...own.slice(0, SINGLE - 1).map(single)];
    return numbers.length <= SINGLE ? numbers.map(single) : [{ name: "all", members: numbers }];
  }
  const runs = told.runs.slice(0, SINGLE - Math.min(own.length, SINGLE - 1)).map((run) => ({ name: run.name, members: numbers.filter((n) => told.members[n].run === run.path) }));
  return [...runs, ...own.slice(0, SINGLE - runs.length).map(single)];
}

function drawCurves() {
  if (!told.members.some(Boolean)) return; // all folders were deleted: the last curves stay
  const drawn = groups();
  const text = JSON.stringify(drawn.map((each) => [each.name, each.members.length > 1]));
  if (text !== lines) {
    for (const chart of charts) chart.remove();
    charts = CHARTS.map((spec) => new Chart(at("charts"), { ...spec, series: drawn.flatMap((each, n) => seriesOf(each, n, spec.of[0] === "held_out")) }));
  }
  lines = text;
  const more = told.runs.length > SINGLE && drawn.length === SINGLE ? `, ${told.runs.length - SINGLE} runs are not drawn` : "";
  show("drawn", drawn.some((each) => each.members.length > 1) ? `the mean, and from the least to the most${more}; tick members in the table to draw them by themselves` : more);
  CHARTS.forEach(({ of: [curve, name] }, k) => {
    const column = curve === "rounds" ? told.columns.indexOf(name) + 1 : 1;
    charts[k].set(join(drawn.map((each) => table(each.members, curve, column))));
  });
}

function seriesOf(each, n, dots) {
  const colour = COLOURS[n % COLOURS.length];
  const line = { name: each.name, colour, dots };
  return each.members.length > 1 ? [line, { name: "most", colour, band: true }, { name: "least", colour, band: true, fill: true }] : [line];
}

function table(members, curve, column) {
  const rowsOf = (n) => curves[n]?.[curve] || [];
  if (members.length === 1) return [rowsOf(members[0]).map((row) => row[0]), rowsOf(members[0]).map((row) => row[column] ?? null)];
  const last = Math.max(1, ...members.map((n) => rowsOf(n).at(-1)?.[0] ?? 0));
  const width = Math.max(1, Math.ceil(last / BUCKETS));
  const buckets = new Map();
  for (const n of members) {
    for (const row of rowsOf(n)) {
      const value = row[column];
      if (!isNumber(value)) continue;
      const key = Math.ceil(row[0] / width) * width;
      const it = buckets.get(key) || { sum: 0, count: 0, least: Infinity, most: -Infinity };
      it.sum += value; it.count += 1; it.least = Math.min(it.least, value); it.most = Math.max(it.most, value);
      buckets.set(key, it);
    }
  }
  const rounds = [...buckets.keys()].sort((a, b) => a - b);
  const of = (read) => rounds.map((round) => read(buckets.get(round)));
  return [rounds, of((it) => it.sum / it.count), of((it) => it.most), of((it) => it.least)];
}

for (const mode of ["members", "runs"]) at(`by-${mode}`).addEventListener("click", () => { by = mode; drawSoon(true); });
new ResizeObserver(() => drawSoon(false)).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
listen({ take, begin, isOver: () => false, changed: (isLost) => { lost = isLost; showAll(); redraw(); } });
