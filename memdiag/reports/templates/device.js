// The memory on the GPU over time, below the host's: it shows the same range of time.
(() => {
  const chart = document.getElementById("device"), host = document.getElementById("timeline");
  if (!chart || !data.device) return;
  const line = data.device;
  const used = line.t.map((_, i) => line.allocated[i] + (line.context[i] || 0));
  const top = Math.max(...used, 1);
  // Numbers of four digits would not fit next to the axis, whose margin is that of the host's chart.
  const unit = 1.14 * top >= 1000 * MIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
  const seconds = data.timeline.end - data.timeline.start >= 2 ? { by: 1, name: "s" } : { by: 1000, name: "ms" };
  const hasContext = line.context.some((bytes) => bytes !== null);
  const narrow = () => chart.clientWidth < 560;
  let printing = false;
  const colors = () => data.themes[dark.matches && !printing ? "dark" : "light"];
  const font = (c, px) => ({ family: getComputedStyle(document.body).fontFamily, size: px || 13, color: c.ink });

  function traces(c) {
    const x = line.t.map((s) => s * seconds.by);
    const area = (values, name, color) => ({
      x, y: values.map((bytes) => (bytes || 0) / unit.by), name, type: "scatter", mode: "lines",
      line: { width: 0, shape: "hv" }, fillcolor: color, stackgroup: "device", hoverinfo: "skip",
    });
    const peak = used.indexOf(Math.max(...used));
    const text = (i) => `<b>${size(used[i])}</b> at ${Number(x[i].toPrecision(5))} ${seconds.name}<br>allocations ${size(line.allocated[i])}`
      + (line.context[i] === null ? "" : `, context and code ${size(line.context[i])}`);
    return [
      ...(hasContext ? [area(line.context, "context and code", c.rail)] : []),
      area(line.allocated, "allocations", c.anonymous),
      {
        x, y: used.map((bytes) => bytes / unit.by), type: "scatter", mode: "lines", showlegend: false,
        line: { width: 1.2, color: c.ink, shape: "hv" }, customdata: used.map((_, i) => text(i)), hovertemplate: "%{customdata}<extra></extra>",
      },
      {
        x: [x[peak]], y: [used[peak] / unit.by], type: "scatter", mode: "markers", name: "peak", showlegend: !narrow(), cliponaxis: false,
        marker: { size: 12, color: c.peak, line: { width: 1.6, color: c.surface } },
        customdata: [`<b>${size(used[peak])}</b>, exact`], hovertemplate: "%{customdata}<extra></extra>",
      },
    ];
  }

  function layout(c) {
    const weights = line.weights && line.weights > 0.03 * top && line.weights < top;
    return {
      font: font(c), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x", dragmode: false,
      margin: { l: narrow() ? 54 : 62, r: 10, t: 34, b: 40 }, hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font: font(c), align: "left" },
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "reversed", itemclick: false, itemdoubleclick: false, bgcolor: "rgba(0,0,0,0)" },
      xaxis: {
        range: [...host.layout.xaxis.range], fixedrange: true, ticksuffix: ` ${seconds.name}`, nticks: narrow() ? 4 : 9, showgrid: false, zeroline: false,
        linecolor: c.line, ticks: "outside", tickcolor: c.line,
      },
      yaxis: { range: [0, 1.14 * top / unit.by], fixedrange: true, gridcolor: c.line, zeroline: false, tickformat: ",", nticks: 6, title: { text: `on the GPU, ${unit.name}`, standoff: 8 } },
      shapes: weights ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: line.weights / unit.by, y1: line.weights / unit.by, line: { width: 1.4, dash: "dash", color: c.ink } }] : [],
      annotations: weights ? [{ xref: "paper", x: 1, xanchor: "right", y: line.weights / unit.by, yanchor: "bottom", showarrow: false, text: `weights ${size(line.weights)}`, font: font(c, 12), bgcolor: c.surface, opacity: 0.9, borderpad: 2 }] : [],
    };
  }

  const draw = () => {
    const c = colors();
    Plotly.react(chart, traces(c), layout(c), { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: false });
  };
  draw();
  host.on("plotly_afterplot", () => {
    const [first, last] = host.layout.xaxis.range, own = chart.layout.xaxis.range;
    if (own[0] !== first || own[1] !== last) Plotly.relayout(chart, { "xaxis.range": [first, last] });
  });
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
