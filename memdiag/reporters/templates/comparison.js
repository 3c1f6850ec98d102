(() => {
  const chart = document.getElementById("lines");
  if (!chart || !window.Plotly) return;
  const data = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const MIB = 1024 * 1024, GIB = 1024 * MIB;
  const top = Math.max(...data.lines.map((line) => Math.max(...line.above)));
  const unit = top >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
  // Plotly reads a few tags and entities in every text that it draws.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function draw(printing) {
    const c = data.themes[dark.matches && !printing ? "dark" : "light"];
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: c.ink };
    const traces = data.lines.map((line) => ({
      x: line.t, y: line.above.map((bytes) => bytes / unit.by), name: escaped(line.label),
      // The one colour that is nearly black would vanish on a dark page.
      type: "scatter", mode: "lines", line: { width: 2, color: line.color === data.themes.light.ink ? c.ink : line.color },
      hovertemplate: `%{y:,.1f} ${unit.name} at %{x:.3f} s<extra>%{fullData.name}</extra>`,
    }));
    const axis = { gridcolor: c.line, zeroline: false, rangemode: "tozero" };
    Plotly.react(chart, traces, {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      margin: { l: 62, r: 10, t: 10, b: 44 }, showlegend: true,
      legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top", bgcolor: "rgba(0,0,0,0)" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      xaxis: { ...axis, title: { text: "seconds since the session's creation began" } },
      yaxis: { ...axis, title: { text: `${unit.name} above the baseline` } },
    }, { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true });
  }

  draw(false);
  dark.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
})();
