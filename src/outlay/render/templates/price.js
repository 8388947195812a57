// Price a schedule by the table of outlay.analysis.cost.price_table: pure, and without a page.
// It is price.py, lanes.py and links.py once more; a test holds them to the same seconds.
const pricing = (() => {
  const PARTS = ["products", "memory", "kernels", "communication", "host", "overhead"];
  const LANES = ["compute", "links", "host", "fetches"];
  const WAITED_FOR = { links: "communication", host: "host", fetches: "memory" };
  const NEUTRAL = { links: 1, network: 1, memory: 1, clock: 1, hosts: 0 };
  const laneOf = (kind) => (kind.startsWith("copy") ? "host" : kind.startsWith("fetch") ? "fetches" : "links");

  // One run of a collective over some links: all rings, with the time to fill and drain them.
  function over(links, kind, payload) {
    const { num } = links;
    if (num < 2) return 0;
    const seconds = payload / links.bandwidth, doublings = Math.ceil(Math.log2(num)), around = ((num - 1) / num) * seconds;
    let steps = links.steps, moving = around;
    if (kind === "all-reduce") {
      [steps, moving] = [2 * Math.min(links.steps, doublings), 2 * around];
      if (links.sums) moving = Math.min(moving, (((num + 1) / num) * payload) / links.sums);
    } else if (kind === "collective-permute") [steps, moving] = [1, seconds];
    else if (kind === "collective-broadcast") [steps, moving] = [doublings, seconds];
    else if (kind === "all-to-all") moving = Math.max(around, links.detour * seconds);
    const waiting = Math.max(links.floor, steps * links.latency);
    return waiting + moving + Math.sqrt(waiting * moving);
  }

  function reachSeconds(table, setting, kind, payload, reach, times) {
    const { hardware } = table;
    const [size, islands, num, bandwidth, steps, sums, detour] = reach;
    const inside = {
      num, steps, detour, bandwidth: bandwidth * setting.links, sums: sums * setting.links,
      latency: hardware.linkLatency, floor: hardware.linkFloor,
    };
    const many = Math.max(1, islands * times), all = (size / islands) * many;
    if (many === 1) return over(inside, kind, payload);
    const across = {
      num: many, steps: many - 1, sums: 0, detour: 0, bandwidth: hardware.network * hardware.networkShare * setting.network,
      latency: hardware.networkLatency, floor: hardware.networkFloor,
    };
    if (kind === "collective-permute") return over({ ...across, floor: hardware.linkFloor }, kind, payload);
    if (num === 1) return over(across, kind, payload);
    if (kind === "all-to-all") return Math.max(over(inside, kind, (payload * num) / all), over(across, kind, payload));
    if (table.kind !== "gpu") {
      const share = payload / num;
      if (kind === "all-reduce") return 2 * over(inside, "reduce-scatter", payload) + over(across, kind, share);
      return over(inside, kind, payload) + over(across, kind, kind === "collective-broadcast" ? payload : share);
    }
    const ring = steps * many + across.steps;
    return over({
      ...across, num: all, steps: ring, bandwidth: Math.min(inside.bandwidth, across.bandwidth * num),
      latency: (inside.latency * steps * many + across.latency * across.steps) / ring,
    }, kind, payload);
  }

  // The part of an event, its seconds on its lane, and those to launch it.
  function costs(table, setting) {
    const { hardware, constants } = table, { crowd } = constants;
    const times = (setting.hosts || table.islands) / table.islands, memory = hardware.memory * setting.memory * constants.memory;
    const exchanged = table.exchanges.map(([kind, payload, reaches, grows, measured]) => {
      if (measured !== undefined) return measured / setting.links;
      if (payload <= 0) return 0;
      const each = table.reaches[reaches].map((reach) => reachSeconds(table, setting, kind, payload, reach, grows ? times : 1));
      return Math.max(0, ...each);
    });
    function product(flops, speed, kernel) {
      if (!flops) return 0;
      const seconds = flops / (table.speeds[speed] * setting.clock) / (kernel ? constants.kernels : constants.products);
      return seconds * (constants.small_product ? 1 + (constants.small_product / seconds) ** constants.small_power : 1);
    }
    return ([kind, , first, second, bytes, kernel]) => {
      const overhead = constants.operation * crowd;
      if (kind === "exchange" || kind === "start") return ["communication", exchanged[first], overhead];
      if (kind.startsWith("copy")) return ["host", (second / hardware.host) * crowd, overhead];
      if (kind === "fetch-start") return ["memory", (second / memory) * crowd, 0];
      const computing = product(first, second, kernel), moving = bytes / memory;
      return [kernel ? "kernels" : computing > moving ? "products" : "memory", Math.max(computing, moving) * crowd, overhead];
    };
  }

  // Transfers under way on the lanes while a block is timed.
  function lanes(behind) {
    const queues = {}, waited = {};
    const end = (one) => one.begin + one.seconds;
    const add = (one) => (queues[one.lane] = queues[one.lane] || []).push(one);
    const until = (lane) => (queues[lane] && queues[lane].length ? end(queues[lane][queues[lane].length - 1]) : 0);
    behind.forEach(add);
    function wait(timed, lane, time) {
      const since = timed.seconds;
      if (time <= since) return;
      timed.add(WAITED_FOR[lane], time - since);
      timed.waits.push({ lane, begin: since, seconds: time - since });
      for (const one of queues[lane] || []) {
        if (end(one) <= since || one.begin >= time) continue;
        const key = `${lane} ${one.number}`;
        waited[key] = (waited[key] || 0) + Math.min(time, end(one)) - Math.max(since, one.begin);
      }
    }
    const after = (seconds) => Object.values(queues).flat().filter((one) => end(one) > seconds)
      .map((one) => ({ ...one, begin: one.begin - seconds }));
    return { add, until, wait, after, waited };
  }

  function block() {
    const timed = { seconds: 0, parts: {}, stretches: [], waits: [], behind: [] };
    timed.add = (part, seconds) => {
      timed.seconds += seconds;
      timed.parts[part] = (timed.parts[part] || 0) + seconds;
    };
    return timed;
  }

  function timeStep(table, cost) {
    const known = new Map();
    function named(number, behind = []) {
      const key = `${number} ${behind.length > 0}`;
      if (!known.has(key)) known.set(key, laidOut(table.blocks[number] || [], behind, false));
      return known.get(key);
    }
    function inside(row, timed, busy) {
      const [kind, label, calls, runs, unknown] = row, isLoop = kind === "loop";
      let blocks = calls.map((number) => named(number));
      if (kind === "branch") blocks = [...blocks].sort((a, b) => a.seconds - b.seconds).slice(-1);
      if (!blocks.length) return;
      const times = isLoop ? runs : 1, begin = timed.seconds, [body, ...others] = blocks;
      const later = isLoop && body.behind.length && times > 1 ? named(calls[0], body.behind) : body;
      for (const [each, num] of [[body, Math.min(times, 1)], [later, Math.max(0, times - 1)], ...others.map((one) => [one, times])]) {
        for (const [part, seconds] of Object.entries(each.parts)) timed.add(part, seconds * num);
      }
      const drawn = isLoop ? [later] : blocks;
      timed.stretches.push({
        lane: "compute", label, part: kind, begin, seconds: timed.seconds - begin, waited: 0, runs: times,
        unknown, inside: drawn.flatMap((one) => one.stretches), waits: drawn.flatMap((one) => one.waits), parts: later.parts,
      });
      for (const one of later.behind) busy.add({ ...one, begin: timed.seconds + one.begin });
    }
    function laidOut(events, behind, untilIdle) {
      const timed = block(), busy = lanes(behind), ends = { "links -1": busy.until("links") };
      for (const row of events) {
        const [kind, label, number] = row;
        if (kind === "loop" || kind === "branch" || kind === "call") {
          inside(row, timed, busy);
          continue;
        }
        const lane = kind === "work" ? "compute" : laneOf(kind), key = `${lane} ${number}`;
        if (kind.endsWith("wait")) {
          busy.wait(timed, lane, ends[key] || 0);
          delete ends[key];
          continue;
        }
        const [part, seconds, overhead] = cost(row);
        if (kind === "work") {
          timed.stretches.push({ lane, label, part, begin: timed.seconds, seconds, waited: seconds, runs: 1, flops: row[2], bytes: row[4] });
          timed.add(part, seconds);
          timed.add("overhead", overhead);
          continue;
        }
        timed.add("overhead", overhead);
        const begin = Math.max(timed.seconds, busy.until(lane));
        const one = { lane, label, part, begin, seconds, waited: 0, runs: 1, number };
        busy.add(one);
        timed.stretches.push(one);
        if (kind === "exchange" || kind === "copy") busy.wait(timed, lane, begin + seconds);
        else ends[key] = begin + seconds;
      }
      if (untilIdle) for (const lane of Object.keys(WAITED_FOR)) busy.wait(timed, lane, busy.until(lane));
      // What is waited for an iteration later is told of the transfer that this one starts: they are alike.
      for (const one of timed.stretches) if (one.number >= 0) one.waited = busy.waited[`${one.lane} ${one.number}`] || 0;
      timed.behind = busy.after(timed.seconds);
      return timed;
    }
    return laidOut(table.blocks[table.entry] || [], [], true);
  }

  // The seconds of one iteration of each loop of unknown length, in all its runs.
  function uncounted(stretches, runs = 1) {
    return stretches.reduce((sum, one) => sum + (one.unknown ? one.seconds * runs : uncounted(one.inside || [], runs * one.runs)), 0);
  }

  // The seconds of a step, their range, their parts, and the step laid out in time.
  function price(table, changed = {}) {
    const setting = { ...NEUTRAL, ...changed }, { constants } = table;
    const timed = timeStep(table, costs(table, setting));
    const parts = Object.fromEntries(PARTS.map((part) => [part, timed.parts[part] || 0]));
    const sum = () => Object.values(parts).reduce((a, b) => a + b, 0);
    if (timed.seconds) parts.overhead += constants.step * constants.crowd;
    parts.overhead += sum() * constants.slowest * Math.log2(setting.hosts || table.islands);
    const seconds = sum(), { own, waiting, waits, rounds } = table.ranges;
    const unknown = seconds && uncounted(timed.stretches) / seconds;
    let [low, high] = [0, 0];
    for (const part of PARTS) {
      const spread = waits.includes(part) ? waiting : own;
      low += parts[part] / spread;
      high += parts[part] * spread;
    }
    return { seconds, low: low * (1 - unknown), high: high * (1 + (rounds - 1) * unknown), parts, timed };
  }

  // What each origin (a line of the model) takes, in all its runs.
  function lines(table, stretches, runs = 1, sums = new Map()) {
    for (const one of stretches) {
      if (one.inside) lines(table, one.inside, runs * one.runs, sums);
      else if (one.lane === "compute") {
        const origin = table.labels[one.label][1];
        const line = sums.get(origin) || { origin, part: one.part, seconds: 0, flops: 0, bytes: 0, most: 0 };
        if (one.seconds * runs > line.most) [line.most, line.part] = [one.seconds * runs, one.part];
        line.seconds += one.seconds * runs;
        line.flops += one.flops * runs;
        line.bytes += one.bytes * runs;
        sums.set(origin, line);
      }
    }
    return sums;
  }

  // The step for Perfetto or chrome://tracing: a loop spans all its iterations and shows one of them.
  function trace(table, timed) {
    const events = [{ ph: "M", pid: 1, name: "process_name", args: { name: `predicted on ${table.target}` } }];
    LANES.forEach((name, at) => events.push({ ph: "M", pid: 1, tid: at + 1, name: "thread_name", args: { name } }));
    const rounded = (seconds) => Math.round(seconds * 1e9) / 1e3;
    function add(stretches, begin) {
      for (const one of stretches) {
        const [name, origin] = table.labels[one.label], ts = begin + one.begin;
        const shown = one.inside ? `${one.part} ${name}` : name;
        const args = one.inside ? { rounds: one.runs } : { what: table.origins[origin], "bound by": one.part, "waited for": one.waited * 1e6 };
        events.push({ ph: "X", pid: 1, tid: LANES.indexOf(one.lane) + 1, name: shown, ts: rounded(ts), dur: rounded(one.seconds), args });
        if (one.inside) add(one.inside, ts);
      }
    }
    add(timed.stretches, 0);
    return { traceEvents: events, displayTimeUnit: "ms" };
  }

  return { PARTS, LANES, price, lines, trace };
})();
