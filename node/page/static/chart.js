// Lines over rounds on a canvas: axes with round numbers, gaps where nothing was measured, no animation.

const PAD = { left: 52, right: 14, top: 10, bottom: 26 };

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The canvas at the screen's own resolution, cleared; sizes are in CSS pixels.
export function surface(canvas) {
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

// Steps of 1, 2 or 5 times a power of ten, some `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function extent(values, padded) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const room = padded ? (high - low || Math.abs(high) || 1) * 0.06 : 0;
  return [low - room, high + room];
}

// `series`: {rows: [[round, ...]], column, colour (a variable's name), dots}
export function drawLines(canvas, series) {
  const { pen, width, height } = surface(canvas);
  const points = series.map(({ rows, column }) => rows.filter((row) => row[column] !== null && row[column] !== undefined));
  if (!points.some((rows) => rows.length)) {
    pen.fillStyle = colour("--muted");
    pen.fillText("No round is closed yet.", 4, 24);
    return;
  }
  const [first, last] = extent(points.flatMap((rows) => rows.map((row) => row[0])), false);
  const [low, high] = extent(series.flatMap(({ column }, n) => points[n].map((row) => row[column])), true);
  const x = (round) => PAD.left + ((round - first) / (last - first || 1)) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - ((value - low) / (high - low)) * (height - PAD.top - PAD.bottom);
  axes(pen, width, height, { first, last, low, high, x, y });
  series.forEach((each, n) => line(pen, points[n].map((row) => [x(row[0]), y(row[each.column])]), each));
}

function axes(pen, width, height, { first, last, low, high, x, y }) {
  pen.lineWidth = 1;
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--muted");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const levels = ticks(low, high, height < 160 ? 3 : 5);
  for (const value of levels.found) {
    pen.beginPath();
    pen.moveTo(PAD.left, Math.round(y(value)) + 0.5);
    pen.lineTo(width - PAD.right, Math.round(y(value)) + 0.5);
    pen.stroke();
    pen.fillText(value.toFixed(levels.digits), PAD.left - 8, y(value));
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const rounds = ticks(first, last, Math.max(2, Math.floor(width / 110)));
  for (const round of rounds.found) {
    if (Number.isInteger(round)) pen.fillText(String(round), x(round), height - PAD.bottom + 8);
  }
}

function line(pen, points, { colour: name, dots }) {
  pen.strokeStyle = pen.fillStyle = colour(name);
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.beginPath();
  points.forEach(([at, value], n) => (n ? pen.lineTo(at, value) : pen.moveTo(at, value)));
  pen.stroke();
  if (dots && points.length > 60) return;
  for (const [at, value] of dots ? points : points.slice(-1)) {
    pen.beginPath();
    pen.arc(at, value, 3, 0, 2 * Math.PI);
    pen.fill();
  }
}
