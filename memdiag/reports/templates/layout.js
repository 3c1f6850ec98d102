// The blocks of the arena in a run: boxes over the numbers of nodes and addresses.
(() => {
  const chart = document.getElementById("layout-chart"), layout = data.layout;
  if (!chart || !layout || !window.Plotly) return;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const MIB = 1024 * 1024;
  // Plotly interprets some tags and entities in every text that it draws.
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const ends = layout.regions.reduce((found, size) => [...found, (found.length ? found[found.length - 1] : 0) + size], []);
  const top = ends[ends.length - 1];
  const config = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: false };
  let printing = false;
  const draw = () => {
    const theme = dark.matches && !printing ? "dark" : "light";
    const c = data.themes[theme], narrow = chart.clientWidth < 560;
    const font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: c.ink };
    const colors = { "in memory at the peak": c.peak, "other values": c.file, "working memory": c.muted };
    const traces = Object.entries(colors).map(([kind, color]) => {
      const found = layout.kind.flatMap((each, index) => (each === kind ? [index] : []));
      return {
        name: kind, type: "bar", orientation: "h", showlegend: found.length > 0, marker: { color, line: { color: c.surface, width: 0.6 } },
        base: found.map((i) => layout.first[i]), x: found.map((i) => layout.length[i]),
        y: found.map((i) => (layout.offset[i] + layout.bytes[i] / 2) / MIB), width: found.map((i) => layout.bytes[i] / MIB),
        customdata: found.map((i) => escaped(layout.text[i])), hovertemplate: "%{customdata}<extra></extra>",
      };
    });
    const line = (x0, x1, y0, y1, color, dash) => ({ type: "line", x0, x1, y0, y1, line: { color, width: 1.2, dash }, layer: "above" });
    const shapes = ends.slice(0, -1).map((end) => line(0, layout.steps, end / MIB, end / MIB, c.muted, "dot"));
    shapes.push(line(layout.peak_step + 0.5, layout.peak_step + 0.5, 0, top / MIB, c.peak_ink, "dash"));
    chart.style.height = "420px";
    Plotly.react(chart, traces, {
      font, height: 420, barmode: "overlay", bargap: 0, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", shapes,
      margin: { l: 10, r: 10, t: 30, b: 44 }, hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      xaxis: { range: [0, layout.steps], gridcolor: c.line, zeroline: false, tickformat: ",d", title: { text: "node of the run", standoff: 6 } },
      yaxis: { range: [0, top / MIB], gridcolor: c.line, zeroline: false, automargin: true, fixedrange: true, title: { text: "MiB", standoff: 6 } },
    }, config);
  };
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
