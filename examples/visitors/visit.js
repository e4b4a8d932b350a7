// A visitor in a browser's tab: it takes a node's model, trains some steps on a file of the user's, and leaves the
// difference. The interface is described in docs/visits.md. The key and the model are the tab's, and end with it.
"use strict";

const BETAS = [0.9, 0.95], EPSILON = 3e-2;
const NAMES = "0.weight 0.bias 1.weight 1.bias 3.weight 3.bias 4.weight 4.bias 6.weight 6.bias";
const SHAPES = [[64, 64], [64], [64], [64], [64, 64], [64], [64], [64], [10, 64], [10]];
const LAYOUT = NAMES.split(" ").map((name, nth) => ({ name, shape: SHAPES[nth] }));
const NUMEL = 9226, BLOCK = 1024, BLOCKS = Math.ceil(NUMEL / BLOCK), PAYLOAD_BYTES = 4 * BLOCKS + NUMEL;
const PIXELS = 64, CLASSES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
// A host may ask for anything, and answer anything: this is as far as it gets.
const MOST_STEPS = 10000, MOST_BATCH = 1024, MOST_TEXT = 1 << 20;
const COME_AGAIN = [409, 429, 503], WAIT_MS = 2000, MOST_WAITS = 7;
let answerMs = 90000;  // a host gives up on a transfer after 60 s; one that says nothing at all must not hold the page
const PURPOSE = new TextEncoder().encode("p2ptrain-visit-1\0");

// -- bytes

const hex = bytes => [...new Uint8Array(bytes)].map(byte => byte.toString(16).padStart(2, "0")).join("");
const unhex = text => Uint8Array.from(text.match(/../g), pair => parseInt(pair, 16));
const sha256 = async bytes => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

function joined(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => { all.set(part, at); return at + part.length; }, 0);
  return all;
}

// All bytes of a stream, which are so many at most.
async function read(stream, most) {
  if (!stream) return new Uint8Array();
  const reader = stream.getReader(), parts = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    size += next.value.length;
    if (size > most) {
      reader.cancel().catch(() => {});
      throw new Error("the host sends more than there is to send");
    }
    parts.push(next.value);
  }
  return joined(...parts);
}

// A payload: scales of blocks, fp32 little-endian, then a signed byte a value.
function decode(payload, numel, block) {
  const blocks = Math.ceil(numel / block), view = new DataView(payload.buffer, payload.byteOffset, payload.length);
  const numbers = new Int8Array(payload.buffer, payload.byteOffset + 4 * blocks, numel);
  return Float32Array.from(numbers, (number, at) => number * view.getFloat32(4 * Math.floor(at / block), true));
}

function encode(values, block) {
  const blocks = Math.ceil(values.length / block), payload = new Uint8Array(4 * blocks + values.length);
  const view = new DataView(payload.buffer), numbers = new Int8Array(payload.buffer, 4 * blocks);
  for (let nth = 0; nth < blocks; nth++) {
    const part = values.subarray(nth * block, (nth + 1) * block);
    view.setFloat32(4 * nth, part.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127, true);
    const scale = view.getFloat32(4 * nth, true);
    part.forEach((value, at) => { numbers[nth * block + at] = scale ? Math.round(value / scale) : 0; });
  }
  return payload;
}

// The newer model's bytes, from the older one's: new scales, and numbers that are added modulo 256.
async function changed(older, difference, blocks) {
  const stream = new Blob([difference]).stream().pipeThrough(new DecompressionStream("deflate"));
  const newer = await read(stream, older.length);
  for (let at = 4 * blocks; at < newer.length; at++) newer[at] += older[at];
  return newer;
}

// -- the model: linear, norm, GELU, twice, and a linear layer. Matrices are flat, a row after another.

