"use strict";
// A page that follows what it shows: it asks for itself again and takes over what has changed; charts stay zoomed.
(() => {
  const state = document.getElementById("live");
  const every = 1000 * Number(state.dataset.every);
  let tag = "";

  const hasChart = (node) => node.matches?.("figure[data-chart]") || node.querySelector?.("figure[data-chart]");

  // The new data of a chart, which stays the one that the reader has zoomed.
  const renew = (chart, now) => {
    const text = now.querySelector("script").textContent;
    if (chart.querySelector("script").textContent === text) return;
    chart.querySelector("script").textContent = text;
    chart.chart.update(JSON.parse(text));
  };

  const replace = (old, now) => {
    const taken = document.importNode(now, true);
    const charts = new Map([...old.querySelectorAll("figure[data-chart]")].map((chart) => [chart.dataset.chart, chart]));
    for (const chart of taken.querySelectorAll("figure[data-chart]")) {
      const before = charts.get(chart.dataset.chart);
      if (!before) continue;
      renew(before, chart);
      chart.replaceWith(before);
    }
    taken.querySelector("#live")?.replaceWith(state);
    old.replaceWith(taken);
    window.outlayCharts(document);
  };

  const follow = (old, now) => {
    if (old === state) return;
    if (old.matches("figure[data-chart]") && old.dataset.chart === now.dataset.chart) return renew(old, now);
    if (!hasChart(old) && old.outerHTML === now.outerHTML) return;
    const [before, after] = [[...old.children], [...now.children]];
    const isSame = (one, other) => one.tagName === other.tagName && one.getAttribute("aria-label") === other.getAttribute("aria-label");
    const goesOn = before.length === after.length && before.every((child, at) => isSame(child, after[at]));
    if (goesOn && (hasChart(old) || old.contains(state))) before.forEach((child, at) => follow(child, after[at]));
    else replace(old, now);
  };

  const ask = async () => {
    try {
      const answer = await fetch(location.pathname, {headers: tag ? {"If-None-Match": tag} : {}, cache: "no-store"});
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") ?? "";
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        follow(document.querySelector("main"), page.querySelector("main"));
        document.title = page.title;
      }
      state.textContent = answer.ok || answer.status === 304 ? "following" : "the run is no longer served";
      state.className = answer.ok || answer.status === 304 ? "chip good" : "chip warning";
    } catch {
      state.textContent = `no longer served; the page is as it was at ${new Date().toLocaleTimeString()}`;
      state.className = "chip warning";
      return; // nobody will answer: the port may go to another program
    }
    setTimeout(ask, every);
  };
  setTimeout(ask, every);
})();
