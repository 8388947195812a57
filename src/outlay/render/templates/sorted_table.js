// Sort tables by the column whose head is clicked, and show the rows that have all the words of the filter.
for (const box of document.querySelectorAll("[data-sorted]")) {
  const body = box.querySelector("tbody"), rows = [...body.rows], [status, filter] = [box.querySelector("[role=status]"), box.querySelector("input")];
  const heads = [...box.querySelectorAll("th")];
  const value = (row, column) => row.cells[column].dataset.order ?? row.cells[column].textContent.trim();
  function compared(a, b) {
    if (a === "" || b === "") return (a === "") - (b === "");
    return isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  }
  function sort(column) {
    const down = heads[column].ariaSort === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].ariaSort = down ? "descending" : "ascending";
    const unknown = (row) => value(row, column) === ""; // last, whichever way
    rows.sort((a, b) => (unknown(a) || unknown(b) || !down ? 1 : -1) * compared(value(a, column), value(b, column)));
    body.append(...rows);
  }
  function show() {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const left = rows.filter((row) => !row.hidden).length;
    status.textContent = left === rows.length ? `${rows.length} rows` : `${left} of ${rows.length} rows`;
  }
  heads.forEach((head, column) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
    button.addEventListener("click", () => sort(column));
    head.replaceChildren(button);
  });
  filter.addEventListener("input", show);
  show();
}
