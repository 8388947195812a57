// Fill the figures and the table of leaves for the mesh and the layout that are chosen.
(() => {
  const view = JSON.parse(document.getElementById("explored").textContent);
  const [mesh, layout] = ["mesh", "layout"].map((name) => document.getElementById(`explore-${name}`));
  const text = (tag, words, name) => Object.assign(document.createElement(tag), { textContent: words, className: name || "" });
  const most = Math.max(1, ...Object.values(view.ways).map((way) => way.bytes || 0));
  const asked = new URLSearchParams(location.hash.slice(1)); // so that a choice can be linked to
  const pick = [asked.get("mesh") || view.chosen[0], asked.get("layout") || view.chosen[1]];
  for (const [box, names, chosen] of [[mesh, view.meshes, pick[0]], [layout, view.layouts, pick[1]]]) {
    box.append(...names.map((name) => new Option(name, name, name === chosen, name === chosen)));
    box.addEventListener("change", draw);
  }
  function draw() {
    const way = view.ways[`${mesh.value} ${layout.value}`];
    const figures = document.getElementById("explore-figures");
    const rows = document.querySelector("#explore-leaves tbody");
    rows.replaceChildren();
    if (way.why) {
      figures.replaceChildren(text("p", `refused: ${way.why}`, "line bad"));
      return;
    }
    const bar = text("div", "", "explore-bar");
    bar.append(Object.assign(text("i", ""), { style: `width:${(100 * way.bytes) / most}%` }));
    figures.replaceChildren(text("p", `${way.device} of state on the fullest device, replication ${way.copies}`, "line strong"), bar);
    view.leaves.forEach(([path, shape, dtype], number) => {
      const [spec, bytes, copies] = way.leaves[number];
      const row = document.createElement("tr");
      const name = text("td", "");
      name.append(text("code", path));
      row.append(name, text("td", spec), text("td", bytes, "num"), text("td", copies, "num"), text("td", shape), text("td", dtype));
      rows.append(row);
    });
  }
  draw();
})();
