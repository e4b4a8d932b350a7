// Charts over rounds, drawn by uPlot (uplot.js): values at the cursor, zoom, a log scale, names and units, and keys.

import { NOTHING, isNumber, make } from "./words.js";

const uPlot = window.uPlot;
const HINT = "Drag to zoom, double click to see all. Keys: arrows, Home and End move the cursor, + and - zoom, 0 shows all.";
const FEW = 40; // points that are drawn as dots as well

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const charts = new Set();

// After a change of the theme, or of the link: colours are asked for anew.
export function redraw() {
  for (const chart of charts) chart.redraw();
}

// A panel with one chart in it. `spec`: {id, title, unit, format, tick, log, series: [{name, colour, dots, dash, band}]},
// `colour` a variable's name; `band`: an edge without a line or a name, which follows the series before; `fill`: up to the series before. `x`: what its axis counts (rounds), written by
// `xFormat` where it is no count. Charts with the same word `shared` share cursor and zoom.
export class Chart {
  constructor(parent, spec, shared = "rounds") {
    this.spec = { format: (value) => (isNumber(value) ? String(value) : NOTHING), ...spec };
    this.shared = shared;
    this.data = null;
    this.log = false;
    this.zoomed = false; // as of the newest change of the scale: rounds that come later do not make it so
    this.hidden = new Set();
    this.panel = make("section", `panel chart ${spec.wide ? "wide" : ""}`);
    this.panel.setAttribute("aria-labelledby", `${spec.id}-title`);
    this.build();
    this.panel.hidden = true;
    parent.append(this.panel);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    charts.add(this);
  }

