(() => {
  if (!window.Plotly) return;
  const clipped = (text) => escaped(text.length > 24 ? `${text.slice(0, 23)}…` : text);
  const times = (one) => `${one.ratio.toFixed(2)} × (${one.low.toFixed(2)}–${one.high.toFixed(2)})`;
  const small = coarse || document.documentElement.clientWidth < 640;
  const config = { displayModeBar: small ? false : "hover", displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function layout(c, more) {
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: c.ink };
    return {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", showlegend: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font, align: "left" }, ...more,
    };
  }

  // Each ratio as a point on its interval: left of the line is faster than before.
  function drawLatencies(chart, c) {
    const rows = data.latencies;
    chart.style.height = `${84 + 34 * rows.length}px`;
    const places = rows.map((_, index) => index);
    Plotly.react(chart, [{
      x: rows.map((row) => row.ratio), y: places, type: "scatter", mode: "markers",
      marker: { size: 11, color: c.anonymous },
      error_x: { type: "data", symmetric: false, color: c.muted, thickness: 2, width: 5,
        array: rows.map((row) => row.high - row.ratio), arrayminus: rows.map((row) => row.ratio - row.low) },
      customdata: rows.map((row) => `<b>${escaped(row.inputs)}</b><br>${row.before} → ${row.after}<br>${times(row)}`),
      hovertemplate: "%{customdata}<extra></extra>",
    }], layout(c, {
      margin: { l: 10, r: 18, t: 10, b: 44 },
      shapes: [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1, line: { color: c.ink, width: 1.4, dash: "dot" } }],
      xaxis: { gridcolor: c.line, zeroline: false, fixedrange: true, title: { text: "latency, × that before" } },
      yaxis: { tickvals: places, ticktext: rows.map((row) => clipped(row.inputs)), range: [rows.length - 0.5, -0.5], fixedrange: true, zeroline: false, showgrid: false, automargin: true },
    }), { ...config, displayModeBar: false });
  }

  // `key` is the memory on the horizontal axis; each chart has the front of its two figures.
  function drawPareto(chart, c, key, name) {
    const most = Math.max(...data.points.map((point) => point[`${key}_bytes`]));
    const unit = most >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
    // A mark is hollow where it is unknown whether the point is faster or slower than the defaults.
    const symbols = (list, symbol, hollow) => list.map((point) => (point.may_equal_defaults ? hollow : symbol));
    const trace = (list, name, marker, more) => ({
      x: list.map((point) => point[`${key}_bytes`] / unit.by), y: list.map((point) => point.drawn_ratio), name, marker,
      error_y: { type: "data", symmetric: false, color: marker.color, thickness: 1.2, width: 0,
        array: list.map((point) => point.high - point.drawn_ratio), arrayminus: list.map((point) => point.drawn_ratio - point.low) },
      type: "scatter", mode: "markers+text", textposition: "top center", cliponaxis: false,
      customdata: list.map((point) => `<b>${escaped(point.label)}</b><br>peak ${point.peak}, steady ${point.steady}<br>latency ${times(point)}`),
      hovertemplate: "%{customdata}<extra></extra>", ...more,
    });
    const line = data.points.filter((point) => point[`on_${key}_front`]).sort((a, b) => a[`${key}_bytes`] - b[`${key}_bytes`]);
    const front = line.filter((point) => !point.is_defaults && !point.is_chosen);
    const defaults = data.points.filter((point) => point.is_defaults && !point.is_chosen), chosen = data.points.filter((point) => point.is_chosen);
    const others = data.points.filter((point) => !point[`on_${key}_front`] && !point.is_defaults && !point.is_chosen);
    const axis = { gridcolor: c.line, zeroline: false };
    Plotly.react(chart, [
      trace(others, "others", { color: c.muted, size: 9, symbol: symbols(others, "x", "diamond-open") }),
      trace(line, "", {}, { mode: "lines", line: { width: 1.5, color: c.rail }, hoverinfo: "skip", showlegend: false, error_y: { visible: false } }),
      trace(front, "on the Pareto front", { color: c.anonymous, size: 11, symbol: symbols(front, "circle", "circle-open") }),
      trace(defaults, "defaults", { color: c.ink, size: 11, symbol: "square" }, { text: defaults.map(() => "defaults"), textposition: "top center" }),
      trace(chosen, "chosen", { color: c.peak, size: 16, symbol: symbols(chosen, "star", "star-open") }, { text: chosen.map(() => "chosen"), textposition: "middle right" }),
      { x: [null], y: [null], name: "hollow: may be as fast as the defaults", type: "scatter", mode: "markers", marker: { color: c.muted, size: 10, symbol: "circle-open" } },
    ], layout(c, {
      margin: { l: 62, r: 18, t: 10, b: 44 }, showlegend: true,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      xaxis: { ...axis, title: { text: `${name}, ${unit.name}` } },
      yaxis: { ...axis, title: { text: "latency, × that of the defaults" } },
    }), config);
  }

  function draw(printing) {
    const c = data.themes[dark.matches && !printing ? "dark" : "light"];
    for (const [id, drawn] of [["latencies", drawLatencies], ["pareto", (chart, c) => drawPareto(chart, c, "steady", "steady memory")], ["pareto-peak", (chart, c) => drawPareto(chart, c, "peak", "peak")]]) {
      const chart = document.getElementById(id);
      if (chart) drawn(chart, c);
    }
  }

  draw(false);
  dark.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
})();
