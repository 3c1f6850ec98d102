(() => {
  const line = data.timeline;
  let printing = false;

  const clipped = (text) => escaped(text.length > 70 ? text.slice(0, 69) + "…" : text);

  const span = line.end - line.start;
  const seconds = span >= 2 ? { by: 1, name: "s" } : { by: 1000, name: "ms" };
  const time = (s) => `${Number((s * seconds.by).toPrecision(5))} ${seconds.name}`;
  const at = (s) => s * seconds.by;

  const colors = () => data.themes[dark.matches && !printing ? "dark" : "light"];
  const font = (c, px) => ({ family: getComputedStyle(document.body).fontFamily, size: px || 13, color: c.ink });
  const config = {
    displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, scrollZoom: false,
    displayModeBar: coarse || document.documentElement.clientWidth < 640 ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { filename: "timeline", scale: 2 },
  };

  // Return the index of the last start that is not after `t`; −1 if there is none.
  const lastBegun = (starts, t) => {
    let low = 0, high = starts.length;
    while (low < high) { const middle = (low + high) >> 1; if (starts[middle] <= t) low = middle + 1; else high = middle; }
    return low - 1;
  };
  const runs = data.runs, starts = data.spans.map((step) => step.start);
  const spanAt = (t) => data.spans[lastBegun(starts, t)];
  const runAt = (t) => { const last = lastBegun(runs.start, t); return last >= 0 && t <= runs.end[last] ? last : -1; };

  const unit = line.top >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
  const top = Math.max(line.top, line.weights && line.weights <= 3 * line.top ? line.baseline + line.weights : 0,
    ...line.limits.map((limit) => limit.rss_bytes).filter((bytes) => bytes <= 2 * line.top)) * 1.14 / unit.by;
  // The axis starts at the baseline if that is most of the memory; the button changes that.
  let fromBaseline = line.top - line.baseline < 0.4 * line.baseline;
  const axisRange = () => {
    if (!fromBaseline) return [0, top];
    const above = Math.max(line.top - line.baseline, MIB / 4);
    return [y(line.baseline), y(line.baseline + 1.16 * above)];
  };
  // Above the baseline, ticks count from it.
  const ticks = () => {
    if (!fromBaseline) return { tickformat: ",", nticks: 6 };
    const [first, last] = axisRange(), rough = (last - first) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const above = Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => i * step);
    return { tickmode: "array", tickvals: above.map((n) => first + n), ticktext: above.map((n) => Number(n.toPrecision(6)).toLocaleString("en-US")) };
  };
  const y = (bytes) => bytes / unit.by;
  const peak = line.peaks.find((phasePeak) => phasePeak.overall);
  const phases = [...new Set(line.bands.map((band) => band.phase))];
  const tint = (c, phase) =>
    peak && phase === peak.phase ? c.peak : phases.indexOf(phase) % 2 ? c.muted : c.rail;

  const narrow = () => document.getElementById("timeline").clientWidth < 560;

  // Texts are set only where they fit: Plotly takes long to try all of them.
  let lanes = [];
  const words = (items) => items.map((item) => (at(item.end - item.start) > 0.01 * (range[1] - range[0]) ? clipped(item.text) : ""));
  const wordsOf = () => ({ text: lanes.map(words) });
  const placesOf = (chart) => lanes.map((_, i) => chart.data.length - lanes.length + i);

  function lane(c, axis, items, title) {
    lanes.push(items);
    return {
      type: "bar", orientation: "h", yaxis: axis, y: items.map(() => 0), width: 0.9, showlegend: false,
      base: items.map((item) => at(item.start)), x: items.map((item) => at(item.end - item.start)),
      marker: { color: items.map((item) => item.color), line: { width: 0.8, color: items.map((item) => item.edge || c.surface) } },
      text: words(items), textposition: "inside", insidetextanchor: "middle",
      textangle: 0, constraintext: "inside", textfont: { color: items.map((item) => item.ink), size: 12 },
      customdata: items.map((item) => item.hover), hovertemplate: "%{customdata}<extra></extra>", name: title,
    };
  }

  function traces(c) {
    const t = line.t.map(at), list = [];
    lanes = [];
    const area = (values, name, color) => ({
      x: t, y: values.map(y), name, type: "scatter", mode: "lines", line: { width: 0 }, fillcolor: color,
      stackgroup: "resident", hoverinfo: "skip",
    });
    if (line.file) {
      list.push(area(line.file, "file-backed", c.file));
      if (line.shared) list.push(area(line.shared, "shared", c.shared));
      list.push(area(line.anonymous, "anonymous", c.anonymous));
    } else {
      list.push(area(line.rss, "resident", c.anonymous));
    }
    list.push({
      x: t, y: line.rss.map(y), type: "scatter", mode: "lines", showlegend: false, line: { width: 1.2, color: c.ink },
      customdata: line.t.map((moment, i) => {
        const during = spanAt(moment);
        const where = during ? `${clipped(during.title)} · ${during.phase}` : "";
        const run = runAt(moment);
        const which = run < 0 ? "" : `<br>${runs.sentence[run]}`;
        const above = line.rss[i] - line.baseline;
        const shared = line.shared ? `, shared ${size(line.shared[i])}` : "";
        const split = line.file ? `<br>anonymous ${size(line.anonymous[i])}, file-backed ${size(line.file[i])}${shared}` : "";
        return `<b>${size(line.rss[i])}</b> at ${time(moment)}<br>${size(above)} relative to baseline${split}<br>${where}${which}`;
      }),
      hovertemplate: "%{customdata}<extra></extra>", name: "resident",
    });
    // The highest peak is drawn last, over its neighbours.
    const peaks = [...line.peaks].sort((a, b) => Number(a.overall) - Number(b.overall));
    list.push({
      x: peaks.map((phasePeak) => at(phasePeak.t_s)), y: peaks.map((phasePeak) => y(phasePeak.rss_bytes)), name: "peak of a phase", showlegend: !narrow(),
      type: "scatter", mode: "markers", cliponaxis: false,
      marker: {
        opacity: 1, size: peaks.map((phasePeak) => (phasePeak.overall ? 13 : 8)), line: { width: 1.6, color: peaks.map((phasePeak) => (phasePeak.overall ? c.surface : c.ink)) },
        color: peaks.map((phasePeak) => (phasePeak.overall ? c.peak : c.surface)),
        symbol: peaks.map((phasePeak) => (phasePeak.kind === "exact" ? "circle" : "diamond")),
      },
      customdata: peaks.map((phasePeak) => `<b>${size(phasePeak.rss_bytes - line.baseline)}</b> above baseline<br>peak of ${phasePeak.phase}, ${phasePeak.kind}`),
      hovertemplate: "%{customdata}<extra></extra>",
    });
    list.push(lane(c, "y2", line.bands.map((band) => ({
      start: band.start_s, end: band.end_s, text: band.phase, color: tint(c, band.phase),
      ink: peak && band.phase === peak.phase ? c.surface : phases.indexOf(band.phase) % 2 ? c.surface : c.ink,
      hover: `<b>${band.phase}</b><br>${time(band.end_s - band.start_s)}`,
    })), "phases"));
    const grown = peak ? 0.05 * (peak.rss_bytes - line.baseline) : Infinity;
    const grew = (step) => step.phase !== "start" && step.growth > Math.max(grown, MIB);
    list.push(lane(c, "y3", data.spans.map((step) => ({
      start: step.start, end: step.end, text: step.title,
      color: grew(step) ? c.peak_soft : c.band, ink: grew(step) ? c.peak_ink : c.muted,
      edge: grew(step) ? c.peak : c.line,
      hover: `<b>${clipped(step.title)}</b> · ${step.phase}<br>${escaped(step.sentence)}<br>${step.duration}`,
    })), "steps"));
    // More runs could not be distinguished even when zoomed in; hovering the line names the run.
    if (runs.start.length && runs.start.length <= 500)
      list.push(lane(c, "y3", runs.start.map((start, i) => ({
        start, end: runs.end[i], text: `run ${i + 1}`, color: i % 2 ? c.band : c.surface, ink: c.muted, edge: c.line, hover: runs.sentence[i],
      })), "runs"));
    return list;
  }

  function layout(c, range) {
    const small = narrow();
    const rule = (bytes, dash, color) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: y(bytes), y1: y(bytes), line: { width: 1.4, dash, color }, layer: "above",
    });
    const label = (bytes, text) => ({
      xref: "paper", x: 1, xanchor: "right", y: y(bytes), yanchor: "bottom", showarrow: false, text,
      font: font(c, 12), bgcolor: c.surface, opacity: 0.9, borderpad: 2,
    });
    const shapes = line.bands.map((band) => ({
      type: "rect", yref: "y domain", x0: at(band.start_s), x1: at(band.end_s), y0: 0, y1: 1, layer: "below", line: { width: 0 },
      fillcolor: peak && band.phase === peak.phase ? c.peak_soft : phases.indexOf(band.phase) % 2 ? c.band : c.surface,
    }));
    const annotations = [label(line.baseline, `baseline ${size(line.baseline)}`)];
    shapes.push(rule(line.baseline, "dot", c.ink));
    if (line.weights && y(line.baseline + line.weights) < top && line.weights > 0.03 * line.top) {
      shapes.push({ ...rule(line.baseline + line.weights, "solid", c.surface), opacity: 0.7 }, rule(line.baseline + line.weights, "dash", c.ink));
      annotations.push(label(line.baseline + line.weights, `${fromBaseline ? "" : "baseline + "}weights ${size(line.weights)}`));
    }
    for (const limit of line.limits) {
      if (y(limit.rss_bytes) > top) continue;
      const color = limit.is_exceeded ? c.peak_ink : c.ink;
      shapes.push({ ...rule(limit.rss_bytes, "solid", color), xref: "x", x0: at(limit.start_s), x1: at(limit.end_s) });
      annotations.push({ ...label(limit.rss_bytes, escaped(limit.label)), xref: "x", x: at(limit.end_s), font: { ...font(c, 12), color } });
    }
    if (peak) {
      const left = at(peak.t_s) > (range[0] + range[1]) / 2;
      annotations.push({
        x: at(peak.t_s), y: y(peak.rss_bytes), text: `<b>+${size(peak.rss_bytes - line.baseline)}</b> ${peak.phase}`, showarrow: false,
        xanchor: left ? "right" : "left", xshift: left ? -9 : 9, yanchor: "bottom", yshift: 6, font: { ...font(c, small ? 13 : 15), color: c.peak_ink },
      });
    }
    const quiet = { fixedrange: true, showgrid: false, zeroline: false, showticklabels: false, range: [-0.5, 0.5] };
    return {
      font: font(c), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", shapes, annotations,
      margin: { l: small ? 54 : 62, r: 10, t: 34, b: 44 }, barmode: "overlay", bargap: 0,
      hovermode: "x", modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink }, hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font: font(c), align: "left" },
      dragmode: coarse ? false : dragging, uniformtext: { mode: "hide", minsize: 12 },
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "reversed", itemclick: false, itemdoubleclick: false, bgcolor: "rgba(0,0,0,0)" },
      xaxis: {
        range, anchor: "y3", ticksuffix: ` ${seconds.name}`, nticks: small ? 4 : 9, showgrid: false, zeroline: false, linecolor: c.line,
        ticks: "outside", tickcolor: c.line, minallowed: at(line.start), maxallowed: whole[1],
      },
      yaxis: {
        domain: [0.2, 1], range: axisRange(), fixedrange: true, gridcolor: c.line, zeroline: false, ...ticks(),
        title: { text: fromBaseline ? `${unit.name} above baseline` : `resident, ${unit.name}`, standoff: 8 },
      },
      yaxis2: { ...quiet, domain: [0.105, 0.17] }, yaxis3: { ...quiet, domain: [0.02, 0.085] },
    };
  }

  const whole = [at(line.start), at(Math.max(line.end, line.start + 1e-6))];
  const extent = (phase) => {
    const phaseBands = line.bands.filter((band) => band.phase === phase);
    return [at(Math.min(...phaseBands.map((band) => band.start_s))), at(Math.max(...phaseBands.map((band) => band.end_s)))];
  };
  const padded = ([first, last], by) => {
    const margin = Math.max((last - first) * by, at(1e-6));
    return [Math.max(whole[0], first - margin), Math.min(whole[1], last + margin)];
  };
  const model = phases.length > 1 && phases[0] === "start" ? [padded([extent("start")[1], whole[1]], 0.03)[0], whole[1]] : whole;
  let range = model, dragging = "zoom";

  function drawTimeline() {
    const c = colors();
    Plotly.react("timeline", traces(c), layout(c, range), config);
  }

  function drawRuns() {
    if (!document.getElementById("runs")) return;
    const c = colors();
    const numbers = runs.latency.map((_, i) => i + runs.first);
    const panel = { gridcolor: c.line, zeroline: false, fixedrange: true, nticks: 4, rangemode: "tozero" };
    const scale = Math.max(...runs.latency) >= 1 ? { by: 1, name: "s" } : { by: 1000, name: "ms" };
    const top = Math.max(...runs.rss.map(Math.abs), ...runs.cache);
    const by = top >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" };
    Plotly.react("runs", [
      { x: numbers, y: runs.latency.map((s) => s * scale.by), type: "bar", showlegend: false, marker: { color: c.muted }, hovertemplate: `${runs.unit} %{x}: %{y:.4~g} ${scale.name}<extra></extra>` },
      { x: numbers, y: runs.rss.map((b) => b / by.by), yaxis: "y2", type: "scatter", mode: "lines+markers", line: { color: c.anonymous, width: 2 }, marker: { size: runs.cache.length ? 3 : 6 },
        name: "resident set since the prompt", showlegend: runs.cache.length > 0,
        customdata: runs.rss.map(size), hovertemplate: `after ${runs.unit} %{x}: %{customdata} relative to ${runs.relative}<extra></extra>` },
      ...(runs.cache.length ? [{ x: numbers, y: runs.cache.map((b) => b / by.by), yaxis: "y2", type: "scatter", mode: "lines", line: { color: c.peak, width: 2 },
        name: "KV cache since the prompt", showlegend: true, customdata: runs.cache.map(size), hovertemplate: "%{x} tokens: KV cache %{customdata} larger than after the prompt<extra></extra>" }] : []),
    ], {
      font: font(c), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: runs.cache.length > 0, legend: { orientation: "h", x: 0, y: 0.52, yanchor: "middle" }, bargap: 0.35, dragmode: false,
      margin: { l: 62, r: 10, t: 10, b: 40 }, hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font: font(c) },
      xaxis: { title: { text: runs.axis, standoff: 4 }, fixedrange: true, showgrid: false, zeroline: false, anchor: "y2", tickformat: "d", dtick: numbers.length <= 20 ? 1 : undefined },
      yaxis: { ...panel, domain: [0.56, 1], title: { text: `latency, ${scale.name}` } },
      yaxis2: { ...panel, domain: [0, 0.46], title: { text: `${runs.cache.length ? "growth" : "kept"}, ${by.name}` } },
    }, { ...config, displayModeBar: false });
  }

  function show(next, button) {
    range = next;
    for (const rangeButton of document.querySelectorAll("#ranges > button")) rangeButton.setAttribute("aria-pressed", String(rangeButton === button));
    Plotly.update(chart, wordsOf(), { "xaxis.range": [...next] }, placesOf(chart));
  }

  function addRange(text, next, isPeak) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    if (isPeak) button.className = "peak";
    button.setAttribute("aria-pressed", String(next === range));
    button.addEventListener("click", () => show(next, button));
    document.getElementById("ranges").append(button);
    return button;
  }

  const chart = document.getElementById("timeline");
  if (!chart) return;
  const draw = () => { drawTimeline(); drawRuns(); };
  drawTimeline();
  whenIdle(drawRuns);
  const wholeButton = addRange("whole run", whole, false);
  if (model !== whole) addRange("from loading on", model, false);
  for (const phase of phases) addRange(phase, padded(extent(phase), 0.06), peak && phase === peak.phase);

  const apart = document.createElement("span");
  apart.className = "apart";
  document.getElementById("ranges").append(apart);
  const baseline = document.createElement("button");
  baseline.type = "button";
  baseline.textContent = "without baseline";
  baseline.setAttribute("aria-pressed", String(fromBaseline));
  baseline.addEventListener("click", () => {
    fromBaseline = !fromBaseline;
    baseline.setAttribute("aria-pressed", String(fromBaseline));
    drawTimeline();
  });
  apart.append(baseline);

  const pan = document.createElement("button");
  pan.type = "button";
  pan.className = "pan";
  pan.textContent = "pan";
  pan.setAttribute("aria-pressed", "false");
  pan.addEventListener("click", () => {
    dragging = dragging === "pan" ? "zoom" : "pan";
    pan.setAttribute("aria-pressed", String(dragging === "pan"));
    Plotly.relayout(chart, { dragmode: dragging });
  });
  apart.append(pan);

  // Arrow keys move by a fifth of the visible range, plus and minus zoom around its middle.
  chart.addEventListener("keydown", (event) => {
    const wide = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    const moved = (by) => {
      const first = Math.max(whole[0], Math.min(whole[1] - wide, range[0] + by * wide));
      return [first, first + wide];
    };
    const zoomed = (by) => [Math.max(whole[0], middle - by * wide / 2), Math.min(whole[1], middle + by * wide / 2)];
    const next = {
      ArrowLeft: () => moved(-0.2), ArrowRight: () => moved(0.2), "+": () => zoomed(0.5), "=": () => zoomed(0.5), "-": () => zoomed(2), 0: () => whole,
    }[event.key];
    if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(next(), event.key === "0" ? wholeButton : null);
  });

  chart.on("plotly_relayout", (change) => {
    if (change["xaxis.range[0]"] === undefined) return;
    range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    for (const rangeButton of document.querySelectorAll("#ranges > button")) rangeButton.setAttribute("aria-pressed", "false");
    Plotly.restyle(chart, wordsOf(), placesOf(chart));
  });
  chart.on("plotly_doubleclick", () => { show(whole, wholeButton); return false; });
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });

})();