  build() {
    const { id, title, unit } = this.spec;
    const head = make("div", "head");
    const heading = this.heading = make("h2", "", unit ? `${title} (${unit})` : title);
    heading.id = `${id}-title`;
    this.logButton = this.tool("log scale", () => { this.log = !this.log; this.again(); });
    this.logButton.setAttribute("aria-pressed", "false");
    this.logButton.setAttribute("aria-label", `log scale: ${title}`);
    this.logButton.hidden = this.spec.log === false;
    this.allButton = this.tool("show all", () => this.showAll());
    this.allButton.setAttribute("aria-label", `show all: ${title}`);
    this.allButton.hidden = true;
    head.append(heading, this.allButton, this.logButton);
    this.legend = make("p", "legend");
    this.plot = make("div", "plot");
    this.plot.id = id;
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "group");
    this.plot.title = HINT;
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.uplot?.setCursor({ left: -10, top: -10 }));
    this.said = make("p", "unseen");
    this.said.setAttribute("role", "status");
    this.panel.append(head, this.legend, this.plot, this.said);
    this.keys();
  }

  tool(words, act) {
    const button = make("button", "tool", words);
    button.type = "button";
    button.addEventListener("click", act);
    return button;
  }

  // Names and values: of the cursor's round, or the newest.
  keys() {
    this.at = make("span", "at");
    this.values = this.spec.series.map((series, n) => {
      const key = make("button", "key");
      key.type = "button";
      key.setAttribute("aria-pressed", "true");
      key.title = "Show or hide";
      const swatch = make("span", `swatch ${series.colour.slice(2)}`);
      const value = make("b", "", NOTHING);
      key.append(swatch, make("span", "", series.name), value);
      key.addEventListener("click", () => this.toggle(n, key));
      key.hidden = series.band === true;
      this.legend.append(key);
      return value;
    });
    this.legend.append(this.at);
  }

  toggle(n, key) {
    const shown = this.hidden.delete(n);
    if (!shown) this.hidden.add(n);
    key.setAttribute("aria-pressed", String(shown));
    for (let k = n; k === n || this.spec.series[k]?.band; k += 1) {
      if (k !== n) this.hidden[shown ? "delete" : "add"](k);
      this.uplot?.setSeries(k + 1, { show: shown });
    }
  }

  // What its values are measured in, where that is known later than its name.
  measure(unit) {
    if (!unit || unit === this.spec.unit) return;
    this.spec.unit = unit;
    this.heading.textContent = `${this.spec.title} (${unit})`;
    if (this.uplot) this.again();
  }

  // `data`: columns, the rounds first, as uPlot has it.
  set(data) {
    this.data = data;
    this.panel.hidden = !data.slice(1).some((column) => column.some(isNumber));
    if (this.panel.hidden) return;
    data.slice(1).forEach((column, n) => { this.legend.children[n].hidden = this.spec.series[n].band === true || !column.some(isNumber); });
    if (this.uplot) {
      this.uplot.setData(this.drawn());
      this.tell();
    } else this.again();
  }

  drawn() {
    if (!this.log) return this.data;
    return this.data.map((column, n) => (n ? column.map((value) => (isNumber(value) && value <= 0 ? null : value)) : column));
  }

  again() {
    const range = this.zoomed ? { ...this.uplot.scales.x } : null;
    this.uplot?.destroy();
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.uplot = new uPlot(this.options(), this.drawn(), this.plot);
    if (range) this.uplot.setScale("x", range);
    this.tell();
  }

  options() {
    const axis = { stroke: () => colour("--muted"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
      grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1, size: 4 } };
    const tick = this.spec.tick || ((value) => String(Number(value.toPrecision(6))));
    const dots = this.spec.series.map(({ dots }, n) => dots && this.data[n + 1].filter(isNumber).length <= FEW);
    return {
      width: Math.max(80, this.plot.clientWidth), height: Math.max(80, this.plot.clientHeight),
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: this.shared, scales: ["x", null], setSeries: false }, drag: { x: true, y: false }, y: false },
      scales: { x: { time: false, auto: () => !this.zoomed, ...(this.spec.xLog ? { distr: 3, range: (_, low, high) => [below(low), above(high)] } : {}) }, y: this.log ? { distr: 3, range: (_, low, high) => [low * 0.9, high * 1.1] } : this.spec.fromZero ? { range: (_, low, high) => [Math.min(0, low), high * 1.08 || 1] } : {} },
      axes: [
        { ...axis, label: this.spec.x || "round", labelSize: 16, size: 26, gap: 3,
          ...(this.spec.xFormat ? { space: 70, values: (_, values) => this.ticks(values, this.spec.xFormat, this.spec.xLog) } : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] }) },
        { ...axis, label: this.spec.unit || this.spec.title, labelSize: 18, size: 58, gap: 4, space: 24, values: (_, values) => this.ticks(values, tick, this.log) },
      ],
      series: [{}, ...this.spec.series.map((series, n) => ({
        label: series.name, stroke: () => colour(series.colour), width: series.band ? 0 : series.width || 2, dash: series.dash,
        show: !this.hidden.has(n), points: { show: Boolean(dots[n]), size: 6, fill: () => colour(series.colour) },
        alpha: series.alpha || 1,
      }))],
      bands: this.spec.series.flatMap((series, n) => (series.fill ? [{ series: [n, n + 1], fill: () => colour(this.spec.series[n].colour) + "33" }] : [])),
      hooks: { setCursor: [() => this.tell()], setScale: [(u, name) => { if (name === "x") this.scaled(u); }] },
    };
  }

  // Of a log scale 1, 2 and 5 times a power of ten, where there are two of them or more.
  ticks(values, tick, log) {
    const round = (value) => { const first = value / 10 ** Math.floor(Math.log10(value)); return [1, 2, 5].some((each) => Math.abs(first - each) < 1e-6); };
    const some = log && values.filter((value) => value !== null && round(value)).length > 1;
    return values.map((value) => (value === null || (some && !round(value)) ? "" : tick(log ? Number(value.toPrecision(3)) : value)));
  }

  scaled(u) {
    const rounds = u.data[0], { min, max } = u.scales.x;
    this.zoomed = isNumber(min) && rounds.length > 0 && (min > rounds[0] || max < rounds[rounds.length - 1]);
    this.allButton.hidden = !this.zoomed;
  }

  showAll() {
    const rounds = this.data[0];
    this.uplot.setScale("x", { min: rounds[0], max: rounds[rounds.length - 1] });
  }

  // The values at the cursor, or the newest of each.
  tell() {
    const index = this.uplot?.cursor.idx ?? null;
    const column = (n) => this.data[n + 1];
    const newest = (values) => { for (let k = values.length - 1; k >= 0; k -= 1) if (isNumber(values[k])) return values[k]; return null; };
    this.values.forEach((value, n) => {
      const shown = index === null ? newest(column(n)) : near(column(n), index);
      const text = this.spec.format(shown);
      if (value.textContent !== text) value.textContent = text;
    });
    this.at.textContent = index === null ? "" : `${this.spec.x || "round"} ${(this.spec.xFormat || String)(this.data[0][index])}`;
    const words = this.spec.series.flatMap((series, n) => (series.band || this.values[n].textContent === NOTHING ? [] : [`${series.name} ${this.values[n].textContent}`]));
    if (index === null) this.plot.setAttribute("aria-label", `${this.spec.title} over ${this.spec.x || "rounds"}; now ${words.join(", ")}`);
    return words;
  }

  key(event) {
    const u = this.uplot, rounds = this.data?.[0];
    if (!u || !rounds?.length || event.ctrlKey || event.altKey || event.metaKey) return;
    const [from, to] = u.series[0].idxs;
    const now = u.cursor.idx ?? to;
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: now - step, ArrowRight: now + step, Home: from, End: to };
    if (event.key in moves) this.point(Math.min(to, Math.max(from, moves[event.key])));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5, now);
    else if (event.key === "-") this.zoom(2, now);
    else if (event.key === "0" || event.key === "Escape") this.showAll();
    else return;
    event.preventDefault();
  }

  point(index) {
    this.uplot.setCursor({ left: this.uplot.valToPos(this.data[0][index], "x"), top: 10 });
    this.said.textContent = `${this.at.textContent}: ${this.tell().join(", ")}`;
  }

  zoom(factor, index) {
    const rounds = this.data[0], { min, max } = this.uplot.scales.x;
    const middle = rounds[index], half = ((max - min) * factor) / 2;
    const low = Math.max(rounds[0], middle - half), high = Math.min(rounds[rounds.length - 1], middle + half);
    if (high > low) this.uplot.setScale("x", { min: low, max: high });
  }

  resize() {
    if (!this.uplot || !this.plot.clientWidth) return;
    this.uplot.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
  }

  redraw() {
    this.uplot?.redraw(false);
  }

  remove() {
    charts.delete(this);
    this.uplot?.destroy();
    this.panel.remove();
  }
}

// The nearest 1, 2 or 5 times a power of ten, below and above: a logarithmic axis that begins there has round marks.
function below(value) {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  return [5, 2, 1].find((each) => each * power <= value * (1 + 1e-9)) * power;
}
const above = (value) => 1 / below(1 / value);

// Of a column with holes (rounds that were measured elsewhere), the value at or before an index.
function near(values, index) {
  for (let k = index; k >= 0; k -= 1) if (values[k] !== undefined) return values[k];
  return null;
}

// Columns of several tables over the same axis: [[rounds, values, ...], ...]; where one has no value is a hole.
export const join = (tables) => uPlot.join(tables);
