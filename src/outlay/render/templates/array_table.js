"use strict";
// The devices may stand below the table.
document.addEventListener("DOMContentLoaded", () => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const detail = document.getElementById("detail");
  const body = document.querySelector("#leaves tbody");
  const MAX_CHIPS = 16;
  const FEW_ROWS = 60;

  // Everything is made from text nodes: whatever a path is called, it stays text.
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
      else if (value !== false && value !== null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };

  // ---- the block picture of one array

  const label = (text, kind = "") => make("span", {class: `label ${kind}`}, text);

  const block = (cell, where) => {
    const one = cell.devices.length === 1;
    const noun = one ? "device" : "devices";
    const attributes = {class: one ? "block" : "block shared", title: `${where} on ${noun} ${cell.text}`,
      "data-devices": cell.devices.join(" ")};
    if (one) return make("div", {...attributes, style: {background: facts.colours[cell.devices[0]]}}, cell.text);
    if (cell.devices.length > MAX_CHIPS) return make("div", attributes, cell.text);
    const chips = cell.devices.map((id) => make("span", {class: "held", style: {"--c": facts.colours[id]}}, String(id)));
    return make("div", attributes, ...chips);
  };

  const blocks = (picture, panel, wide) => {
    const many = picture.columns.length > 12 || picture.rows.length > 12;
    // Slices that do not fit side by side (about 7 pixels a character) stand upright.
    const room = picture.rows.length > picture.columns.length ? 480 : 640;
    const longest = Math.max(...picture.columns.map((text) => text.length));
    const tight = picture.columns.length * (longest + 1) * 7 > (wide ? room : 250);
    const ratio = Math.min(2.4, Math.max(0.5, picture.aspect));
    const alone = wide && picture.panels.length === 1;
    const height = many ? 20 : Math.min(alone ? 120 : 84, Math.max(30, (alone ? 480 : 270) / ratio / picture.rows.length));
    const grid = make("div", {class: `blocks${many ? " many" : ""}${tight ? " tight" : ""}`,
      style: {"--n": picture.columns.length, "--h": `${height}px`, "--cell": many ? "24px" : "22px"}});
    if (picture.columns.some(Boolean)) grid.append(label(""), ...picture.columns.map((text) => label(text, "column")));
    panel.cells.forEach((row, i) => {
      grid.append(label(picture.rows[i]));
      row.forEach((cell, j) => {
        const where = `[${[picture.rows[i], picture.columns[j]].filter(Boolean).join(", ")}]`;
        grid.append(block(cell, where));
      });
    });
    return grid;
  };

  const pictureOf = (leaf, wide) => {
    if (leaf.picture === null) return null;
    const picture = facts.pictures[leaf.picture];
    const dims = [picture.rowDim, picture.columnDim];
    const parts = picture.panels.map((panel) =>
      make("div", {}, panel.title ? make("p", {}, panel.title) : null, blocks(picture, panel, wide)));
    const drawn = [dims[0] === null ? null : `dim ${dims[0]} down`, dims[1] === null ? null : `dim ${dims[1]} across`];
    const caption = drawn.filter(Boolean).join(", ");
    return make("div", {class: "picture", role: "img", "aria-label": `${leaf.path} ${leaf.words}`, tabindex: "0"},
      caption ? make("p", {}, caption) : null, make("div", {class: "slices"}, ...parts));
  };

  const showDetail = (leaf) => {
    const alone = detail.classList.contains("wide");
    const wide = alone || Boolean(detail.closest(".broad"));
    const row = (name, value, code = false) =>
      value ? [make("dt", {}, name), make("dd", {}, code ? make("code", {}, value) : value)] : [];
    const on = leaf.picture === null ? [] : row("on a device", `${leaf.local}, ${leaf.each}`);
    const numbers = [...row("shape", `${leaf.shape} ${leaf.dtype}, ${leaf.total}`), ...on, ...row("spec", leaf.place, true)];
    detail.replaceChildren(...[
      alone ? null : make("h3", {}, leaf.path),
      alone && leaf.picture !== null ? null : make("p", {class: "words"}, leaf.words),
      pictureOf(leaf, wide),
      make("dl", {}, ...(alone ? [] : numbers), ...row("rule", leaf.rule, true), ...row("reason", leaf.reason)),
    ].filter(Boolean));
    detail.dataset.leaf = leaf.path;
    const picture = leaf.picture === null ? null : facts.pictures[leaf.picture];
    detail.classList.toggle("tall", !alone && wide && picture !== null && picture.rows.length > picture.columns.length);
  };

  // ---- devices light up where they hold something

  const light = (id) => {
    document.querySelectorAll(".block").forEach((node) =>
      node.classList.toggle("dim", id !== null && !node.dataset.devices.split(" ").includes(id)));
  };
  document.querySelectorAll(".device").forEach((node) => {
    node.addEventListener("pointerenter", () => light(node.dataset.device));
    node.addEventListener("pointerleave", () => light(null));
  });

  // A notebook shows the page in a frame: as high as the page, where the browser lets it.
  const fitFrame = () => {
    try {
      if (window.frameElement) window.frameElement.style.height = `${Math.min(1400, document.documentElement.offsetHeight + 4)}px`;
    } catch { /* a frame of another origin keeps its height */ }
  };

  if (!body) {
    if (facts.leaves.length) showDetail(facts.leaves[0]);
    fitFrame();
    return;
  }

  // ---- the table

  const filterBox = document.getElementById("filter");
  const foldButton = document.getElementById("fold");
  const byPath = new Map(facts.leaves.map((leaf) => [leaf.path, leaf]));
  const moduleOf = new Map(facts.modules.map((module) => [module.path, module]));
  const depthOf = (path) => { let depth = 0; while (path) { depth += 1; path = moduleOf.get(path).parent; } return depth; };
  const haystack = new Map(facts.leaves.map((leaf) =>
    [leaf, [leaf.path, leaf.place, leaf.rule, leaf.dtype, leaf.words, leaf.kind].join("\n").toLowerCase()]));
  const folded = new Set();
  // Modules and arrays that differ in nothing but numbers: the first stands for all of them until it is opened.
  const opened = new Set();
  const itemsLike = new Map();
  for (const item of [...facts.modules, ...facts.leaves]) {
    if (item.like) itemsLike.set(item.like, [...(itemsLike.get(item.like) ?? []), item]);
  }
  const stoodFor = (item) => Boolean(item.like) && !opened.has(item.like);
  const openAlike = (path) => {
    opened.add(path);
    for (const item of [moduleOf.get(path), ...itemsLike.get(path)]) if (item && moduleOf.has(item.path)) folded.add(item.path);
  };
  const state = {filter: "", sort: "path", down: false, leaf: ""};

  // A frame inside another page has no address of its own to keep the choice in.
  const ownsAddress = location.protocol !== "about:";
  const readAddress = () => {
    const wanted = new URLSearchParams(ownsAddress ? location.hash.slice(1).replaceAll("+", "%2B") : "");
    state.filter = wanted.get("filter") ?? "";
    const [sort, order] = (wanted.get("sort") ?? "path").split(" ");
    state.sort = sort;
    state.down = order === "down";
    filterBox.value = state.filter;
    const leaf = wanted.get("leaf");
    if (byPath.has(leaf)) unfoldTo(leaf);
    return byPath.has(leaf) ? leaf : "";
  };
  const writeAddress = () => {
    if (!ownsAddress) return;
    const parts = [];
    if (state.leaf) parts.push(`leaf=${encodeURIComponent(state.leaf)}`);
    if (state.filter) parts.push(`filter=${encodeURIComponent(state.filter)}`);
    if (state.sort !== "path") parts.push(`sort=${state.sort}${state.down ? "%20down" : ""}`);
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
  };

  const unfoldTo = (path) => {
    const items = [byPath.get(path)];
    for (let at = byPath.get(path).parent; at; at = moduleOf.get(at).parent) items.push(moduleOf.get(at));
    for (const item of items) if (item.like && !opened.has(item.like)) openAlike(item.like);
    for (const item of items.slice(1)) folded.delete(item.path);
  };
  const hidden = (parent) => {
    for (let at = parent; at; at = moduleOf.get(at).parent) if (folded.has(at) || stoodFor(moduleOf.get(at))) return true;
    return false;
  };

  const standsFor = (item, grouped) => grouped && item.folded && !opened.has(item.path);
  const nameOf = (item, grouped) => (standsFor(item, grouped) ? item.folded.name : item.name);
  const eachOf = (item, grouped) => (standsFor(item, grouped) ? item.folded.each : item.each);
  const eachButton = (item, grouped) => (grouped && item.folded ? make("button", {type: "button", class: "alike",
    "data-alike": item.path}, opened.has(item.path) ? "as one" : "each") : "");

  const leafRow = (leaf, grouped) => make("tr",
    {class: `leaf${leaf.copies > 1 || leaf.picture === null ? " whole" : ""}`, "data-path": leaf.path,
      "aria-current": String(leaf.path === state.leaf),
      style: {"--depth": grouped ? depthOf(leaf.parent) : 0, "--share": leaf.share}},
    make("td", {title: leaf.path}, make("button", {type: "button"}, grouped ? nameOf(leaf, true) : leaf.path),
      eachButton(leaf, grouped)),
    make("td", {class: "mid"}, leaf.shape),
    make("td", {class: "mid2"}, leaf.picture === null ? "–" : leaf.local),
    make("td", {title: leaf.words}, make("code", {}, leaf.place)),
    make("td", {class: "num mid"}, leaf.copies ? String(leaf.copies) : "–"),
    make("td", {class: "num bytes"}, eachOf(leaf, grouped)));

  const moduleRow = (module) => make("tr",
    {class: "module", "data-module": module.path, style: {"--depth": depthOf(module.parent)}},
    make("td", {title: module.path}, make("button",
      {type: "button", "aria-expanded": String(!folded.has(module.path))}, nameOf(module, true)),
      eachButton(module, true)),
    make("td", {class: "mid"}, `${standsFor(module, true) ? "each " : ""}${module.leaves} array${module.leaves === 1 ? "" : "s"}`),
    make("td", {class: "mid2"}), make("td"), make("td", {class: "mid"}), make("td", {class: "num"}, eachOf(module, true)));

  const groupedRows = (leaves) => {
    const rows = [];
    const seen = new Set();
    const open = (path) => {
      if (!path || seen.has(path)) return;
      seen.add(path);
      open(moduleOf.get(path).parent);
      const module = moduleOf.get(path);
      if (!hidden(module.parent) && !stoodFor(module)) rows.push(moduleRow(module));
    };
    for (const leaf of leaves) {
      open(leaf.parent);
      if (!hidden(leaf.parent) && !stoodFor(leaf)) rows.push(leafRow(leaf, true));
    }
    return rows;
  };

  const sorted = (leaves) => {
    const key = state.sort;
    const compare = (a, b) => (typeof a[key] === "number" ? a[key] - b[key] : a[key].localeCompare(b[key]));
    return [...leaves].sort((a, b) => (state.down ? -1 : 1) * compare(a, b));
  };

  const render = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = facts.leaves.filter((leaf) => words.every((word) => haystack.get(leaf).includes(word)));
    // Folding is for reading the whole tree; a search shows all it finds, and another order has no modules.
    const inTree = state.sort === "path" && !state.down && !words.length;
    body.replaceChildren(...(inTree ? groupedRows(found) : sorted(found).map((leaf) => leafRow(leaf, false))));
    if (!found.length) body.append(make("tr", {}, make("td", {colspan: "6", class: "empty"},
      facts.leaves.length ? "No array matches the filter." : "No arrays.")));
    const all = facts.leaves.length;
    document.getElementById("count").textContent = found.length === all ? `${all}` : `${found.length} of ${all}`;
    document.querySelectorAll("#leaves th[data-sort]").forEach((th) => {
      if (th.dataset.sort === state.sort) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
    foldButton.hidden = !inTree || !facts.modules.length;
    foldButton.textContent = folded.size ? "Unfold all" : "Fold all";
    fitFrame();
  };

  const pick = (path) => {
    state.leaf = path;
    body.querySelectorAll("tr.leaf").forEach((row) => row.setAttribute("aria-current", String(row.dataset.path === path)));
    showDetail(byPath.get(path));
    fitFrame();
  };

  // A large tree opens as far as fits a screen.
  const foldDeep = () => {
    const depths = facts.modules.map((module) => depthOf(module.path));
    const shown = (items) => items.filter((item) => !stoodFor(item) && !hidden(item.parent));
    const [modules, leaves] = [shown(facts.modules), shown(facts.leaves)];
    const rowsAt = (depth) => modules.filter((module) => depthOf(module.path) <= depth).length +
      leaves.filter((leaf) => depthOf(leaf.parent) < depth).length;
    let depth = 1;
    while (depth <= Math.max(0, ...depths) && rowsAt(depth + 1) <= FEW_ROWS) depth += 1;
    facts.modules.forEach((module, i) => { if (depths[i] >= depth) folded.add(module.path); });
  };

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    const alike = event.target.closest("button[data-alike]")?.dataset.alike;
    if (alike !== undefined) {
      if (!opened.delete(alike)) openAlike(alike);
      render();
      body.querySelector(`button[data-alike="${CSS.escape(alike)}"]`).focus();
    } else if (row?.dataset.module !== undefined) {
      const path = row.dataset.module;
      if (!folded.delete(path)) folded.add(path);
      render();
      body.querySelector(`tr[data-module="${CSS.escape(path)}"] button`).focus();
    } else if (row?.dataset.path !== undefined) {
      pick(row.dataset.path);
      writeAddress();
      const stacked = getComputedStyle(detail).position === "static";
      if (stacked) detail.scrollIntoView({block: "nearest"});
    }
  });
  document.querySelectorAll("#leaves th[data-sort] button").forEach((button) =>
    button.addEventListener("click", () => {
      const key = button.parentElement.dataset.sort;
      const numeric = ["size", "bytes", "copies"].includes(key);
      state.down = state.sort === key ? !state.down : numeric;
      state.sort = key;
      render();
      writeAddress();
    }));
  filterBox.addEventListener("input", () => { state.filter = filterBox.value; render(); writeAddress(); });
  foldButton.addEventListener("click", () => {
    if (folded.size) folded.clear();
    else facts.modules.forEach((module) => folded.add(module.path));
    render();
  });
  const start = () => {
    const wanted = readAddress();
    render();
    const largest = facts.leaves.reduce((a, b) => (b.size >= a.size ? b : a), facts.leaves[0]);
    if (largest) pick(wanted || largest.path);
  };
  window.addEventListener("hashchange", start);
  foldDeep();
  start();
});
