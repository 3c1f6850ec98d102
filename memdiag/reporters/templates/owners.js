(() => {
  const data = JSON.parse(document.getElementById("charts").textContent);
  const chart = document.getElementById("treemap");
  if (!chart) return;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let moment = 0, printing = false;
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const part = (color, at) => {
    const value = parseInt(color.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const luminance = (color) => 0.2126 * part(color, 1) + 0.7152 * part(color, 3) + 0.0722 * part(color, 5);
  // Black or white, whichever stands out more.
  const inkOn = (color) => ((luminance(color) + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff");

  function draw() {
    if (!window.Plotly) return;
    const theme = dark.matches && !printing ? "dark" : "light", c = data.themes[theme];
    const tiles = data.xrays[moment].tiles;
    const colors = tiles.kind.map((kind) => data.copies[theme][kind] || (kind === "all" ? c.surface : kind === "weights" ? c.band : c.line));
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
  if (choice) choice.addEventListener("change", () => {
    moment = Number(choice.value);
    for (const each of document.querySelectorAll("[data-moment]")) each.hidden = Number(each.dataset.moment) !== moment;
    draw();
    document.dispatchEvent(new CustomEvent("moment", { detail: moment }));
  });

  // A text, a kind and a backing: rows that do not match all three are hidden.
  for (const bar of document.querySelectorAll(".filters")) {
    const rows = [...document.getElementById(bar.dataset.table).tBodies[0].rows];
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    const text = document.createElement("input");
    text.type = "search";
    text.placeholder = "filter by name or maker";
    text.setAttribute("aria-label", "Filter by name or maker");
    const select = (name, all) => {
      const made = document.createElement("select");
      made.setAttribute("aria-label", all);
      made.add(new Option(all, ""));
      for (const value of new Set(rows.map((row) => row.dataset[name]))) made.add(new Option(value, value));
      return made;
    };
    const kind = select("kind", "all kinds"), backing = select("backing", "all backings");
    const show = () => {
      const wanted = text.value.toLowerCase();
      for (const row of rows) row.hidden = !(
        row.textContent.toLowerCase().includes(wanted)
        && (!kind.value || row.dataset.kind === kind.value) && (!backing.value || row.dataset.backing === backing.value));
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    };
    for (const each of [text, kind, backing]) each.addEventListener("input", show);
    bar.append(text, kind, backing, count);
    show();
  }

  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
