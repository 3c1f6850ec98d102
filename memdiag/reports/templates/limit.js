(() => {
  const chart = document.getElementById("limit-chart");
  if (!chart || !window.Plotly) return;
  const limit = data.limit;
  const everything = [...limit.x, ...limit.failed, ...limit.marks.map((mark) => mark.bytes)];
  const unit = Math.max(...everything) >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
  const low = Math.min(...everything) / unit.by, high = Math.max(...everything) / unit.by;
  const gap = Math.max(0.06 * (high - low), 0.02 * high);
  const ratios = [...limit.ratio, ...limit.load_ratio].filter((ratio) => ratio !== null);
  const bottom = Math.min(...ratios, 1) / 1.3, top = Math.max(...ratios, 1.5) * 1.3;

  let printing = false;
  const draw = () => {
    const theme = dark.matches && !printing ? "dark" : "light";
    const c = data.themes[theme], narrow = chart.clientWidth < 560;
    const font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: c.ink };
    const line = (name, values, color, symbol) => ({
      name, x: limit.x.map((bytes) => bytes / unit.by), y: values, type: "scatter", mode: "lines+markers", line: { color, width: 2 }, marker: { size: 8, color, symbol: limit.is_slow.map((slow) => slow ? symbol : `${symbol}-open`) },
      customdata: values.map((ratio, i) => `${escaped(limit.texts[i])}${ratio === null ? "" : `, ${name} ${ratio.toFixed(2)} ×`}`), hovertemplate: "%{customdata}<extra></extra>",
    });
    const traces = [];
    if (limit.load_ratio.some((ratio) => ratio !== null)) traces.push(line("loading", limit.load_ratio, c.file, "square"));
    if (limit.ratio.some((ratio) => ratio !== null)) traces.push(line(limit.y_label, limit.ratio, c.anonymous, "circle"));
    if (limit.failed.length) traces.push({
      name: "killed, or too slow", x: limit.failed.map((bytes) => bytes / unit.by), y: limit.failed.map(() => 1), type: "scatter", mode: "markers",
      marker: { symbol: "x", size: 11, color: c.peak }, customdata: limit.failed_texts.map(escaped), hovertemplate: "%{customdata}<extra></extra>",
    });
    const height = narrow ? 420 : 380;
    const layout = {
      font, height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", margin: { l: narrow ? 46 : 62, r: 10, t: 14, b: 44 },
      legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", bgcolor: "rgba(0,0,0,0)", font: { ...font, size: 12 } },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      xaxis: { range: [low - gap, high + gap], showgrid: false, zeroline: false, fixedrange: true, title: { text: `memory limit (${unit.name})`, standoff: 4 } },
      yaxis: { type: "log", range: [Math.log10(bottom), Math.log10(top)], gridcolor: c.line, zeroline: false, fixedrange: true, automargin: true, ticksuffix: " ×", nticks: 6 },
      shapes: [
        ...limit.marks.map((mark) => ({ type: "line", x0: mark.bytes / unit.by, x1: mark.bytes / unit.by, yref: "paper", y0: 0, y1: 1, line: { color: c.ink, width: 1, dash: "dash" } })),
        { type: "line", xref: "paper", x0: 0, x1: 1, y0: limit.max_slowdown, y1: limit.max_slowdown, line: { color: c.rail, width: 1, dash: "dot" } },
      ],
      annotations: limit.marks.map((mark, i) => ({
        x: mark.bytes / unit.by, yref: "paper", y: 1, yshift: -18 * i, xanchor: 2 * mark.bytes / unit.by <= low + high ? "left" : "right", yanchor: "top", showarrow: false, font: { ...font, size: 12 }, bgcolor: c.surface,
        text: `${escaped(mark.name)} ${size(mark.bytes)}`,
      })),
    };
    chart.style.height = `${height}px`;
    Plotly.react(chart, traces, layout, { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: false });
  };
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
