(() => {
  const canvas = document.getElementById("addresses");
  if (!canvas) return;
  const words = document.getElementById("address-range");
  const ROW = 18, GAP = 3;
  let moment = 0, chosen = -1, printing = false, ends = [], total = 0, rows = 1;

  const color = (kind) => data.kinds[dark.matches && !printing ? "dark" : "light"][kind];

  // Stripes mark unused memory.
  function fill(context, kind, isIdle) {
    if (!isIdle) return color(kind);
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const stroke = tile.getContext("2d");
    stroke.fillStyle = color(kind);
    stroke.fillRect(0, 0, 6, 6);
    stroke.fillStyle = data.themes[dark.matches && !printing ? "dark" : "light"].surface;
    stroke.fillRect(0, 0, 2, 6);
    return context.createPattern(tile, "repeat");
  }

  function pieces(first, last) {
    const row = total / rows, found = [];
    for (let at = first; at < last;) {
      const index = Math.min(rows - 1, Math.floor(at / row + 1e-9)), until = Math.min(last, (index + 1) * row);
      found.push([(at - index * row) / row, index, (until - at) / row]);
      if (until <= at) break;
      at = until;
    }
    return found;
  }

  function draw() {
    const ranges = data.xrays[moment].ranges, width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    ends = [];
    total = 0;
    for (const each of ranges) ends.push(total += each[0]);
    rows = width < 560 ? 20 : 12;
    canvas.width = width * scale;
    canvas.height = rows * (ROW + GAP) * scale;
    canvas.setAttribute("aria-valuemax", String(Math.max(0, ranges.length - 1)));
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const patterns = new Map();
    ranges.forEach(([bytes, kind, isIdle], i) => {
      const key = `${kind} ${isIdle}`;
      if (!patterns.has(key)) patterns.set(key, fill(context, kind, isIdle));
      context.fillStyle = patterns.get(key);
      for (const [x, row, share] of pieces(ends[i] - bytes, ends[i])) context.fillRect(x * width, row * (ROW + GAP), share * width, ROW);
    });
    if (chosen >= 0) {
      context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      context.lineWidth = 2;
      for (const [x, row, share] of pieces(ends[chosen] - ranges[chosen][0], ends[chosen]))
        context.strokeRect(x * width + 1, row * (ROW + GAP) + 1, Math.max(2, share * width - 2), ROW - 2);
    }
    for (const key of document.querySelectorAll("canvas.key")) {
      const mark = key.getContext("2d");
      mark.fillStyle = fill(mark, key.dataset.kind, "idle" in key.dataset);
      mark.fillRect(0, 0, 14, 14);
    }
  }

  function choose(index) {
    const ranges = data.xrays[moment].ranges;
    if (!ranges.length) return;
    chosen = Math.max(0, Math.min(ranges.length - 1, index));
    words.textContent = ranges[chosen][3];
    canvas.setAttribute("aria-valuenow", String(chosen));
    canvas.setAttribute("aria-valuetext", ranges[chosen][3]);
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const row = Math.min(rows - 1, Math.floor(event.offsetY / (ROW + GAP)));
    const at = (row + event.offsetX / canvas.clientWidth) * total / rows;
    let low = 0, high = ends.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (ends[middle] > at) high = middle; else low = middle + 1; }
    if (low !== chosen) choose(low);
  });
  canvas.addEventListener("focus", () => { if (chosen < 0) choose(0); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(chosen + steps[event.key]);
  });
  document.addEventListener("moment", (event) => { moment = event.detail; chosen = -1; words.textContent = ""; draw(); });
  window.addEventListener("resize", draw);
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
  draw();
})();