function erf(x) {  // Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

function linear(x, weight, bias) {
  const out = bias.length, within = weight.length / out, rows = x.length / within, y = new Float64Array(rows * out);
  for (let row = 0; row < rows; row++) for (let to = 0; to < out; to++) {
    let sum = bias[to];
    for (let at = 0; at < within; at++) sum += x[row * within + at] * weight[to * within + at];
    y[row * out + to] = sum;
  }
  return y;
}

function linearBack(x, weight, back, gradWeight, gradBias) {
  const out = gradBias.length, within = weight.length / out, rows = back.length / out;
  const before = new Float64Array(rows * within);
  for (let row = 0; row < rows; row++) for (let to = 0; to < out; to++) {
    const slope = back[row * out + to];
    gradBias[to] += slope;
    for (let at = 0; at < within; at++) {
      gradWeight[to * within + at] += slope * x[row * within + at];
      before[row * within + at] += slope * weight[to * within + at];
    }
  }
  return before;
}

function normAndGelu(h, weight, bias) {
  const width = bias.length, rows = h.length / width;
  const unit = new Float64Array(h.length), slope = new Float64Array(h.length), y = new Float64Array(h.length);
  const spread = new Float64Array(rows);
  for (let row = 0; row < rows; row++) {
    const part = h.subarray(row * width, (row + 1) * width);
    const mean = part.reduce((sum, value) => sum + value, 0) / width;
    spread[row] = Math.sqrt(part.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width + 1e-5);
    for (let at = 0; at < width; at++) {
      const place = row * width + at, u = unit[place] = (part[at] - mean) / spread[row];
      const v = u * weight[at] + bias[at], share = (1 + erf(v / Math.SQRT2)) / 2;
      y[place] = v * share;
      slope[place] = share + v * Math.exp(-v * v / 2) / Math.sqrt(2 * Math.PI);
    }
  }
  return { y, unit, slope, spread };
}

function normAndGeluBack(kept, weight, back, gradWeight, gradBias) {
  const width = weight.length, rows = back.length / width, before = new Float64Array(back.length);
  for (let row = 0; row < rows; row++) {
    let mean = 0, along = 0;
    for (let at = 0; at < width; at++) {
      const place = row * width + at, slope = back[place] * kept.slope[place];
      gradWeight[at] += slope * kept.unit[place];
      gradBias[at] += slope;
      before[place] = slope * weight[at];
      mean += before[place] / width;
      along += before[place] * kept.unit[place] / width;
    }
    for (let at = 0; at < width; at++) {
      const place = row * width + at;
      before[place] = (before[place] - mean - kept.unit[place] * along) / kept.spread[row];
    }
  }
  return before;
}

// The mean cross entropy of a batch. `w` and `grads` are views of the parameters and their gradient, by name.
function gradient(w, grads, images, labels) {
  const one = normAndGelu(linear(images, w["0.weight"], w["0.bias"]), w["1.weight"], w["1.bias"]);
  const two = normAndGelu(linear(one.y, w["3.weight"], w["3.bias"]), w["4.weight"], w["4.bias"]);
  const back = linear(two.y, w["6.weight"], w["6.bias"]), classes = w["6.bias"].length;
  let loss = 0;
  labels.forEach((label, row) => {
    const logits = back.subarray(row * classes, (row + 1) * classes), most = Math.max(...logits);
    const sum = logits.reduce((all, value) => all + Math.exp(value - most), 0);
    loss += (Math.log(sum) + most - logits[label]) / labels.length;
    logits.forEach((value, at) => {
      logits[at] = (Math.exp(value - most) / sum - (at === label)) / labels.length;
    });
  });
  let before = linearBack(two.y, w["6.weight"], back, grads["6.weight"], grads["6.bias"]);
  before = normAndGeluBack(two, w["4.weight"], before, grads["4.weight"], grads["4.bias"]);
  before = linearBack(one.y, w["3.weight"], before, grads["3.weight"], grads["3.bias"]);
  before = normAndGeluBack(one, w["1.weight"], before, grads["1.weight"], grads["1.bias"]);
  linearBack(images, w["0.weight"], before, grads["0.weight"], grads["0.bias"]);
  return loss;
}

function views(vector, parameters) {
  let at = 0;
  return Object.fromEntries(parameters.map(({ name, shape }) => {
    const size = shape.reduce((all, side) => all * side, 1);
    return [name, vector.subarray(at, at += size)];
  }));
}

// The model after the steps that the node asks for, by Adam, and the mean loss of these steps.
async function train(start, visit, rows) {
  const x = start.slice(), mean = new Float32Array(x.length), square = new Float32Array(x.length);
  const w = views(x, LAYOUT);
  let loss = 0;
  for (let step = 1; step <= visit.steps; step++) {
    const chosen = Array.from({ length: visit.batch_size }, () => rows[Math.floor(Math.random() * rows.length)]);
    const images = Float64Array.from(chosen.flatMap(row => row.slice(0, PIXELS)), pixel => pixel / 16);
    const g = new Float64Array(x.length);
    loss += gradient(w, views(g, LAYOUT), images, chosen.map(row => row[PIXELS])) / visit.steps;
    const norm = Math.sqrt(g.reduce((sum, value) => sum + value * value, 0));
    const share = visit.clip_norm && norm > visit.clip_norm ? visit.clip_norm / norm : 1;
    for (let at = 0; at < x.length; at++) {
      const slope = g[at] * share;
      mean[at] += (1 - BETAS[0]) * (slope - mean[at]);
      square[at] += (1 - BETAS[1]) * (slope * slope - square[at]);
      const sized = Math.sqrt(square[at] / (1 - BETAS[1] ** step)) + EPSILON;
      x[at] -= visit.learning_rate * mean[at] / (1 - BETAS[0] ** step) / sized;
    }
    await new Promise(resolve => setTimeout(resolve));  // the tab stays responsive
  }
  return { x, loss };
}

// -- the visit

async function newKey() {
  if (!globalThis.crypto?.subtle) throw new Error("this page has no cryptography: open it over https, or from localhost");
  try {
    return await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
  } catch (error) {
    throw new Error("this browser has no Ed25519: Chromium has it from version 137 on, Firefox from 129, Safari from 17");
  }
}

class Visitor {
  constructor(host, token, key) {
    Object.assign(this, { host: host.replace(/\/$/, ""), token, key, payload: null });
  }

  async ask(path, body) {
    const headers = this.token ? { authorization: `Bearer ${this.token}` } : {};
    const asked = { method: body ? "POST" : "GET", body, headers, signal: AbortSignal.timeout(answerMs) };
    const answer = await fetch(this.host + path, asked).catch(() => { throw this.away(); });
    if (answer.ok) return answer;
    const { error } = await this.told(answer).catch(() => ({}));
    throw Object.assign(new Error(`refused: ${error ?? answer.status}`), { status: answer.status });
  }

  away() {
    const words = `no answer from ${this.host}: it is not there, its certificate is not valid by this device's clock, or it`
      + " does not let this page visit (visits.origins)";
    return Object.assign(new Error(words), { status: this.payload ? 503 : 0 });  // one that was there may come again
  }

  // All bytes of an answer. Its host may go away within it: browsers say so by errors of these kinds.
  bytes(answer, most) {
    return read(answer.body, most).catch(error => {
      throw error instanceof TypeError || error instanceof DOMException ? this.away() : error;
    });
  }

  async told(answer) {
    const text = new TextDecoder().decode(await this.bytes(answer, MOST_TEXT));
    try {
      return Object(JSON.parse(text));
    } catch (error) {
      throw new Error(`the answer from ${this.host} is not a p2ptrain node's`);
    }
  }

  // What there is to do, within what this page would do.
  async asked(key) {
    const { version, parameters, block, run, steps, batch_size, learning_rate, clip_norm, task } =
      await this.told(await this.ask(`/v1/visit?key=${hex(key)}`));
    const layout = JSON.stringify(LAYOUT.map(({ name, shape }) => [name, shape]));
    const theirs = Array.isArray(parameters) && JSON.stringify(parameters.map(part => [part?.name, part?.shape]));
    if (version !== 1 || block !== BLOCK || theirs !== layout) {
      throw new Error(`this page trains the digits' model; the node has another one (${task})`);
    }
    const within = (value, least, most) => typeof value === "number" && value >= least && value <= most;
    if (!within(steps, 1, MOST_STEPS) || !within(batch_size, 1, MOST_BATCH) || !within(learning_rate, 0, 100)
        || !within(clip_norm, 0, 1e9) || !/^[0-9a-f]{32}$/.test(run)) {
      throw new Error(`the node asks for ${steps} steps of ${batch_size}: this page takes ${MOST_STEPS} of ${MOST_BATCH}`);
    }
    return { run, steps, batch_size, learning_rate, clip_norm };
  }

  async model() {
    const have = this.payload && hex(await sha256(this.payload));
    const answer = await this.ask(have ? `/v1/model?have=${have}` : "/v1/model");
    const form = answer.headers.get("p2ptrain-form"), bytes = await this.bytes(answer, PAYLOAD_BYTES);
    if (form === "whole") this.payload = bytes;
    if (form === "difference") this.payload = await changed(this.payload ?? bytes, bytes, BLOCKS);
    const digest = await sha256(this.payload ?? bytes);
    const round = Number(answer.headers.get("p2ptrain-round"));
    if (this.payload?.length !== PAYLOAD_BYTES || !Number.isSafeInteger(round) || round < 0 || hex(digest) !== answer.headers.get("p2ptrain-model")) {
      this.payload = null;
      throw new Error("the model that arrived is another one than the node says");
    }
    return { digest, form, round };
  }

  async visit(rows) {
    const key = new Uint8Array(await crypto.subtle.exportKey("raw", this.key.publicKey));
    const visit = await this.asked(key), { digest, form, round } = await this.model();
    const start = decode(this.payload, NUMEL, BLOCK);
    if (!start.every(Number.isFinite)) throw new Error("the node's model has values that are no numbers");
    const { x, loss } = await train(start, visit, rows);
    const payload = encode(x.map((value, at) => value - start[at]), BLOCK);
    const place = new DataView(new ArrayBuffer(8));
    place.setBigUint64(0, BigInt(round), true);
    const head = joined(key, new Uint8Array(place.buffer), digest);
    const signed = joined(PURPOSE, unhex(visit.run), head, await sha256(payload));
    const signature = new Uint8Array(await crypto.subtle.sign("Ed25519", this.key.privateKey, signed));
    await this.ask("/v1/difference", joined(head, signature, payload));
    return { round, loss, form };
  }
}

// -- the page

function parsed(text) {
  const rows = text.trim().split("\n").map(line => line.split(",").map(Number));
  const isDigit = row => row.length > PIXELS && row.slice(0, PIXELS).every(Number.isFinite) && CLASSES.includes(row[PIXELS]);
  if (!rows.every(isDigit)) throw new Error("this file has no digits: a line has 64 pixels from 0 to 16 and the label");
  return rows;
}

function say(words) {
  document.getElementById("log").appendChild(document.createElement("li")).textContent = words;
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

// Visit as soon as the host takes it: until the next round it may have enough, or this visitor's already.
async function visitInTime(visitor, rows) {
  for (let waits = 0, told = ""; ; waits++) {
    try {
      return await visitor.visit(rows);
    } catch (error) {
      if (!COME_AGAIN.includes(error.status) || waits >= MOST_WAITS) throw error;
      if (error.message !== told) say(`waits: ${error.message}`);
      told = error.message;
    }
    await pause(WAIT_MS * 2 ** waits);  // each question costs a kilobyte
  }
}

async function go(event) {
  event.preventDefault();
  const field = id => document.getElementById(id), button = field("go");
  button.disabled = true;
  try {
    const rows = parsed(await field("file").files[0].text());
    const visitor = new Visitor(field("host").value, field("token").value, await newKey());
    for (let left = Number(field("visits").value); left > 0; left--) {
      const { round, loss, form } = await visitInTime(visitor, rows);
      say(`round ${round}: loss ${loss.toFixed(3)}, left a difference (model: ${form})`);
      if (left > 1) await pause(WAIT_MS);
    }
  } catch (error) {
    say(error.message);
  }
  button.disabled = false;
}

document.getElementById("form").addEventListener("submit", go);
