// Price the step anew for other hardware, and draw how it scales and how far each line is from the roofs.
(() => {
  const table = JSON.parse(document.getElementById("priced").textContent), { hardware } = table;
  const MOST_HOSTS = 1024, MOST_DOTS = 60, EM = 12;
  const byId = (id) => document.getElementById(id);
  const compiled = pricing.price(table);
  const round = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en");
  function seconds(value) {
    const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${Number((value * scale).toPrecision(3))} ${unit}`;
  }
  function range(low, high) {
    const [first, last] = [seconds(low), seconds(high)], [number, unit] = first.split(" ");
    return unit === last.split(" ")[1] ? `${number} to ${last}` : `${first} to ${last}`;
  }
  const flops = (value) => (value >= 1e15 ? `${round(value / 1e15)} PFLOP/s` : `${round(value / 1e12)} TFLOP/s`);
  const bytes = (value) => (value >= 1e12 ? `${round(value / 1e12)} TB/s` : `${round(value / 1e9)} GB/s`);
  function made(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // The numbers of hosts that the mesh can have: powers of two as often as large, down to one turn of its axis.
  const isReal = table.kind !== "cpu"; // simulated devices have neither hosts nor a network
  const growing = table.exchanges.filter((row) => isReal && row[3]).map((row) => table.reaches[row[2]]).filter((those) => those.length);
  const least = table.islands / Math.min(table.islands, ...growing.map((those) => Math.min(...those.map((reach) => reach[1]))));
  const counts = [];
  for (let number = 1; number <= MOST_HOSTS; number *= 2) if (number >= least && number * 2 > 1) counts.push(number);
  if (!counts.includes(table.islands)) counts.push(table.islands);
  counts.sort((a, b) => a - b);
  const top = table.speeds.length ? Math.max(...table.speeds) : 0;
  const times = (power) => 2 ** power;
  const shown = (factor) => `×${Number(factor.toFixed(2))}`;
  const knobs = [
    { key: "links", title: table.kind === "tpu" ? "Links of a slice" : "Links in a host", words: (f) => `${shown(f)}: ${bytes(hardware.links * f)} a device`, used: table.exchanges.length },
    { key: "network", title: `Network between ${table.island}s`, words: (f) => `${shown(f)}: ${bytes(hardware.network * f)} a device`, used: isReal && (growing.length || table.islands > 1) },
    { key: "memory", title: "Memory", words: (f) => `${shown(f)}: ${bytes(hardware.memory * f)}`, used: true },
    { key: "clock", title: "Clock of products", min: -1, max: 0.5, words: (f) => `${shown(f)}: ${flops(top * f)}, about ${shown(f ** 3)} of the power`, used: top },
    { key: "hosts", title: `Number of ${table.island}s`, counts, words: (n) => `${round(n, 4)} ${n === 1 ? table.island : `${table.island}s`}, ${round((table.devices / table.islands) * n, 7)} devices`, used: growing.length && counts.length > 1 },
  ].filter((knob) => knob.used);
  const at = { links: 1, network: 1, memory: 1, clock: 1, hosts: table.islands };

  for (const knob of knobs) {
    const id = `what-if-${knob.key}`, label = Object.assign(document.createElement("label"), { htmlFor: id, textContent: knob.title });
    const range = knob.counts ? { min: 0, max: counts.length - 1, step: 1, value: counts.indexOf(table.islands) } : { min: knob.min ?? -2, max: knob.max ?? 2, step: 0.125, value: 0 };
    knob.input = Object.assign(document.createElement("input"), { type: "range", id, ...range });
    knob.output = Object.assign(document.createElement("output"), { htmlFor: id });
    knob.input.addEventListener("input", reprice);
    // On a narrow page the slider stands below its name and its value.
    byId("sliders").append(label, knob.output, knob.input);
  }
  byId("what-if-reset").addEventListener("click", () => {
    for (const knob of knobs) knob.input.value = knob.counts ? counts.indexOf(table.islands) : 0;
    reprice();
  });

  function reprice() {
    for (const knob of knobs) {
      const value = knob.counts ? counts[knob.input.value] : times(Number(knob.input.value));
      at[knob.key] = value;
      knob.output.textContent = knob.words(value);
      knob.input.setAttribute("aria-valuetext", knob.output.textContent);
    }
    const priced = pricing.price(table, at);
    answer(priced);
    plot(priced);
    document.dispatchEvent(new CustomEvent("repriced", { detail: priced }));
  }
  function plot(priced) {
    scaling();
    roofline(priced);
  }
  function answer(priced) {
    const ratio = priced.seconds / compiled.seconds, change = Math.abs(ratio - 1) < 5e-4 ? "as compiled" : `${ratio < 1 ? "" : "+"}${round((ratio - 1) * 100)} %`;
    byId("what-if-step").replaceChildren(seconds(priced.seconds), Object.assign(document.createElement("small"), { textContent: `${range(priced.low, priced.high)}, ${change}` }));
    const bar = byId("what-if-bar"), list = byId("what-if-parts"), scale = Math.max(priced.seconds, compiled.seconds);
    bar.replaceChildren();
    list.replaceChildren();
    pricing.PARTS.forEach((part, number) => {
      const size = priced.parts[part];
      if (!size) return;
      const share = Object.assign(document.createElement("span"), { className: `s${number}`, title: `${part}: ${seconds(size)}` });
      share.style.width = `${(100 * size) / scale}%`;
      bar.append(share);
      const entry = document.createElement("li");
      entry.append(Object.assign(document.createElement("i"), { className: `s${number}` }), part, " ", Object.assign(document.createElement("b"), { textContent: seconds(size) }));
      list.append(entry);
    });
    const { units, unit, mfu } = table.step;
    if (!units) return;
    const each = units / table.devices / priced.seconds;
    const share = mfu ? `; MFU ${round((mfu * compiled.seconds * 100) / priced.seconds / at.clock)} %${at.clock === 1 ? "" : " at that clock"}` : "";
    byId("what-if-rate").textContent = `${round((each * table.devices * at.hosts) / table.islands, 4)} ${unit}/s, ${round(each, 4)} a device${share}`;
  }

  function frame(svg, wide, high, title) {
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.replaceChildren(made("title", {}, title));
  }
  const width = (svg) => Math.max(280, svg.clientWidth || 560);
  const put = (svg, x, y, text, anchor = "middle") => svg.append(made("text", { x, y, "text-anchor": anchor }, text));

  function scaling() {
    const svg = byId("scaling");
    if (!growing.length || counts.length < 2) {
      svg.closest("section").hidden = true;
      return;
    }
    const [wide, high, left, right, up, down] = [width(svg), 300, 52, 16, 16, 44];
    frame(svg, wide, high, `Weak scaling over ${table.island}s`);
    const points = counts.map((number) => [number, pricing.price(table, { ...at, hosts: number }).seconds]);
    const first = points[0][1], widest = Math.log2(counts[counts.length - 1] / counts[0]);
    const x = (number) => left + ((wide - left - right) * Math.log2(number / counts[0])) / widest;
    const lowest = Math.min(...points.map(([, time]) => first / time)), bottom = lowest > 0.55 ? 0.5 : 0;
    const y = (share) => up + (high - up - down) * (1 - (share - bottom) / (1.05 - bottom));
    for (let share = bottom; share <= 1.001; share += bottom ? 0.1 : 0.2) {
      svg.append(made("line", { class: share > 0.999 ? "ideal" : "grid", x1: left, x2: wide - right, y1: y(share), y2: y(share) }));
      put(svg, left - 8, y(share) + 4, `${Math.round(share * 100)} %`, "end");
    }
    counts.forEach((number, place) => {
      if (place % 2 === 0 && Number.isInteger(Math.log2(number))) put(svg, x(number), high - down + 18, round(number, 4));
    });
    put(svg, (left + wide - right) / 2, high - 6, `${table.island}s, each with the same batch`);
    svg.append(made("path", { class: "curve", d: points.map(([number, time], place) => `${place ? "L" : "M"}${x(number)},${y(first / time)}`).join("") }));
    for (const [number, time] of points) {
      const dot = made("circle", { class: "now", cx: x(number), cy: y(first / time), r: 4 });
      dot.append(made("title", {}, `${number} ${table.island}s: ${seconds(time)} a step, ${Math.round((100 * first) / time)} %`));
      svg.append(dot);
      if (number === at.hosts) svg.append(made("circle", { class: "here", cx: x(number), cy: y(first / time), r: 8 }));
    }
    const [most, slowest] = points[points.length - 1];
    byId("scaling-words").textContent = `${seconds(first)} a step on ${round(counts[0], 4)}, ${seconds(slowest)} on ${round(most, 4)}: ${Math.round((100 * first) / slowest)} % of the speed of each device is left.`;
  }

  function roofline(priced) {
    const svg = byId("roofline");
    const lines = [...pricing.lines(table, priced.timed.stretches).values()].sort((a, b) => b.seconds - a.seconds);
    const all = lines.reduce((sum, line) => sum + line.seconds, 0) || 1, dots = lines.filter((line) => line.flops && line.bytes).slice(0, MOST_DOTS);
    if (!dots.length) {
      svg.closest("section").hidden = true;
      return;
    }
    const [wide, high, left, right, up, down] = [width(svg), 300, 52, 16, 20, 44];
    frame(svg, wide, high, "Roofline: FLOP/s of each line over its FLOPs a byte");
    const speed = hardware.memory * at.memory, roof = top * at.clock;
    const ends = (values) => [10 ** Math.floor(Math.log10(Math.min(...values)) - 0.05), 10 ** Math.ceil(Math.log10(Math.max(...values)) + 0.05)];
    const [x0, x1] = ends([...dots.map((line) => line.flops / line.bytes), roof / speed]);
    const [y0, y1] = ends([...dots.map((line) => line.flops / line.seconds), roof]);
    const x = (value) => left + ((wide - left - right) * Math.log10(value / x0)) / Math.log10(x1 / x0);
    const y = (value) => up + (high - up - down) * (1 - Math.log10(value / y0) / Math.log10(y1 / y0));
    for (let value = x0; value <= x1 * 1.01; value *= 10) {
      svg.append(made("line", { class: "grid", x1: x(value), x2: x(value), y1: up, y2: high - down }));
      put(svg, x(value), high - down + 18, round(value), value * 1.01 > x1 ? "end" : "middle");
    }
    for (let value = y0; value <= y1 * 1.01; value *= 10) {
      svg.append(made("line", { class: "grid", x1: left, x2: wide - right, y1: y(value), y2: y(value) }));
      put(svg, left - 6, y(value) + 4, value >= 1e15 ? `${value / 1e15}P` : value >= 1e12 ? `${value / 1e12}T` : `${value / 1e9}G`, "end");
    }
    put(svg, (left + wide - right) / 2, high - 6, "FLOPs a byte of memory");
    put(svg, left + 4, up - 6, "FLOP/s", "start");
    function drawRoof(share, memory, style) {
      const [most, rate] = [roof * share, speed * memory], bend = most / rate;
      const from = rate * x0 < y0 ? [y0 / rate, y0] : [x0, rate * x0];
      svg.append(made("path", { class: style, d: `M${x(from[0])},${y(from[1])}L${x(bend)},${y(most)}H${wide - right}` }));
    }
    drawRoof(1, 1, "roof sheet");
    drawRoof(table.constants.products, table.constants.memory, "roof");
    for (const line of [...dots].reverse()) {
      const share = line.seconds / all, what = table.origins[line.origin];
      const dot = made("circle", { class: line.part, cx: x(line.flops / line.bytes), cy: y(line.flops / line.seconds), r: 3.5 + EM * Math.sqrt(share) });
      dot.append(made("title", {}, `${what}: ${seconds(line.seconds)} a step, ${flops(line.flops / line.seconds)}, ${round(line.flops / line.bytes)} FLOPs a byte`));
      svg.append(dot);
    }
    const others = lines.filter((line) => !line.flops).reduce((sum, line) => sum + line.seconds, 0);
    byId("roofline-words").textContent = `${dots.length} dots, the larger the longer it takes in a step. What has no products is not drawn: ${seconds(others)}, at the speed of memory.`;
  }
  reprice();
  new ResizeObserver(() => plot(pricing.price(table, at))).observe(byId("roofline").closest("section"));
})();
