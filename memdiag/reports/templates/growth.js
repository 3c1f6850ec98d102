(() => {
  const chart = document.getElementById("growth-chart");
  if (!chart || !window.Plotly) return;
  const growth = data.growth, layers = growth.layers;
  const size = (bytes) => {
    const sign = bytes < 0 ? "-" : "", by = Math.abs(bytes);
    if (by >= GIB) return `${sign}${(by / GIB).toFixed(2)} GiB`;
    if (by >= 10 * MIB) return `${sign}${(by / MIB).toFixed(1)} MiB`;
    if (by >= MIB) return `${sign}${(by / MIB).toFixed(2)} MiB`;
    return by >= KIB ? `${sign}${(by / KIB).toFixed(1)} KiB` : `${sign}${by} B`;
  };
  const exact = (bytes) => `${size(bytes)} (${bytes.toLocaleString("en-US")} bytes)`;
  const signed = (bytes) => (bytes > 0 ? "+" : "") + exact(bytes);
  const unitOf = (bytes) => (bytes >= 2 * GIB ? { by: GIB, name: "GiB" } : bytes >= MIB ? { by: MIB, name: "MiB" } : bytes >= KIB ? { by: KIB, name: "KiB" } : { by: 1, name: "bytes" });
  const at = (x) => (growth.unit === "second" ? `${Number(x.toPrecision(4))} s` : `${growth.unit} ${x.toLocaleString("en-US")}`);

  const top = Math.max(...growth.resident_bytes, 1), bottom = Math.min(...growth.resident_bytes);
  const whole = unitOf(top);
  const end = Math.max(...growth.x, ...growth.moments_x, 1);
  const hasOwners = layers.length > 0;
  const drawn = layers.map((layer, i) => ({ ...layer, index: i })).filter((layer) => layer.is_drawn);
  const changes = drawn.flatMap((layer) => layer.growth_bytes);
  let low = Math.min(0, ...changes), high = Math.max(0, ...changes);
  const missing = Math.max(growth.min_range_bytes, 1) - (high - low);
  if (missing > 0) { low -= missing / 2; high += missing / 2; }
  const grown = unitOf(Math.max(-low, high));
  // What grows is on top, where its edge is not shaken by the others.
  const stacked = layers.map((layer, i) => ({ ...layer, index: i })).sort((a, b) => a.is_drawn - b.is_drawn || a.is_judged - b.is_judged);

  let printing = false;
  const draw = () => {
    const theme = dark.matches && !printing ? "dark" : "light";
    const c = data.themes[theme], kinds = data.kinds[theme], narrow = chart.clientWidth < 560;
    const font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: c.ink };
    const traces = [{
      name: "resident set", x: growth.x, y: growth.resident_bytes.map((bytes) => bytes / whole.by), type: "scatter", mode: "lines", showlegend: false,
      line: { color: c.anonymous, width: 2, shape: "hv" }, customdata: growth.x.map((x, i) => `${at(x)}: ${exact(growth.resident_bytes[i])}`),
      hovertemplate: "%{customdata}<extra>resident set</extra>",
    }];
    if (growth.steps.length) traces.push({
      name: "steps", x: growth.steps.map((step) => step.x), y: growth.steps.map((step) => step.resident_bytes / whole.by), type: "scatter", mode: "markers", showlegend: false,
      marker: { symbol: "diamond", size: 8, color: c.peak, line: { color: c.surface, width: 1 } },
      customdata: growth.steps.map((step) => `${at(step.x)}: +${exact(step.rise_bytes)}, to ${size(step.resident_bytes)}`), hovertemplate: "%{customdata}<extra>new maximum</extra>",
    });
    for (const layer of drawn) {
      const shape = { x: growth.growth_x, y: layer.growth_bytes.map((bytes) => bytes / grown.by), type: "scatter", yaxis: "y2", legendgroup: `owner${layer.index}`, showlegend: false };
      traces.push({ ...shape, mode: "lines", line: { color: c.ink, width: 4.5, dash: layer.is_idle ? "dot" : "solid" }, hoverinfo: "skip" });
      traces.push({
        ...shape, name: escaped(layer.label), mode: "lines+markers", line: { color: kinds[layer.kind], width: 2.6, dash: layer.is_idle ? "dot" : "solid" },
        cliponaxis: false, marker: { size: 6, color: kinds[layer.kind], line: { color: c.ink, width: 1 } },
        customdata: layer.growth_bytes.map((bytes, i) => `${growth.growth_moments[i]}: ${signed(bytes)}`), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
      });
    }
    for (const layer of stacked) traces.push({
      name: escaped(layer.is_drawn ? `${layer.label} ${layer.grown}` : layer.label), x: growth.moments_x, y: layer.resident_bytes.map((bytes) => bytes / whole.by), type: "scatter", mode: "lines",
      yaxis: "y3", stackgroup: "owners", legendgroup: `owner${layer.index}`, line: { width: 0.6, color: c.surface }, fillcolor: kinds[layer.kind],
      fillpattern: layer.is_idle ? { shape: "/", fgcolor: c.surface, bgcolor: kinds[layer.kind], size: 7, solidity: 0.25, fillmode: "overlay" } : undefined,
      customdata: layer.resident_bytes.map((bytes, i) => `${growth.moments[i]}: ${exact(bytes)}`), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    });
    const slope = growth.slope;
    const ofOwner = slope && slope.of_owner !== null;
    if (slope) traces.push({
      name: "slope", x: slope.x, y: slope.bytes.map((bytes) => bytes / (ofOwner ? grown.by : whole.by)), type: "scatter", mode: "lines", yaxis: ofOwner ? "y2" : "y", showlegend: false,
      line: { color: c.peak, width: 2.2, dash: "dash" }, hovertemplate: `${escaped(slope.text)}<extra>slope</extra>`,
    });
    const middle = (top + bottom) / 2, height = Math.max(1.3 * (top - bottom), 0.04 * top);
    const axis = { gridcolor: c.line, zeroline: false, fixedrange: true, nticks: 5, automargin: true };
    const domains = hasOwners ? [[0.72, 1], [0.37, 0.65], [0, 0.3]] : [[0, 1]];
    const heading = (text, i) => ({ text, xref: "paper", yref: "paper", x: 0, xanchor: "left", y: domains[i][1], yanchor: "bottom", yshift: 5, showarrow: false, font: { ...font, size: 13 } });
    const band = (i) => ({ type: "rect", layer: "below", x0: 0, x1: growth.warm_up, yref: "paper", y0: domains[i][0], y1: domains[i][1], fillcolor: c.band, line: { width: 0 } });
    const layout = {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", height: hasOwners ? (narrow ? 900 : 800) : 320,
      margin: { l: narrow ? 46 : 62, r: 10, t: 30, b: 40 },
      legend: { orientation: "h", x: 0, y: -0.08, yanchor: "top", traceorder: "reversed", bgcolor: "rgba(0,0,0,0)", font: { ...font, size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      xaxis: { range: [0, end], anchor: hasOwners ? "y3" : "y", showgrid: false, zeroline: false, title: { text: growth.x_label, standoff: 4 }, minallowed: 0, maxallowed: end, tickformat: "," },
      yaxis: { ...axis, domain: domains[0], range: [(middle - height / 2) / whole.by, (middle + height / 2) / whole.by], title: { text: whole.name, standoff: 6 } },
      shapes: domains.map((_, i) => band(i)),
      annotations: [
        heading(growth.has_samples ? `resident set after each ${growth.unit}` : "resident set", 0),
        { x: growth.warm_up, y: domains[0][0], yref: "paper", xanchor: "left", yanchor: "bottom", text: "end of warm-up", showarrow: false, font: { ...font, size: 12, color: c.muted } },
      ],
    };
    if (hasOwners) {
      const gap = 0.12 * (high - low);
      layout.yaxis2 = { ...axis, domain: domains[1], range: [(low - gap) / grown.by, (high + gap) / grown.by], zeroline: true, zerolinecolor: c.rail, title: { text: grown.name, standoff: 6 } };
      layout.yaxis3 = { ...axis, domain: domains[2], rangemode: "tozero", title: { text: whole.name, standoff: 6 } };
      layout.annotations.push(heading(`growth by owner since ${growth.since}`, 1), heading("owners of the resident set", 2));
    }
    if (slope) layout.annotations.push({
      // Where a line that rises leaves space.
      ...(ofOwner ? { x: slope.x[0], xanchor: "left", y: domains[1][1], yanchor: "top", xshift: 4 } : { xref: "paper", x: 1, xanchor: "right", y: domains[0][0], yanchor: "bottom", yshift: 4 }),
      yref: "paper", showarrow: false,
      text: `<b>${escaped(narrow ? slope.text.split(" (")[0] : slope.text)}</b>`, font: { ...font, color: c.peak_ink }, bgcolor: c.surface,
    });
    chart.style.height = `${layout.height}px`;
    Plotly.react(chart, traces, layout, { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: narrow ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
  };
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
