// A node's page: listens to /events, keeps what it was told, and shows it. What comes from peers is text and stays text.

import { Chart, join, redraw } from "./chart.js";
import { drawSwarm, trust } from "./graph.js";
import { listen } from "./live.js";
import { NOTHING, amount, at, bits, copyLine, duration, fixed, isNumber, make, percent, plain, plural, short, show, size, speed } from "./words.js";

const MAX_LINES = 200; // as many as the node keeps
const MAX_ROWS = 64; // peers in the table; those that are here come first

const told = {
  columns: [], state: {}, peers: [], graph: { members: [], edges: [], left_out: 0 }, settings: {}, train: [], held_out: [], own: new Map(),
};
let lost = false;

// ---- what was told

function take(message) {
  if (message.columns) told.columns = message.columns;
  if (message.state) told.state = message.state;
  if (message.peers) told.peers = ordered(message.peers);
  if (message.graph) told.graph = message.graph;
  for (const curve of ["train", "held_out"]) if (message[curve]) extend(told[curve], message[curve]);
  for (const [name, news] of Object.entries(message.own || {})) {
    if (!told.own.has(name)) told.own.set(name, []);
    extend(told.own.get(name), news);
  }
  if (message.settings) { told.settings = message.settings; showSettings(); }
  if (message.state) { showState(); showCommands(); }
  if (message.peers) showPeers();
  if (message.log) addLines(message.log.lines);
  drawSoon(Boolean(message.train || message.held_out || message.own));
}

const extend = (rows, news) => rows.splice(news.start, Infinity, ...news.rows);

const ordered = (peers) =>
  Object.entries(peers).sort(([a, one], [b, other]) => other.here - one.here || ((one.name || a) < (other.name || b) ? -1 : 1));

// ---- words

const STATES = { running: "good", paused: "warn", finished: "good", interrupted: "warn", failed: "bad", dead: "bad" };
const isOver = () => ["finished", "interrupted", "failed", "dead"].includes(told.state.state);

function showState() {
  const s = told.state;
  const state = lost && !isOver() ? "no connection" : (s.state === "running" && s.paused ? "paused" : s.state) || "connecting";
  show("name", s.name || "p2ptrain node");
  show("state", state);
  at("state").className = `pill ${lost ? "" : STATES[state] || ""}`;
  document.title = `${lost ? "no connection: " : ""}${s.name || "node"} ${s.rounds ? `${s.rounds_done}/${s.rounds}` : s.state || ""}`;
  if (!("state" in s)) return;
  const parts = [s.role === "bootstrap" ? "bootstrap node: trains nothing" : "", s.peer_id && short(s.peer_id),
    s.parameters ? `${s.parameters.toLocaleString("en")} parameters on ${s.device}` : "",
    s.compressor && `${s.compressor}, ${s.aggregator}`, s.paused && `paused by ${s.paused}`,
    s.warmed_up && `began after ${s.warmed_up}`,
    isNumber(s.epsilon) && `privacy: ${spent(s.epsilon, s.epsilon_budget)}`,
    isNumber(s.visits_epsilon) && `visitors' privacy: ${spent(s.visits_epsilon, s.visits_epsilon_budget)} at most`];
  show("about", parts.filter(Boolean).join(" · "));
  show("round", s.rounds ? `${s.rounds_done}/${s.rounds}` : String(s.rounds_done ?? NOTHING));
  at("bar").max = s.rounds || 1;
  at("bar").value = s.rounds_done || 0;
  show("eta", lost ? "" : remaining(s));
  show("train", fixed(s.train_loss, 4));
  show("held_out", fixed(s.eval_loss, 4));
  show("utilization", percent(s.utilization));
  show("throughput", s.tokens_per_s ? `${amount(s.tokens_per_s)}/s` : NOTHING);
  show("in_time", percent(s.updates_in_time));
  at("in_time").className = isNumber(s.updates_in_time) && s.updates_in_time < 0.5 ? "warn" : "";
  show("sent", size(s.bytes_sent));
  show("sent_bits", bits(s.sent_bits, s.published_bits));
  show("received", size(s.bytes_received));
  show("accepted", String(s.accepted));
  show("rejected", String(s.rejected));
  at("rejected").className = s.rejected ? "warn" : "";
  show("lag", isNumber(s.loop_lag_s) ? `${(1000 * s.loop_lag_s).toFixed(1)} ms` : NOTHING);
}

