(() => {
  // A heading sorts its column, the largest first where there are figures; again turns it round.
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = heading.textContent;
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const now = heading.getAttribute("aria-sort");
        const down = now ? now === "ascending" : heading.classList.contains("n");
        for (const each of headings) each.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        // A table that has only some of its rows on the page sorts them itself.
        if (!table.dispatchEvent(new CustomEvent("sort", { detail: { column, down }, cancelable: true }))) return;
        const value = (row) => {
          const cell = row.cells[column];
          return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
        };
        const compare = (one, other) => (typeof one === "number" ? one - other : one.localeCompare(other));
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, other) => (down ? -1 : 1) * compare(value(one), value(other)));
        table.tBodies[0].replaceChildren(...rows);
      });
    });
  }
})();
