"use strict";
// Tables sort by their headings; without this script they are plain tables.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      };
      const numeric = [...table.tBodies[0].rows].some((row) => key(row) !== null);
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        if (numeric) {
          const [x, y] = [key(a), key(b)];
          if (x === null || y === null) return (x === null) - (y === null); // what has no number comes last
          return descending ? y - x : x - y;
        }
        const order = a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
        return descending ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
// What is wider than the screen says that it scrolls.
const widths = new ResizeObserver((boxes) => {
  for (const { target } of boxes) target.classList.toggle("overflows", target.scrollWidth > target.clientWidth + 1);
});
for (const box of document.querySelectorAll(".scroll")) widths.observe(box);