const spent = (epsilon, budget) => `epsilon ${plain(epsilon)}${isNumber(budget) ? ` of ${plain(budget)}` : ""} spent`;

function remaining(s) {
  const done = s.rounds_done - s.first_round;
  if (s.paused) return "";
  if (!s.rounds || s.first_round === null || done < 1 || s.rounds_done >= s.rounds) return "";
  return `about ${duration(((s.last_round_at - s.first_round_at) / done) * (s.rounds - s.rounds_done))} left`;
}

// ---- commands and settings

let commands = "";

function showCommands() {
  const { join_command: joins, export_command: exports } = told.state;
  const lines = [
    ["Another machine joins with", "the line that joins", joins],
    ["Take this node's model home, on this machine", "the command that exports", exports],
  ].filter(([, , command]) => command);
  const text = JSON.stringify(lines);
  if (text === commands) return;
  commands = text;
  at("commands").hidden = !lines.length;
  at("command-list").replaceChildren(...lines.flatMap(([what, name, command]) => [make("h3", "", what), copyLine(command, name)]));
}

function showSettings() {
  const rows = Object.entries(told.settings).flatMap(([section, keys]) =>
    (keys && typeof keys === "object" && !Array.isArray(keys) ? Object.entries(keys).map(([key, value]) => [`${section}.${key}`, value]) : [[section, keys]]));
  at("settings").hidden = !rows.length;
  at("setting-rows").replaceChildren(...rows.map(([key, value]) => {
    const row = make("tr"), head = make("th", "", key);
    head.scope = "row";
    row.append(head, make("td", "value", value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value)));
    return row;
  }));
}

// ---- peers

const LABELS = ["Trust", "Score", "Round", "Stale", "Tracked", "Taken", "Refused", "Averaged", "To it", "From it"];

function showPeers() {
  const body = at("peers");
  const rows = told.peers.slice(0, MAX_ROWS);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach(([peer, it], n) => fill(body.rows[n] || newRow(body), peer, it));
  const here = told.peers.filter(([, it]) => it.here).length;
  const more = told.peers.length - rows.length;
  show("peers-note", told.peers.length ? `${here} here, ${told.peers.length - here} gone${more ? `; ${more} not listed` : ""}.` : "Nobody yet.");
}

function newRow(body) {
  const row = body.insertRow();
  const head = make("th");
  head.scope = "row";
  head.append(make("span", "name"), make("span", "id"));
  row.append(head);
  ["", "n", "n", "n", "", "n", "", "n", "n", "n"].forEach((kind, n) => {
    const cell = row.insertCell();
    cell.className = kind;
    cell.dataset.label = LABELS[n];
  });
  return row;
}

function fill(row, peer, it) {
  const [kind, words] = it.here || it.banned ? trust(it) : ["", "gone"];
  const refused = Object.entries(it.rejected).map(([reason, count]) => `${count} ${reason}`).join(", ");
  const yes = it.tracked === undefined ? NOTHING : it.tracked ? "yes" : "no";
  const texts = [words, fixed(it.score, 0), fixed(it.round, 0), fixed(it.staleness, 0), yes,
    fixed(it.accepted, 0), refused || "0", fixed(it.averages, 0), speed(it.sent_bytes_per_s), speed(it.received_bytes_per_s)];
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  put(row.cells[0].firstChild, it.name || "");
  put(row.cells[0].lastChild, short(peer));
  texts.forEach((text, n) => put(row.cells[n + 1], text));
  row.cells[0].title = `${peer} ${it.address || ""}`;
  row.cells[1].className = kind;
  row.cells[7].className = refused ? "warn" : "";
}

