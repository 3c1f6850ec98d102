(() => {
  const phaseChart = document.getElementById("phase-chart"), sizeChart = document.getElementById("size-chart");
  if (!phaseChart || !window.Plotly) return;
  const { phases, terms, sizes } = data.estimate;
  const exact = (bytes) => `${size(bytes)} (${bytes.toLocaleString("en-US")} bytes)`;
  const unitOf = (bytes) => (bytes >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" });
  const config = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: false };

  let printing = false;
  const drawPhases = (c, kinds, font, narrow) => {
    const totals = phases.map((_, i) => terms.reduce((sum, term) => sum + term.peak_bytes[i], 0));
    const unit = unitOf(Math.max(...totals, 1));
    const traces = terms.map((term) => ({
      name: term.name, type: "bar", orientation: "h", y: phases, x: term.peak_bytes.map((bytes) => bytes / unit.by),
      marker: { color: kinds[term.kind], line: { color: c.surface, width: 0.5 } },
      customdata: term.peak_bytes.map((bytes, i) => `${phases[i]}: ${exact(bytes)}`), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    }));
    const height = 110 + 34 * phases.length + 22 * Math.ceil(terms.length / (narrow ? 1 : 4));
    phaseChart.style.height = `${height}px`;
    Plotly.react(phaseChart, traces, {
      font, height, barmode: "stack", bargap: 0.3, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      margin: { l: 10, r: 10, t: 10, b: 40 }, hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", traceorder: "normal", bgcolor: "rgba(0,0,0,0)", font: { ...font, size: 12 } },
      xaxis: { gridcolor: c.line, zeroline: false, fixedrange: true, title: { text: unit.name, standoff: 4 } },
      yaxis: { autorange: "reversed", fixedrange: true, automargin: true, gridcolor: "rgba(0,0,0,0)" },
    }, config);
  };
  const drawLine = (c, font, base) => {
    const unit = unitOf(Math.max(...sizes.peak_bytes[0]));
    const line = (name, values, color, width) => ({
      name, x: sizes.x, y: values.map((bytes) => bytes / unit.by), type: "scatter", mode: "lines+markers", line: { color, width }, marker: { size: width + 4, color },
      customdata: values.map((bytes, i) => `${escaped(sizes.x_name)} ${sizes.x[i].toLocaleString("en-US")}: ${exact(bytes)}`), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    });
    // Often the same: the wider line stays visible below the other.
    const traces = [line("after the runs", sizes.steady_bytes[0], c.file, 8), line("peak", sizes.peak_bytes[0], c.peak, 2.4)];
    if (sizes.limit_bytes !== null) traces.push({
      name: `limit ${size(sizes.limit_bytes)}`, x: [sizes.x[0], sizes.x[sizes.x.length - 1]], y: [sizes.limit_bytes / unit.by, sizes.limit_bytes / unit.by],
      type: "scatter", mode: "lines", line: { color: c.ink, width: 1.4, dash: "dash" }, hoverinfo: "skip",
    });
    Plotly.react(sizeChart, traces, {
      ...base, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      xaxis: { ...base.xaxis, gridcolor: "rgba(0,0,0,0)", tickformat: ",", zeroline: false },
      yaxis: { gridcolor: c.line, zeroline: false, rangemode: "tozero", fixedrange: true, automargin: true, title: { text: unit.name, standoff: 6 } },
    }, config);
  };
  const drawGrid = (c, font, base) => {
    const known = sizes.peak_bytes.flat().filter((bytes) => bytes !== null);
    const over = (bytes) => sizes.limit_bytes !== null && bytes > sizes.limit_bytes;
    const logs = sizes.peak_bytes.map((row) => row.map((bytes) => (bytes === null ? null : Math.log2(Math.max(bytes, 1)))));
    const low = Math.log2(Math.max(Math.min(...known), 1)), high = Math.log2(Math.max(...known, 2));
    const x = sizes.x.map(String), y = sizes.y.map(String);
    const trace = {
      type: "heatmap", x, y, z: logs, zmin: low, zmax: Math.max(high, low + 0.01), colorscale: [[0, c.band], [1, c.anonymous]], showscale: false, xgap: 2, ygap: 2,
      customdata: sizes.peak_bytes.map((row, j) => row.map((bytes, i) => (bytes === null ? "" : `${escaped(sizes.x_name)} ${x[i]}, ${escaped(sizes.y_name)} ${y[j]}: peak ${exact(bytes)}${over(bytes) ? ", above the limit" : ""}`))),
      hovertemplate: "%{customdata}<extra></extra>",
    };
    const annotations = sizes.peak_bytes.flatMap((row, j) => row.map((bytes, i) => ({
      x: i, y: j, showarrow: false, text: bytes === null ? "" : `${over(bytes) ? "✗ " : ""}${size(bytes)}`,
      font: { ...font, size: 12, color: (logs[j][i] - low) / Math.max(high - low, 0.01) > 0.75 ? c.surface : c.ink },
    })));
    Plotly.react(sizeChart, [trace], {
      ...base, annotations, xaxis: { ...base.xaxis, type: "category" },
      yaxis: { type: "category", autorange: "reversed", fixedrange: true, automargin: true, title: { text: escaped(sizes.y_name), standoff: 6 } },
    }, config);
  };
  const draw = () => {
    const theme = dark.matches && !printing ? "dark" : "light";
    const c = data.themes[theme], narrow = phaseChart.clientWidth < 560;
    const font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: c.ink };
    drawPhases(c, data.kinds[theme], font, narrow);
    if (!sizeChart || !sizes) return;
    const height = sizes.y.length ? 110 + 44 * Math.max(4, sizes.y.length) : 340;
    sizeChart.style.height = `${height}px`;
    const title = escaped(`${sizes.x_name}${sizes.others ? `, at ${sizes.others}` : ""}`);
    const base = {
      font, height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", margin: { l: 10, r: 10, t: 30, b: 44 },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font }, xaxis: { fixedrange: true, title: { text: title, standoff: 6 } },
    };
    (sizes.y.length ? drawGrid : drawLine)(c, font, base);
  };
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
