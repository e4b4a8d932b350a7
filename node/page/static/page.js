// The page: listens to /events, keeps what it was told, and shows it. What comes from peers is text and stays text.

import { drawLines } from "./chart.js";
import { drawSwarm, short, trust } from "./graph.js";

const MAX_LINES = 200; // as many as the node keeps
const MAX_ROWS = 64; // peers in the table; those that are here come first
const AGAIN_MS = 10000; // after a refusal (too many pages), which a browser does not try again by itself

const told = {
  state: {}, peers: [], graph: { members: [], edges: [], left_out: 0 }, train: [], held_out: [],
};
const at = (id) => document.getElementById(id);
const show = (id, text) => { if (at(id).textContent !== text) at(id).textContent = text; };
const NOTHING = "-";
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : NOTHING);

function size(bytes) {
  if (typeof bytes !== "number") return NOTHING;
  let unit = 0;
  for (; Math.abs(bytes) >= 999.5 && unit < 4; unit += 1) bytes /= 1000;
  return `${bytes.toFixed(unit && bytes < 99.95 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

// ---- what was told

function take(message) {
  if (message.state) told.state = message.state;
  if (message.peers) told.peers = ordered(message.peers);
  if (message.graph) told.graph = message.graph;
  for (const curve of ["train", "held_out"]) {
    if (message[curve]) told[curve].splice(message[curve].start, Infinity, ...message[curve].rows);
  }
  if (message.state) showState();
  if (message.peers) showPeers();
  if (message.log) addLines(message.log.lines);
  drawSoon();
}

const ordered = (peers) =>
  Object.entries(peers).sort(([a, one], [b, other]) => other.here - one.here || (a < b ? -1 : 1));

// ---- words

const STATES = { running: "good", finished: "good", interrupted: "warn", failed: "bad", dead: "bad" };

function showState() {
  const s = told.state;
  show("name", s.name || "p2ptrain node");
  show("state", s.state);
  at("state").className = `pill ${STATES[s.state] || ""}`;
  document.title = `${s.name || "node"} ${s.rounds ? `${s.rounds_done}/${s.rounds}` : s.state}`;
  const parts = [s.role === "bootstrap" ? "bootstrap node: trains nothing" : "", s.peer_id && short(s.peer_id),
    s.parameters ? `${s.parameters.toLocaleString("en")} parameters on ${s.device}` : "",
    s.compressor && `${s.compressor}, ${s.aggregator}`];
  show("about", parts.filter(Boolean).join(" · "));
  show("round", s.rounds ? `${s.rounds_done}/${s.rounds}` : String(s.rounds_done ?? NOTHING));
  at("bar").max = s.rounds || 1;
  at("bar").value = s.rounds_done || 0;
  show("eta", remaining(s));
  show("train", number(s.train_loss, 4));
  show("held_out", number(s.eval_loss, 4));
  show("utilization", typeof s.utilization === "number" ? `${Math.round(100 * s.utilization)}%` : NOTHING);
  show("in_time", typeof s.updates_in_time === "number" ? `${Math.round(100 * s.updates_in_time)}%` : NOTHING);
  at("in_time").className = typeof s.updates_in_time === "number" && s.updates_in_time < 0.5 ? "warn" : "";
  show("sent", size(s.payload_bytes_sent));
  show("received", size(s.payload_bytes_received));
  show("accepted", String(s.accepted));
  show("rejected", String(s.rejected));
  at("rejected").className = s.rejected ? "warn" : "";
  show("lag", typeof s.loop_lag_s === "number" ? `${(1000 * s.loop_lag_s).toFixed(1)} ms` : NOTHING);
}

function remaining(s) {
  const done = s.rounds_done - s.first_round;
  if (!s.rounds || s.first_round === null || done < 1 || s.rounds_done >= s.rounds) return "";
  return `about ${duration(((s.last_round_at - s.first_round_at) / done) * (s.rounds - s.rounds_done))} left`;
}

// ---- peers

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
  const head = document.createElement("th");
  head.scope = "row";
  row.append(head);
  for (const kind of ["", "n", "n", "n", "", "n", "", "n", "n", "n"]) row.insertCell().className = kind;
  return row;
}

function fill(row, peer, it) {
  const [kind, words] = it.here || it.banned ? trust(it) : ["", "gone"];
  const refused = Object.entries(it.rejected).map(([reason, count]) => `${count} ${reason}`).join(", ");
  const speed = (bytes) => (typeof bytes === "number" ? `${size(bytes)}/s` : NOTHING);
  const yes = it.tracked === undefined ? NOTHING : it.tracked ? "yes" : "no";
  const texts = [short(peer), words, number(it.score, 0), number(it.round, 0), number(it.staleness, 0), yes,
    number(it.accepted, 0), refused || "0", number(it.averages, 0), speed(it.sent_bytes_per_s), speed(it.received_bytes_per_s)];
  texts.forEach((text, n) => { if (row.cells[n].textContent !== text) row.cells[n].textContent = text; });
  row.cells[0].title = `${peer} ${it.address || ""}`;
  row.cells[1].className = kind;
  row.cells[7].className = refused ? "warn" : "";
}

// ---- log

function addLines(lines) {
  const list = at("log");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  for (const [, level, text] of lines) {
    const item = document.createElement("li");
    item.className = level;
    item.textContent = text;
    list.append(item);
  }
  while (list.children.length > MAX_LINES) list.firstChild.remove();
  if (follows) list.scrollTop = list.scrollHeight;
}

// ---- pictures: at most once a frame, and not while nobody looks

let due = false;
function drawSoon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}

function draw() {
  const newest = (rows, column) => number(rows.length ? rows[rows.length - 1][column] : null, 4);
  drawLines(at("loss"), [
    { rows: told.train, column: 1, colour: "--accent" },
    { rows: told.held_out, column: 1, colour: "--held-out", dots: true },
  ]);
  drawLines(at("distance"), [{ rows: told.train, column: 2, colour: "--accent" }]);
  if (told.train.length || told.held_out.length) {
    at("loss").setAttribute("aria-label", `Loss over rounds; training now ${newest(told.train, 1)}, held-out ${newest(told.held_out, 1)}`);
    at("distance").setAttribute("aria-label", `Distance over rounds; now ${newest(told.train, 2)}`);
  }
  const swarm = drawSwarm(at("swarm"), told.graph, told.peers, told.state.peer_id || "");
  const words = `${plural(swarm.members.length, "member")}, ${plural(swarm.edges.length, "link")} known`;
  at("swarm").setAttribute("aria-label", words);
  show("swarm-note", told.graph.left_out ? `${words}; ${told.graph.left_out} more are not drawn.` : `${words}.`);
}

// ---- the link to the node

function linked(kind, words) {
  show("link", words);
  at("link").parentElement.className = `link ${kind}`;
}

function listen() {
  const source = new EventSource("/events");
  source.onopen = () => {
    at("log").replaceChildren();
    linked("good", "live");
  };
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    const s = told.state;
    const over = s.rounds && s.rounds_done >= s.rounds;
    linked(over ? "" : "warn", over ? "the run is over" : "no connection; trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
  };
}

if (location.search) history.replaceState(null, "", location.pathname); // the token has done its work
new ResizeObserver(drawSoon).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
listen();