// ---- log

function addLines(lines) {
  const list = at("log");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  for (const [, level, text] of lines) list.append(make("li", level, text));
  while (list.children.length > MAX_LINES) list.firstChild.remove();
  if (follows) list.scrollTop = list.scrollHeight;
}

// ---- pictures: at most once a frame, and not while nobody looks

const CHARTS = [
  [{ id: "throughput-chart", title: "Throughput", unit: "tokens/s", format: amount, tick: amount, series: [{ name: "this node", colour: "--accent" }] }, ["tokens_per_s"]],
  [{ id: "bandwidth", title: "Bandwidth", unit: "bytes/s", format: speed, tick: size, series: [{ name: "sent", colour: "--accent" }, { name: "received", colour: "--held-out" }] }, ["sent_bytes_per_s", "received_bytes_per_s"]],
  [{ id: "distance", title: "Distance of the members' models to their mean", unit: "L2 norm", format: plain, series: [{ name: "distance", colour: "--accent" }] }, ["consensus_distance"]],
  [{ id: "rate", title: "Learning rate", unit: "", format: plain, series: [{ name: "rate", colour: "--accent" }] }, ["learning_rate"]],
  [{ id: "processor", title: "Processor", unit: "cores busy", format: plain, log: false, series: [{ name: "CPU", colour: "--accent" }] }, ["cpu_cores"]],
  [{ id: "gpu", title: "GPU", unit: "share busy", format: percent, tick: percent, log: false, series: [{ name: "GPU", colour: "--accent" }] }, ["gpu_share"]],
  [{ id: "memory", title: "Memory", unit: "bytes", format: size, tick: size, series: [{ name: "process", colour: "--accent" }, { name: "GPU", colour: "--held-out" }] }, ["rss_bytes", "gpu_memory_bytes"]],
];

const loss = new Chart(at("first-charts"), { id: "loss", title: "Loss", unit: "", wide: true, format: plain,
  series: [{ name: "training", colour: "--accent" }, { name: "held-out", colour: "--held-out", dots: true }] });
const charts = CHARTS.map(([spec, names]) => [new Chart(at("charts"), spec), names]);
const owns = new Map();

let due = false, curves = false;
function drawSoon(isCurves) {
  curves ||= isCurves;
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}

const columnOf = (rows, index) => rows.map((row) => row[index] ?? null);

function draw() {
  if (curves) drawCurves();
  curves = false;
  const swarm = drawSwarm(at("swarm"), told.graph, told.peers, told.state.peer_id || "");
  const words = `${plural(swarm.members.length, "member")}, ${plural(swarm.edges.length, "link")} known`;
  at("swarm").setAttribute("aria-label", words);
  show("swarm-note", told.graph.left_out ? `${words}; ${told.graph.left_out} more are not drawn.` : `${words}.`);
}

function drawCurves() {
  const rounds = columnOf(told.train, 0);
  const column = (name) => columnOf(told.train, told.columns.indexOf(name) + 1);
  loss.measure(told.state.metric);
  loss.set(join([[rounds, column("train_loss")], [columnOf(told.held_out, 0), columnOf(told.held_out, 1)]]));
  at("no-round").hidden = !loss.panel.hidden;
  for (const [chart, names] of charts) chart.set([rounds, ...names.map(column)]);
  for (const [name, rows] of told.own) {
    if (!owns.has(name)) owns.set(name, new Chart(at("charts"), { id: `own-${owns.size}`, title: name, unit: "", format: plain, series: [{ name, colour: "--accent", dots: true }] }));
    owns.get(name).measure(told.state.units?.[name]);
    owns.get(name).set([columnOf(rows, 0), columnOf(rows, 1)]);
  }
}

new ResizeObserver(() => drawSoon(false)).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); drawSoon(false); });
listen({
  take, isOver,
  begin: () => at("log").replaceChildren(),
  changed: (isLost) => { lost = isLost; showState(); redraw(); drawSoon(false); },
});
