"use strict";
// Tables: a title sorts by its column, again the other way round. Numbers come from data-value,
// and empty cells stay at the end in both directions.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, column) => {
    title.querySelector("button").addEventListener("click", () => {
      const down = title.getAttribute("aria-sort") === "ascending";
      for (const other of titles) other.setAttribute("aria-sort", "none");
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = [...body.rows].map((row) => {
        const cell = row.cells[column];
        const value = cell.dataset.value;
        return { row, text: cell.textContent, number: value === undefined ? null : Number(value) };
      });
      const empty = (key) => key.number === null && key.text === "";
      keyed.sort((a, b) => {
        if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
        const order =
          a.number !== null && b.number !== null
            ? a.number - b.number
            : a.text.localeCompare(b.text, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...keyed.map((key) => key.row));
    });
  });
}
