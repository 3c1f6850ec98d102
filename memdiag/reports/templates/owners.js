(() => {
  const chart = document.getElementById("treemap");
  let moment = 0, printing = false;
  const part = (color, at) => {
    const value = parseInt(color.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const luminance = (color) => 0.2126 * part(color, 1) + 0.7152 * part(color, 3) + 0.0722 * part(color, 5);
  // Black or white, whichever has more contrast.
  const inkOn = (color) => ((luminance(color) + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff");

  function draw() {
    if (!chart) return;
    const theme = dark.matches && !printing ? "dark" : "light", c = data.themes[theme];
    const tiles = data.xrays[moment].tiles;
    const colors = tiles.kind.map((kind) => data.kinds[theme][kind] || (kind === "all" ? c.surface : c.band));
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13 };
    Plotly.react(chart, [{
      type: "treemap", ids: tiles.id, parents: tiles.parent, values: tiles.bytes, labels: tiles.label.map(escaped),
      text: tiles.size, texttemplate: "%{label}<br>%{text}", branchvalues: "remainder", maxdepth: 4, sort: true,
      marker: { colors, line: { width: 1, color: c.surface }, pad: { t: 22, l: 3, r: 3, b: 3 } },
      textfont: { color: colors.map(inkOn) }, pathbar: { visible: true, thickness: 22 },
      customdata: tiles.detail.map((text, i) => `${tiles.size[i]}<br>${escaped(text)}`),
      hovertemplate: "<b>%{label}</b><br>%{customdata}<extra></extra>",
    }], {
      font: { ...font, color: c.ink }, paper_bgcolor: "rgba(0,0,0,0)", margin: { l: 0, r: 0, t: 0, b: 0 },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font: { ...font, color: c.ink }, align: "left" },
    }, { displayModeBar: false, responsive: true, showSendToCloud: false, plotlyServerURL: "" });
  }

  const choice = document.getElementById("moment");
  if (choice) chart.before(choice.closest(".toolbar"));
  if (choice) choice.addEventListener("change", () => {
    moment = Number(choice.value);
    for (const xray of document.querySelectorAll("[data-moment]")) xray.hidden = Number(xray.dataset.moment) !== moment;
    draw();
    document.dispatchEvent(new CustomEvent("moment", { detail: moment }));
  });

  // Filters all copies by text, kind and backing, sorts them, and prints the first of them as rows.
  const MORE = 100, order = new Intl.Collator("en", { numeric: true });
  for (const bar of document.querySelectorAll(".filters")) {
    const table = document.getElementById(bar.dataset.table), body = table.tBodies[0], pattern = body.rows[0];
    const { weights, variants, rows } = data.xrays[Number(bar.dataset.xray)].copies;
    const cells = (row) => {
      const [weight, variant, count, bytes, , resident, , maker, places] = row, [, label, , backing, verified] = variants[variant];
      return [weights[weight][0], label, count, bytes, resident, backing, maker, verified, places];
    };
    const searched = rows.map((row) => [...weights[row[0]], ...variants[row[1]], row[7]].join("\n").toLowerCase());
    let matches = rows.map((_, i) => i), shownCount = body.rows.length, column = -1, down = false;

    const filled = (row) => {
      const filledRow = pattern.cloneNode(true), [name, copy, ...otherCells] = filledRow.cells;
      const [weight, variant, count, bytes, size, residentBytes, resident, maker, places] = row;
      const [title, summary] = weights[weight], [kind, label, parameters, backing, verified] = variants[variant];
      name.textContent = title;
      name.title = summary;
      const [swatch, layout, more] = copy.children;
      swatch.style.background = `var(--${kind})`;
      layout.textContent = label;
      more.textContent = parameters;
      [count, size, resident, backing, maker, verified, places].forEach((text, i) => { otherCells[i].textContent = text; });
      otherCells[1].title = `${bytes.toLocaleString("en-US")} bytes`;
      otherCells[2].title = `${residentBytes.toLocaleString("en-US")} bytes`;
      return filledRow;
    };
    const status = document.createElement("span"), more = document.getElementById(`more-${bar.dataset.xray}`);
    status.setAttribute("role", "status");
    const render = () => {
      body.replaceChildren(...matches.slice(0, shownCount).map((i) => filled(rows[i])));
      showCount();
    };
    const showCount = () => {
      const drawn = Math.min(shownCount, matches.length), count = (n) => n.toLocaleString("en-US");
      status.textContent = `${count(matches.length)} of ${count(rows.length)} rows${drawn < matches.length ? `, the first ${count(drawn)} shown` : ""}`;
      more.hidden = drawn === matches.length;
      more.textContent = `Show ${count(Math.min(MORE, matches.length - drawn))} more`;
    };
    more.addEventListener("click", () => { shownCount += MORE; render(); });

    const text = document.createElement("input");
    text.type = "search";
    text.placeholder = "filter by name or maker";
    text.setAttribute("aria-label", "Filter by name or maker");
    const select = (place, all) => {
      const list = document.createElement("select");
      list.setAttribute("aria-label", all);
      list.add(new Option(all, ""));
      for (const value of new Set(variants.map((variant) => variant[place].split(/[:,]/)[0]))) list.add(new Option(value, value));
      return list;
    };
    const kind = select(0, "all kinds"), backing = select(3, "all backings");
    const sort = () => {
      if (column < 0) return;
      const keys = rows.map((row) => cells(row)[column]);
      const compare = (a, b) => (typeof keys[a] === "number" ? keys[a] - keys[b] : order.compare(keys[a], keys[b]));
      matches.sort((a, b) => (down ? -1 : 1) * compare(a, b));
    };
    const filter = () => {
      const searchedText = text.value.toLowerCase();
      matches = rows.map((_, i) => i).filter((i) => searched[i].includes(searchedText)
        && (!kind.value || variants[rows[i][1]][0] === kind.value)
        && (!backing.value || variants[rows[i][1]][3].startsWith(backing.value)));
      shownCount = MORE;
      sort();
      render();
    };
    for (const field of [text, kind, backing]) field.addEventListener("input", filter);
    bar.append(text, kind, backing, status);
    showCount();

    table.addEventListener("sort", (event) => {
      event.preventDefault();
      ({ column, down } = event.detail);
      sort();
      render();
    });
  }

  whenIdle(draw);
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
