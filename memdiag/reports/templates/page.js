// Shared by all pages: the charts' data, units and texts of charts, the download, sortable tables.
"use strict";
const data = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const coarse = window.matchMedia("(pointer: coarse)").matches;
const KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
// Plotly interprets some tags and entities in every text that it draws.
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const size = (bytes) => {
  const n = Math.abs(bytes), sign = bytes < 0 ? "−" : "";
  if (n >= GIB) return `${sign}${(n / GIB).toFixed(2)} GiB`;
  if (n >= 10 * MIB) return `${sign}${Math.round(n / MIB).toLocaleString("en-US")} MiB`;
  if (n >= MIB) return `${sign}${(n / MIB).toFixed(1)} MiB`;
  return n >= KIB ? `${sign}${Math.round(n / KIB)} KiB` : `${sign}${Math.round(n)} B`;
};
// The text with places at which long words may break, as `breakable_parts` of memdiag.reports.page.
const breakable = (text) => text.split(/(\s+)/u).flatMap((word) => (word.length > data.max_unbroken
  ? word.split(/(?<=[/\\_.,:=-])|(?<=[a-z])(?=[A-Z])/u).flatMap((part) => [...part].reduce((parts, letter, i) => { i % data.max_unbroken ? parts.push(parts.pop() + letter) : parts.push(letter); return parts; }, []))
      .flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]))
  : [word]));
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
// Charts below the first screen are drawn when the page has loaded.
const whenIdle = (draw) => (window.requestIdleCallback ? requestIdleCallback(() => draw(), { timeout: 500 }) : setTimeout(draw, 50));

(() => {
  // Saves the record inside the page as a file.
  const download = document.getElementById("download");
  if (!download) return;
  const element = document.querySelector("script[data-file]");
  download.addEventListener("click", async () => {
    let record = new Blob([element.textContent], { type: "application/json" });
    if (element.dataset.encoding === "base64") {
      const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      record = await new Response(stream).blob();
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(record);
    link.download = element.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
})();

(() => {
  // Copies the text below a button to the clipboard, or selects it if the browser forbids that.
  for (const button of document.querySelectorAll("button.copy")) {
    const source = button.closest("section").querySelector("pre code");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
    });
  }
})();

(() => {
  // A heading sorts its column, numbers from the largest down; a second click reverses the order.
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = heading.textContent;
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const order = heading.getAttribute("aria-sort");
        const down = order ? order === "ascending" : heading.classList.contains("n");
        for (const otherHeading of headings) otherHeading.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        // A table with only some of its rows on the page sorts all of them itself.
        if (!table.dispatchEvent(new CustomEvent("sort", { detail: { column, down }, cancelable: true }))) return;
        const value = (row) => {
          const cell = row.cells[column];
          return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
        };
        const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b));
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
        table.tBodies[0].replaceChildren(...rows);
      });
    });
  }
})();
