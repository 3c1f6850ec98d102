(() => {
  const chart = document.getElementById("lines");
  if (!chart) return;
  const lines = data.lines;
  const top = Math.max(...lines.map((line) => Math.max(...line.above)));
  const unit = top >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
  const clipped = (text) => escaped(text.length > 40 ? `${text.slice(0, 39)}…` : text);
  const scaled = (sizes) => sizes.map((bytes) => bytes / unit.by);

  const bar = document.createElement("p");
  bar.className = "toolbar";
  function choice(title, options) {
    const label = document.createElement("label"), select = document.createElement("select");
    for (const [text, value] of options) select.add(new Option(text, value));
    select.addEventListener("change", () => draw(false));
    label.append(`${title} `, select);
    bar.append(label);
    return select;
  }
  const columns = lines.map((line, i) => [line.label, String(i)]);
  const shared = (lines[0] ? lines[0].bands : []).map((band) => band.phase)
    .filter((phase, i, all) => all.indexOf(phase) === i && lines.every((line) => line.bands.some((band) => band.phase === phase)));
  const below = choice("Stacked", columns);
  const above = lines.length > 2 ? choice("over it", [["all others", ""], ...columns]) : { value: "" };
  const zero = choice("zero at", [["creation of the session", ""], ...shared.map((phase) => [`start of ${phase}`, phase])]);
  chart.before(bar);

  // When a column's clock reads zero: seconds after its session's creation began.
  const origin = (line) => (zero.value ? line.bands.find((band) => band.phase === zero.value).start : 0);
  const times = (line) => line.t.map((t) => t - origin(line));

  // `alone`: no other line is drawn over the stack, which then gets an edge.
  function over(line, c, alone) {
    // The one colour that is nearly black would vanish on a dark page.
    const color = line.color === data.themes.light.ink ? c.ink : line.color;
    const drawn = { x: times(line), y: scaled(line.above), type: "scatter", mode: "lines", legendgroup: line.label };
    const phases = line.t.map((t) => { const band = line.bands.find((each) => t <= each.end); return band ? band.phase : ""; });
    return [
      ...(alone ? [{ ...drawn, line: { width: 5, color: c.surface }, hoverinfo: "skip", showlegend: false }] : []),
      {
        ...drawn, name: clipped(line.label), line: { width: 2.2, color }, customdata: phases,
        hovertemplate: `%{y:,.1f} ${unit.name} at %{x:.3f} s, %{customdata}<extra>%{fullData.name}</extra>`,
      },
    ];
  }

  function draw(printing) {
    const c = data.themes[dark.matches && !printing ? "dark" : "light"], narrow = chart.clientWidth < 560;
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: c.ink };
    const stacked = lines[Number(below.value)];
    const chosen = lines.filter((line, i) => line !== stacked && (above.value === "" || i === Number(above.value)));
    const fills = { anonymous: c.anonymous, resident: c.anonymous, "file-backed": c.file, shared: c.shared };
    const areas = stacked.layers.map((layer) => ({
      x: times(stacked), y: scaled(layer.above), name: `${clipped(stacked.label)}: ${layer.name}`, type: "scatter", mode: "lines",
      // Pale, for lines of every colour to be seen on it.
      line: { width: 0 }, fillcolor: `${fills[layer.name]}66`, stackgroup: "below", hoverinfo: "skip",
    }));
    const end = Math.max(...[stacked, ...chosen].map((line) => line.t[line.t.length - 1]));
    const bands = stacked.bands.map((band, i) => ({
      type: "rect", yref: "paper", x0: band.start - origin(stacked), x1: band.end - origin(stacked), y0: 0, y1: 1, layer: "below",
      line: { width: 0 }, fillcolor: i % 2 ? c.band : c.surface,
    }));
    const names = stacked.bands.filter((band) => band.end - band.start > 0.013 * band.phase.length * end * (narrow ? 2 : 1)).map((band) => ({
      x: (band.start + band.end) / 2 - origin(stacked), yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: band.phase,
      font: { ...font, size: 12, color: c.muted },
    }));
    const axis = { gridcolor: c.line, zeroline: false };
    Plotly.react(chart, [...areas, ...over(stacked, c, false), ...chosen.flatMap((line) => over(line, c, chosen.length === 1))], {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", shapes: bands, annotations: names,
      margin: { l: 62, r: 10, t: narrow ? 34 : 54, b: 44 }, showlegend: true,
      legend: { orientation: "h", x: 0, y: narrow ? -0.1 : -0.16, yanchor: "top", bgcolor: "rgba(0,0,0,0)" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font },
      xaxis: { ...axis, showgrid: false, ticksuffix: narrow ? " s" : "", title: narrow ? undefined : { text: `seconds since ${zero.value ? `${zero.value} began` : "the session's creation began"}`, standoff: 6 } },
      yaxis: { ...axis, rangemode: "tozero", title: { text: `${unit.name} above the baseline` } },
    }, { displaylogo: false, displayModeBar: narrow ? false : "hover", showSendToCloud: false, plotlyServerURL: "", responsive: true });
  }

  draw(false);
  dark.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
})();
