"use strict";
// Charts: lines over steps, to zoom and to read under the pointer. A figure with `data-chart` holds its data as JSON.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 62, RIGHT = 14, TOP = 12, BOTTOM = 38, HEIGHT = 240;
  const FEW = 60; // points of a line that is drawn as it is; of more, a running mean is drawn too

  const make = (tag, attributes = {}, ...children) => {
    const node = tag in {svg: 1, g: 1, path: 1, line: 1, text: 1, rect: 1, circle: 1} ? document.createElementNS(SVG, tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  };
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    for (; Math.abs(value) >= 1024 && at < units.length - 1; at++) value /= 1024;
    return `${Number(value.toPrecision(3))} ${units[at]}`;
  };
  const WORDS = {percent: (value) => `${Number((100 * value).toPrecision(4))}%`, bytes, "": short};

  // Round numbers between two values, about as many as asked for.
  const ticks = (low, high, num, unit) => {
    const scale = unit === "bytes" ? 1024 ** Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)) : 1;
    const rough = (high - low) / num / scale;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((size) => size * power >= rough) * power * scale;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
    return found;
  };
  const powers = (low, high) => {
    const found = [];
    for (let at = Math.floor(Math.log10(low)); 10 ** at <= high * 1.001; at++)
      for (const size of [1, 2, 5]) if (size * 10 ** at >= low * 0.999 && size * 10 ** at <= high * 1.001) found.push(size * 10 ** at);
    return found.length > 8 ? found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : found;
  };

  // The running mean of a noisy line; of one that is smooth by itself it would only move the ends.
  const smoothed = (line) => {
    const means = mean(line), numbers = line.y.filter((y) => y !== null);
    let low = Infinity, high = -Infinity, off = 0;
    for (const y of numbers) { low = Math.min(low, y); high = Math.max(high, y); }
    line.y.forEach((y, at) => { off += y === null ? 0 : Math.abs(y - means[at]); });
    return off > 0.01 * (high - low) * numbers.length ? means : null;
  };

  const mean = (line) => {
    const width = Math.max(1, Math.floor(line.y.length / 25)), sums = [0], counts = [0];
    for (const y of line.y) { sums.push(sums.at(-1) + (y ?? 0)); counts.push(counts.at(-1) + (y === null ? 0 : 1)); }
    return line.y.map((y, at) => {
      if (y === null) return null;
      const begin = Math.max(at - (width >> 1), 0), end = Math.min(at + (width >> 1) + 1, line.y.length);
      return (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
    });
  };

  const group = []; // all charts of the page: those over the same quantity zoom together

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.zoom = null;
      this.at = null;
      this.hidden = new Set();
      this.svg = make("svg", {class: "plot", role: "img", tabindex: "0"});
      this.tip = make("div", {class: "tip", hidden: ""});
      this.logs = make("button", {type: "button", "aria-pressed": "false"}, "log");
      this.smooth = make("button", {type: "button", "aria-pressed": "true"}, "mean");
      this.whole = make("button", {type: "button", hidden: ""}, "whole");
      this.keys = make("span", {class: "keys"});
      const frame = make("div", {class: "drawn"}, this.svg, this.tip);
      figure.append(make("p", {class: "tools"}, this.keys, this.smooth, this.logs, this.whole), frame);
      for (const each of [this.logs, this.smooth]) each.addEventListener("click", () => {
        each.setAttribute("aria-pressed", each.getAttribute("aria-pressed") !== "true");
        this.draw();
      });
      this.whole.addEventListener("click", () => this.show(null));
      this.svg.addEventListener("dblclick", () => this.show(null));
      this.svg.addEventListener("pointerdown", (event) => {
        this.from = this.valueAt(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointermove", (event) => { this.at = this.valueAt(event); this.point(); });
      this.svg.addEventListener("pointerleave", () => { this.at = null; this.point(); });
      this.svg.addEventListener("pointerup", (event) => {
        const [one, other] = [this.from, this.valueAt(event)];
        this.from = null;
        if (one !== null && Math.abs(this.x(one) - this.x(other)) > 6) this.show([Math.min(one, other), Math.max(one, other)]);
        else this.point();
      });
      this.svg.addEventListener("keydown", (event) => this.press(event));
      this.from = null;
      this.update(JSON.parse(figure.querySelector("script").textContent));
      new ResizeObserver(() => this.draw()).observe(frame);
      group.push(this);
    }

    update(data) {
      this.data = data;
      this.words = WORDS[data.unit];
      this.lines = data.lines.map((line) => ({...line, smooth: line.y.length > FEW && data.unit !== "bytes" ? smoothed(line) : null}));
      this.smooth.hidden = !this.lines.some((line) => line.smooth);
      this.svg.setAttribute("aria-label", `${data.title} over ${data.x}`);
      const several = this.lines.length > 1;
      this.keys.replaceChildren(...(several ? this.lines : []).map((line, number) => {
        const key = make("button", {type: "button", "aria-pressed": String(!this.hidden.has(line.name))}, make("i", {class: `s${number % 6}`}), line.name);
        key.addEventListener("click", () => {
          this.hidden.has(line.name) ? this.hidden.delete(line.name) : this.hidden.add(line.name);
          key.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
          this.draw();
        });
        return key;
      }));
      this.draw();
    }

    shown() { return this.lines.map((line, number) => [line, number]).filter(([line]) => !this.hidden.has(line.name)); }

    // Zoom every chart over the same quantity to this stretch of it; null for all of it.
    show(zoom) {
      for (const chart of group) if (chart.data.x === this.data.x && chart.figure.isConnected) { chart.zoom = zoom; chart.draw(); }
    }

    press(event) {
      const [low, high] = this.xs, step = (high - low) / 50;
      const move = {ArrowLeft: -step, ArrowRight: step}[event.key];
      if (move) { this.at = Math.min(high, Math.max(low, (this.at ?? (low + high) / 2) + move)); this.point(); }
      else if (event.key === "+" || event.key === "-") {
        const middle = this.at ?? (low + high) / 2, reach = (high - low) * (event.key === "+" ? 0.25 : 1);
        this.show([Math.max(middle - reach, this.full[0]), Math.min(middle + reach, this.full[1])]);
      } else if (event.key === "Escape") this.show(null);
      else return;
      event.preventDefault();
    }

    valueAt(event) {
      const box = this.svg.getBoundingClientRect(), [low, high] = this.xs;
      const share = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
      return low + (high - low) * Math.min(1, Math.max(0, share));
    }

    x(value) { return LEFT + (this.width - LEFT - RIGHT) * (this.xs[1] > this.xs[0] ? (value - this.xs[0]) / (this.xs[1] - this.xs[0]) : 0.5); }

    y(value) {
      const [low, high] = this.ys, of = (number) => (this.isLog ? Math.log(number) : number);
      return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (of(value) - of(low)) / (of(high) - of(low)));
    }

    scale() {
      const shown = this.shown().map(([line]) => line);
      const all = shown.flatMap((line) => [line.x[0], line.x.at(-1)]).filter((x) => x !== undefined);
      this.full = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
      this.xs = this.zoom ?? this.full;
      const values = [];
      for (const line of shown) line.x.forEach((x, at) => {
        if (x >= this.xs[0] && x <= this.xs[1] && line.y[at] !== null) values.push(line.y[at]);
      });
      let low = Infinity, high = -Infinity;
      for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
      if (!values.length) [low, high] = [0, 1];
      const canLog = low > 0;
      this.logs.hidden = !canLog;
      this.isLog = canLog && this.logs.getAttribute("aria-pressed") === "true";
      if (this.data.unit === "bytes" && !this.isLog) low = 0;
      if (!(high > low)) [low, high] = low ? [low - Math.abs(low) / 2, low + Math.abs(low) / 2] : [0, 1];
      const room = this.isLog ? 0 : (high - low) * 0.04;
      this.ys = [low - (low === 0 ? 0 : room), high + room];
    }

    draw() {
      this.width = Math.max(220, this.svg.parentElement.clientWidth);
      this.scale();
      this.whole.hidden = this.zoom === null;
      const {width} = this, right = width - RIGHT, bottom = HEIGHT - BOTTOM, drawn = [];
      const isSmooth = this.smooth.getAttribute("aria-pressed") === "true";
      for (const value of this.isLog ? powers(...this.ys) : ticks(...this.ys, 5, this.data.unit)) {
        const y = this.y(value);
        drawn.push(make("line", {class: "grid", x1: LEFT, x2: right, y1: y, y2: y}));
        drawn.push(make("text", {x: LEFT - 8, y: y + 4, "text-anchor": "end"}, this.words(Number(value.toPrecision(12)))));
      }
      const values = this.xs[1] > this.xs[0] ? ticks(...this.xs, Math.max(2, Math.floor(width / 80)), "") : [this.xs[0]];
      for (const value of values) if (this.data.x !== "step" || Number.isInteger(value))
        drawn.push(make("text", {x: this.x(value), y: bottom + 17, "text-anchor": "middle"}, short(Number(value.toPrecision(12)))));
      drawn.push(make("text", {x: (LEFT + right) / 2, y: bottom + 33, "text-anchor": "middle"}, this.data.x));
      for (const [line, number] of this.shown()) {
        const smooth = isSmooth && line.smooth;
        drawn.push(this.path(line, line.y, `line l${number % 6}${smooth ? " faint" : ""}`));
        if (smooth) drawn.push(this.path(line, line.smooth, `line l${number % 6}`));
        const bad = line.y.indexOf(null);
        if (bad >= 0 && line.x[bad] >= this.xs[0] && line.x[bad] <= this.xs[1])
          drawn.push(make("path", {class: "not-finite", d: `M${this.x(line.x[bad])},${TOP}V${bottom}`}));
      }
      this.pointer = make("g", {});
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      this.svg.replaceChildren(...drawn, this.pointer);
      this.point();
    }

    path(line, ys, name) {
      let path = "", isOn = false, num = 0, last = null;
      line.x.forEach((x, at) => {
        const inside = x >= this.xs[0] && x <= this.xs[1] && ys[at] !== null;
        if (inside) {
          last = [this.x(x).toFixed(1), this.y(ys[at]).toFixed(1)];
          path += `${isOn ? "L" : "M"}${last}`;
          num++;
        }
        isOn = inside;
      });
      return num === 1 ? make("circle", {class: name.replace("line l", "dot s"), cx: last[0], cy: last[1], r: 3.5}) : make("path", {class: name, d: path});
    }

    // Write what is under the pointer, of every line.
    point() {
      if (this.at === null) { this.tip.hidden = true; this.pointer.replaceChildren(); return; }
      const rows = [], marks = [];
      let where = null;
      for (const [line, number] of this.shown()) {
        let best = -1;
        line.x.forEach((x, at) => {
          if (x >= this.xs[0] && x <= this.xs[1] && (best < 0 || Math.abs(x - this.at) < Math.abs(line.x[best] - this.at))) best = at;
        });
        if (best < 0) continue;
        const x = line.x[best], y = line.y[best];
        if (where === null || Math.abs(x - this.at) < Math.abs(where - this.at)) where = x;
        if (y !== null) marks.push(make("circle", {class: `s${number % 6}`, cx: this.x(x), cy: this.y(y), r: 4}));
        const step = rows.length || this.lines.length > 1 ? ` (${short(x)})` : "";
        rows.push(make("span", {}, make("i", {class: `s${number % 6}`}), `${line.name}${this.lines.length > 1 ? step : ""} `, make("b", {}, y === null ? "not finite" : this.words(y))));
      }
      if (where === null) { this.tip.hidden = true; this.pointer.replaceChildren(); return; }
      const x = this.x(where), from = this.from === null ? null : this.x(this.from);
      if (from !== null) marks.unshift(make("rect", {class: "picked", x: Math.min(from, this.x(this.at)), y: TOP, width: Math.abs(this.x(this.at) - from), height: HEIGHT - TOP - BOTTOM}));
      this.pointer.replaceChildren(make("line", {class: "cross", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM}), ...marks);
      this.tip.replaceChildren(make("span", {class: "muted"}, `${this.data.x} ${short(where)}`), ...rows);
      this.tip.hidden = false;
      const share = this.svg.getBoundingClientRect().width / this.width, room = this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(0, x * share + (x > this.width / 2 ? -room - 12 : 12))}px`;
    }
  }

  window.outlayCharts = (root) => {
    for (const figure of root.querySelectorAll("figure[data-chart]")) if (!figure.chart) figure.chart = new Chart(figure);
  };
  document.addEventListener("DOMContentLoaded", () => window.outlayCharts(document));
})();
