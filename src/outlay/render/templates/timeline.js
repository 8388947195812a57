// Draw a step in the order of execution: loops unfold where they are wide enough, one iteration beside the other.
(() => {
  const figure = document.getElementById("timeline"), svg = figure.querySelector("svg");
  const [readout, where] = ["timeline-readout", "timeline-where"].map((id) => document.getElementById(id));
  const table = JSON.parse(document.getElementById("priced").textContent);
  const ROW = 34, GAP = 15, AXIS = 30, UNFOLDED = 26, LEAST = 0.6, LETTER = 6.6;
  const MOST_DRAWN = 4000;
  let priced = pricing.price(table), view = [0, priced.seconds || 1], drawn = [], picked = null, dragged = null, turn = -1;
  const lanes = pricing.LANES.filter((lane) => lane === "compute" || uses(priced.timed.stretches, lane));
  const TITLES = { compute: "compute", links: "links", host: "host", fetches: "fetches" };

  function uses(stretches, lane) {
    return stretches.some((one) => one.lane === lane || (one.inside && uses(one.inside, lane)));
  }
  function seconds(value) {
    const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${Number((value * scale).toPrecision(3))} ${unit}`;
  }
  function made(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const width = () => Math.max(200, svg.clientWidth);
  const span = () => view[1] - view[0];
  const across = (time) => ((time - view[0]) / span()) * width();
  const top = (lane) => AXIS + lanes.indexOf(lane) * (ROW + GAP);
  const words = (one) => table.origins[table.labels[one.label][1]];
  const name = (one) => table.labels[one.label][0];

  function box(one, begin, length, lane, style, title) {
    const [x0, x1] = [across(begin), across(begin + length)];
    if (x1 < 0 || x0 > width() || drawn.length > MOST_DRAWN) return;
    const [left, right] = [Math.max(-2, x0), Math.min(width() + 2, x1)], last = drawn[drawn.length - 1];
    // What is thinner than a pixel joins what is there: thousands of them are one line.
    if (right - left < LEAST && last && last.lane === lane && last.right >= left && last.style === style) return;
    const wide = Math.max(right - left, LEAST), at = { one, lane, left, right: left + wide, style, title, begin, length };
    drawn.push(at);
    svg.append(made("rect", { class: style, x: left, y: top(lane), width: wide, height: ROW, rx: wide > 8 ? 3 : 0 }));
    if (title && right - left > 60) {
      const text = title.slice(0, Math.floor((right - left - 12) / LETTER));
      svg.append(made("text", { class: `inside on-${style}`, x: left + 6, y: top(lane) + ROW / 2 + 4 }, text));
    }
    if (one.lane === "links" && one.waited > 0) {
      const marked = Math.max(LEAST, Math.min(1, one.waited / one.seconds) * wide);
      svg.append(made("rect", { class: "waits", x: left + wide - marked, y: top(lane) + ROW - 9, width: marked, height: 9 }));
    }
  }
  // A loop whose iterations are too narrow: what they are made of, from below, and how often it runs.
  function folded(one, begin) {
    const sum = Object.values(one.parts).reduce((a, b) => a + b, 0) || 1;
    const [left, right] = [Math.max(-2, across(begin)), Math.min(width() + 2, across(begin + one.seconds))];
    if (right - left < LEAST) return;
    let down = top("compute") + ROW;
    for (const part of pricing.PARTS) {
      const height = ((one.parts[part] || 0) / sum) * ROW;
      down -= height;
      if (height) svg.append(made("rect", { class: part === "communication" ? "waits" : `${part} soft`, x: left, y: down, width: right - left, height }));
    }
    svg.append(made("rect", { class: "frame", x: left, y: top("compute"), width: right - left, height: ROW, rx: 3 }));
    const text = `one iteration × ${one.runs}`;
    if (right - left > text.length * LETTER) svg.append(made("text", { class: "over", x: (left + right) / 2, y: top("compute") + ROW / 2 + 4 }, text));
    drawn.push({ one, lane: "compute", left, right, style: "loop", begin, length: one.seconds });
    if (lanes.includes("links")) {
      const sent = one.inside.filter((each) => each.lane === "links"), all = sent.reduce((a, each) => a + each.seconds, 0);
      const waited = sent.reduce((a, each) => a + each.waited, 0), each = one.seconds / one.runs;
      const bar = (share, style) => svg.append(made("rect", { class: style, x: left, y: top("links") + ROW * (1 - share), width: right - left, height: ROW * share }));
      bar(Math.min(1, all / each), "communication soft");
      if (waited) bar(Math.min(1, waited / each), "waits");
    }
  }
  function lay(stretches, waits, begin) {
    for (const one of stretches) {
      const at = begin + one.begin;
      if (at > view[1] || at + one.seconds < view[0]) continue;
      if (!one.inside) {
        box(one, at, one.seconds, one.lane, one.part, one.lane === "links" ? words(one) : words(one).split(" in ")[0]);
        continue;
      }
      const runs = Math.max(1, one.runs), each = one.seconds / runs;
      if (runs > 1 && (each / span()) * width() < UNFOLDED) {
        folded(one, at);
        continue;
      }
      const [first, last] = [view[0], view[1]].map((time) => Math.max(0, Math.min(runs - 1, Math.floor((time - at) / each))));
      for (let turn = first; turn <= last; turn++) {
        lay(one.inside, one.waits, at + turn * each);
        if (runs === 1) continue;
        const x = across(at + turn * each);
        svg.append(made("line", { class: "turn", x1: x, x2: x, y1: AXIS - 4, y2: top(lanes[lanes.length - 1]) + ROW }));
        if ((each / span()) * width() > 60) svg.append(made("text", { class: "turn", x: Math.max(x, 0) + 4, y: top(lanes[lanes.length - 1]) + ROW + 12 }, `${turn + 1} of ${runs}`));
      }
    }
    for (const one of waits) box({ ...one, waits: true }, begin + one.begin, one.seconds, "compute", "idle");
  }
  function axis() {
    const rough = span() / Math.max(2, width() / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= rough);
    for (let time = Math.ceil(view[0] / step) * step; time <= view[1]; time += step) {
      const x = across(time);
      svg.append(made("line", { class: "grid", x1: x, x2: x, y1: 17, y2: top(lanes[lanes.length - 1]) + ROW }));
      if (x > 14 && x < width() - 24) svg.append(made("text", { x, y: 12, "text-anchor": "middle" }, time ? seconds(Number(time.toPrecision(6))) : "0"));
    }
  }
  function draw() {
    drawn = [];
    const height = top(lanes[lanes.length - 1]) + ROW + 16;
    svg.setAttribute("viewBox", `0 0 ${width()} ${height}`);
    svg.style.height = `${height}px`;
    svg.replaceChildren(svg.querySelector("defs"));
    axis();
    lay(priced.timed.stretches, priced.timed.waits, 0);
    for (const lane of lanes) svg.append(made("text", { class: "lane-name", x: 1, y: top(lane) - 3 }, lanes.length > 1 ? TITLES[lane] : ""));
    const shown = drawn.find((at) => picked && at.one.label === picked.label && at.one.lane === picked.lane);
    if (shown) svg.append(made("rect", { class: "picked", x: shown.left, y: top(shown.lane), width: shown.right - shown.left, height: ROW, rx: 3 }));
    where.textContent = span() < priced.seconds * 0.999 ? `${seconds(span())} from ${seconds(view[0])} of a step of ${seconds(priced.seconds)}` : `a step of ${seconds(priced.seconds)}`;
  }
  function told({ one, length }) {
    if (one.waits) return `the device waits for ${one.lane}: ${seconds(length)}`;
    if (one.inside) return `${name(one)}: ${one.runs} iterations of ${seconds(one.seconds / one.runs)}; unfold it by a double click or Enter`;
    const waited = one.lane !== "compute" && one.waited ? `, ${seconds(one.waited)} of it waited for` : "";
    const own = words(one) === name(one) ? "" : ` (${name(one)})`;
    const rate = one.flops ? `, ${Number((one.flops / one.seconds / 1e12).toPrecision(3))} TFLOP/s` : "";
    return `${words(one)}${own}: ${seconds(one.seconds)}${waited}, ${one.part === "kernels" ? "attention and kernels" : one.part}${rate}`;
  }
  function show(begin, end) {
    const least = priced.seconds * 1e-6, length = Math.max(least, Math.min(priced.seconds, end - begin));
    const from = Math.max(0, Math.min(priced.seconds - length, begin));
    view = [from, from + length];
    draw();
  }
  const zoom = (factor, at = (view[0] + view[1]) / 2) => show(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  const loops = () => priced.timed.stretches.flatMap((one) => nested(one, 0));
  function nested(one, begin) {
    if (!one.inside) return [];
    const at = { one, begin: begin + one.begin };
    return [...(one.runs > 1 ? [at] : []), ...one.inside.flatMap((each) => nested(each, at.begin))];
  }
  // One iteration of a loop, not its first: that one finds nothing under way.
  function unfold({ one, begin }) {
    const each = one.seconds / one.runs, at = begin + (one.runs > 1 ? each : 0);
    show(at - each * 0.04, at + each * 1.04);
  }
  function unfoldNext() {
    const largest = loops().filter((at) => at.one.seconds > priced.seconds * 0.02);
    if (largest.length) unfold(largest[(turn = (turn + 1) % largest.length)]);
  }
  function at(event) {
    const frame = svg.getBoundingClientRect(), [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const there = drawn.filter((one) => x >= one.left - 1 && x <= one.right + 1 && y >= top(one.lane) && y <= top(one.lane) + ROW);
    return there.sort((a, b) => a.right - a.left - (b.right - b.left))[0];
  }
  function pick(one, keep) {
    readout.textContent = one ? told(one) : readout.dataset.hint;
    if (keep) picked = one ? one.one : null;
  }
  function save() {
    const blob = new Blob([JSON.stringify(pricing.trace(table, priced.timed))], { type: "application/json" });
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: "step.trace.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const whole = () => show(0, priced.seconds);
  const actions = { in: () => zoom(0.5), out: () => zoom(2), whole, layer: unfoldNext, save };
  for (const button of figure.querySelectorAll("button")) button.addEventListener("click", actions[button.dataset.do]);
  if (!loops().length) figure.querySelector("[data-do=layer]").hidden = true;
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return; // else the page would not scroll past
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view[0] + ((event.clientX - svg.getBoundingClientRect().left) / width()) * span());
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, view };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!dragged) return picked || pick(at(event), false);
    const moved = ((dragged.x - event.clientX) / width()) * span();
    if (Math.abs(dragged.x - event.clientX) > 3) show(dragged.view[0] + moved, dragged.view[1] + moved);
  });
  svg.addEventListener("pointerup", (event) => {
    if (dragged && Math.abs(dragged.x - event.clientX) <= 3) pick(at(event), true);
    dragged = null;
    draw();
  });
  svg.addEventListener("pointerleave", () => !picked && pick(null, false));
  svg.addEventListener("dblclick", (event) => {
    const there = at(event);
    if (there) there.one.inside ? unfold(there) : show(there.begin - there.length * 0.2, there.begin + there.length * 1.2);
  });
  svg.addEventListener("keydown", (event) => {
    const by = span() * 0.2;
    const keys = {
      "+": actions.in, "=": actions.in, "-": actions.out, 0: whole, Home: whole, Escape: whole, Enter: unfoldNext,
      ArrowLeft: () => show(view[0] - by, view[1] - by), ArrowRight: () => show(view[0] + by, view[1] + by),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.addEventListener("repriced", (event) => {
    const shares = view.map((time) => time / priced.seconds);
    priced = event.detail;
    show(shares[0] * priced.seconds, shares[1] * priced.seconds);
  });
  pick(null, false);
  new ResizeObserver(draw).observe(figure);
})();
