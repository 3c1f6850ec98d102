(async () => {
  const table = document.getElementById("series"), map = document.getElementById("heat-map");
  const line = document.getElementById("series-chart"), scatter = document.getElementById("estimate-chart");
  if (!table) return;
  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  const sweep = data.sweep.packed ? await unpacked(data.sweep.packed) : data.sweep;
  const { releases, texts, start_s: startS } = sweep;
  const [names, variants, machines, weights, avoidable, counts, pages] = sweep.series;
  const [release, minute, peak, steady, estimated, status] = sweep.points;
  const [stepSeries, stepFigure, stepPoint, stepBefore, stepAfter] = sweep.steps.length ? sweep.steps : [[], [], [], [], []];
  const firsts = [], steps = new Map();
  counts.reduce((first, count, i) => { firsts[i] = first; return first + count; }, 0);
  stepSeries.forEach((series, i) => { if (!steps.has(series)) steps.set(series, []); steps.get(series).push(i); });
  const count = (n) => n.toLocaleString("en-US");
  const kib = (n) => (n === null ? "" : size(n * KIB));
  const percent = (n) => `${Math.round(n * 100) ? (n < 0 ? "−" : "+") : ""}${Math.round(Math.abs(n) * 100)} %`;
  const signed = (n) => `${n > 0 ? "+" : ""}${kib(n)}`;
  const range = (n) => Array.from({ length: n }, (_, i) => i);
  const pointsOf = (i) => range(counts[i]).map((each) => firsts[i] + each);

  // The figures of each row of the table.
  const rows = names.map((_, i) => {
    let newest = firsts[i] + counts[i] - 1, failed = 0;
    for (let each = newest; each >= firsts[i]; each--) if (peak[each] !== null) { newest = each; break; }
    for (let each = firsts[i]; each < firsts[i] + counts[i]; each++) if (status[each]) failed += 1;
    let change = 0;
    for (const step of steps.get(i) || []) if (stepFigure[step] === 0) change += stepAfter[step] - stepBefore[step];
    const p = peak[newest], e = estimated[newest];
    return [names[i], weights[i], p, p !== null && p <= data.sweep.max_ratio * weights[i] ? p / weights[i] : null, steady[newest], change, avoidable[i], p && e !== null ? e / p - 1 : null, failed];
  });
  const shownAs = [
    null, (n) => (n ? kib(n) : ""), kib, (n) => (n === null ? "" : n.toFixed(1)), kib, (n) => (n ? signed(n) : ""), (n) => (n ? kib(n) : ""),
    (n) => (n === null ? "" : percent(n)),
  ];

  const MORE = 100, MAPPED = 25, order = new Intl.Collator("en", { numeric: true });
  const body = table.tBodies[0], pattern = body.rows[0].cloneNode(true), more = document.getElementById("more"), bar = document.getElementById("filters");
  const state = { found: range(names.length), shown: MORE, column: 2, down: true, chosen: 0, byDate: false };
  let printing = false;
  // Sizes and options and, if there are several, the machine.
  const several = new Set(machines).size > 1;
  const detail = (i) => [texts[variants[i]], several ? texts[machines[i]] : ""].filter(Boolean).join(" · ");
  const titled = (i) => [names[i], detail(i)].filter(Boolean).join(" · ");
  const searched = names.map((_, i) => titled(i).toLowerCase());

  const text = document.createElement("input"), which = document.createElement("select"), found = document.createElement("span");
  text.type = "search";
  text.placeholder = "filter rows";
  text.setAttribute("aria-label", "Filter by name, size or option");
  which.setAttribute("aria-label", "Filter by result");
  const filters = {
    "all models": () => true, "with changes": (i) => steps.has(i), grown: (i) => rows[i][5] > 0, shrunk: (i) => rows[i][5] < 0,
    "with avoidable memory": (i) => rows[i][6] > 0, "with failed jobs": (i) => rows[i][8] > 0, "never measured": (i) => rows[i][2] === null,
  };
  for (const name of Object.keys(filters)) which.add(new Option(name, name));
  found.setAttribute("role", "status");
  bar.append(text, which, found);

  const filled = (i) => {
    const made = pattern.cloneNode(true), [name, ...cells] = made.cells, choose = document.createElement("button");
    choose.type = "button";
    choose.className = "sort";
    choose.replaceChildren(...breakable(names[i]));
    choose.addEventListener("click", () => show(i));
    name.replaceChildren(...(line ? [choose] : breakable(names[i])));
    const note = document.createElement("span");
    note.className = "hint";
    note.replaceChildren(...breakable(detail(i)));
    if (note.textContent) name.append(" ", note);
    if (pages[i]) {
      const link = document.createElement("a");
      link.href = `model/${pages[i]}.html`;
      link.textContent = "report";
      name.append(" ", link);
    }
    cells.forEach((cell, column) => {
      const value = rows[i][column + 1];
      cell.textContent = column + 1 < shownAs.length ? shownAs[column + 1](value) : (value ? `${count(value)} of ${count(counts[i])}` : "");
    });
    return made;
  };
  const render = () => {
    body.replaceChildren(...state.found.slice(0, state.shown).map(filled));
    const drawn = Math.min(state.shown, state.found.length);
    found.textContent = `${count(state.found.length)} of ${count(names.length)}${drawn < state.found.length ? `, the first ${count(drawn)} shown` : ""}`;
    more.hidden = drawn === state.found.length;
    more.textContent = `Show ${count(Math.min(MORE, state.found.length - drawn))} more`;
  };
  const filter = () => {
    const wanted = text.value.toLowerCase(), matches = filters[which.value], { column, down } = state;
    state.found = range(names.length).filter((i) => matches(i) && searched[i].includes(wanted));
    // Rows without a figure are last in either order.
    const missing = (value) => value === null || value === "";
    state.found.sort((a, b) => {
      const x = rows[a][column], y = rows[b][column];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return (down ? -1 : 1) * (typeof x === "number" ? x - y : order.compare(x, y));
    });
    state.shown = MORE;
    render();
  };
  const update = () => { filter(); drawMap(); };
  text.addEventListener("input", update);
  which.addEventListener("change", update);
  more.addEventListener("click", () => { state.shown += MORE; render(); });
  table.addEventListener("sort", (event) => { event.preventDefault(); Object.assign(state, event.detail); update(); });

  const config = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, displayModeBar: false };
  const style = (chart) => {
    const c = data.themes[dark.matches && !printing ? "dark" : "light"];
    const font = { family: getComputedStyle(document.body).fontFamily, size: chart.clientWidth < 560 ? 12 : 13, color: c.ink };
    const layout = {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
    };
    return { c, font, layout, narrow: chart.clientWidth < 560 };
  };
  const clipped = (name, length) => (name.length > length ? `${name.slice(0, Math.ceil(length / 2) - 1)}…${name.slice(-Math.floor(length / 2))}` : name);

  function drawMap() {
    if (!map || !window.Plotly) return;
    const { c, font, layout, narrow } = style(map);
    const chosen = state.found.slice(0, MAPPED);
    const cells = chosen.map((i) => {
      const row = releases.map(() => null);
      for (const point of pointsOf(i)) if (peak[point] !== null || row[release[point]] === null) row[release[point]] = point;
      return row;
    });
    const used = range(releases.length).filter((r) => cells.some((row) => row[r] !== null));
    const base = cells.map((row) => { const at = row.find((point) => point !== null && peak[point] !== null); return at === undefined ? null : peak[at]; });
    const ratio = (j, point) => (point === null || peak[point] === null || !base[j] ? null : peak[point] / base[j] - 1);
    const z = cells.map((row, j) => used.map((r) => { const value = ratio(j, row[r]); return value === null ? null : Math.max(-0.5, Math.min(0.5, value)); }));
    const described = (i, j, r) => {
      const point = cells[j][r];
      if (point === null) return "not measured";
      if (peak[point] === null) return texts[status[point]] || "no measurement";
      const change = ratio(j, point);
      return `peak ${kib(peak[point])}${change ? `, ${change > 0 ? "+" : "−"}${(Math.abs(change) * 100).toFixed(1)} %` : ""}`;
    };
    const y = chosen.map((_, j) => j), labels = chosen.map((i) => escaped(clipped(titled(i), narrow ? 16 : 34)));
    const height = 70 + 26 * Math.max(3, chosen.length);
    map.style.height = `${height}px`;
    const annotations = cells.flatMap((row, j) => used.map((r, k) => ({
      x: k, y: j, showarrow: false, font: { ...font, size: narrow ? 10 : 12, color: c.ink },
      text: row[r] === null ? "" : peak[row[r]] === null ? (status[row[r]] ? "✗" : "") : used.length > (narrow ? 4 : 12) ? "" : kib(peak[row[r]]),
    })));
    Plotly.react(map, [{
      type: "heatmap", x: used.map((_, k) => k), y, z, zmin: -0.5, zmax: 0.5, showscale: false, xgap: 2, ygap: 2, hoverongaps: true,
      colorscale: [[0, c.anonymous], [0.5, c.band], [1, c.peak]],
      customdata: chosen.map((i, j) => used.map((r) => `${escaped(titled(i))} on ${escaped(releases[r])}: ${described(i, j, r)}`)), hovertemplate: "%{customdata}<extra></extra>",
    }], {
      ...layout, height, annotations, margin: { l: 10, r: 10, t: 34, b: 10 },
      xaxis: { side: "top", fixedrange: true, showgrid: false, zeroline: false, tickvals: used.map((_, k) => k), ticktext: used.map((r) => escaped(releases[r])) },
      yaxis: { autorange: "reversed", fixedrange: true, showgrid: false, zeroline: false, automargin: true, tickvals: y, ticktext: labels },
    }, config);
    if (!map.dataset.ready && line) map.on("plotly_click", (event) => show(state.found[event.points[0].y]));
    map.dataset.ready = "true";
  }

  function drawSeries() {
    if (!line || !window.Plotly) return;
    const { c, layout, narrow } = style(line), i = state.chosen, points = pointsOf(i);
    const at = (point) => (state.byDate ? new Date((startS + minute[point] * 60) * 1000).toISOString().slice(0, 16) : point - firsts[i]);
    const largest = Math.max(1, ...points.map((point) => Math.max(peak[point] || 0, estimated[point] || 0)));
    const unit = largest * KIB >= 2 * GIB ? { by: GIB / KIB, name: "GiB" } : { by: MIB / KIB, name: "MiB" };
    const dated = state.byDate ? [...points].sort((a, b) => minute[a] - minute[b]) : points;
    const described = (point) => escaped([releases[release[point]], new Date((startS + minute[point] * 60) * 1000).toISOString().slice(0, 10)].filter(Boolean).join(" · "));
    const trace = (name, values, color, symbol, mode) => {
      const used = dated.filter((point) => values[point] !== null);
      return {
        name, type: "scatter", mode, x: used.map(at), y: used.map((point) => values[point] / unit.by), line: { color, width: 2 }, marker: { color, size: 8, symbol },
        customdata: used.map((point) => `${described(point)}<br>${name} ${kib(values[point])}`), hovertemplate: "%{customdata}<extra></extra>", visible: used.length ? true : "legendonly",
      };
    };
    const shapes = [], annotations = [];
    let level = 0;
    for (const step of steps.get(i) || []) {
      const point = firsts[i] + stepPoint[step], change = stepAfter[step] - stepBefore[step];
      const x = state.byDate ? at(point) : at(point) - 0.5;
      shapes.push({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: c.peak_ink, width: 1.2, dash: "dash" } });
      if (stepFigure[step] === 0) annotations.push({ x, y: 1 - 0.06 * (level++ % 3), yref: "paper", yanchor: "top", xanchor: "left", showarrow: false, text: ` ${signed(change)}`, font: { ...layout.font, color: c.peak_ink } });
    }
    const failed = points.filter((point) => status[point]);
    for (const point of failed) annotations.push({ x: at(point), y: 0, yref: "paper", yanchor: "bottom", showarrow: false, text: "✗", font: { ...layout.font, color: c.peak_ink } });
    document.getElementById("h-series-chart").textContent = `${titled(i)} over time`;
    const every = Math.max(1, Math.ceil(points.length / (narrow ? 5 : 12)));
    const ticks = points.filter((_, k) => k % every === 0);
    line.style.height = "380px";
    Plotly.react(line, [
      trace("peak", peak, c.peak, "circle", "lines+markers"), trace("after the runs", steady, c.anonymous, "circle", "lines+markers"),
      trace("estimated peak", estimated, c.muted, "x", "markers"),
    ], {
      ...layout, height: 380, shapes, annotations, margin: { l: 10, r: 10, t: 30, b: 40 },
      xaxis: state.byDate ? { type: "date", showgrid: false, fixedrange: true }
        : { type: "linear", range: [-0.6, points.length - 0.4], showgrid: false, zeroline: false, fixedrange: true, tickvals: ticks.map(at), ticktext: ticks.map((point) => escaped(releases[release[point]])) },
      yaxis: { gridcolor: c.line, zeroline: false, rangemode: "tozero", fixedrange: true, automargin: true, title: { text: unit.name, standoff: 6 } },
    }, config);
  }

  function drawEstimates() {
    if (!scatter || !window.Plotly) return;
    const { c, layout } = style(scatter);
    const known = range(peak.length).filter((point) => peak[point] > 0 && estimated[point] > 0);
    const every = Math.ceil(known.length / 1000), used = known.filter((_, k) => k % every === 0);
    const owner = [];
    counts.forEach((n, i) => { for (let k = 0; k < n; k++) owner.push(i); });
    const low = Math.min(...used.map((point) => Math.min(peak[point], estimated[point]))) / 1024, high = Math.max(...used.map((point) => Math.max(peak[point], estimated[point]))) / 1024;
    const axis = { type: "log", gridcolor: c.line, zeroline: false, fixedrange: true, automargin: true, ...(high > 30 * low ? { dtick: 1 } : { nticks: 5 }) };
    scatter.style.height = "380px";
    Plotly.react(scatter, [
      { type: "scatter", mode: "lines", x: [low, high], y: [low, high], line: { color: c.muted, width: 1.2, dash: "dash" }, hoverinfo: "skip", showlegend: false },
      {
        type: "scatter", mode: "markers", x: used.map((point) => peak[point] / 1024), y: used.map((point) => estimated[point] / 1024), marker: { color: c.anonymous, size: 6, opacity: 0.6 }, showlegend: false,
        customdata: used.map((point) => `${escaped(titled(owner[point]))} on ${escaped(releases[release[point]])}<br>measured ${kib(peak[point])}, estimated ${kib(estimated[point])}`), hovertemplate: "%{customdata}<extra></extra>",
      },
    ], {
      ...layout, height: 380, margin: { l: 10, r: 10, t: 10, b: 44 },
      xaxis: { ...axis, title: { text: "measured, MiB", standoff: 6 } }, yaxis: { ...axis, title: { text: "estimated, MiB", standoff: 6 } },
    }, config);
  }

  function show(i) {
    state.chosen = i;
    drawSeries();
    line.scrollIntoView({ block: "center" });
  }
  const axes = document.getElementById("axis");
  for (const [name, byDate] of axes ? [["by release", false], ["by date", true]] : []) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", String(byDate === state.byDate));
    button.addEventListener("click", () => {
      state.byDate = byDate;
      for (const each of axes.children) each.setAttribute("aria-pressed", String(each === button));
      drawSeries();
    });
    axes.append(button);
  }
  const draw = () => { drawSeries(); drawMap(); drawEstimates(); };
  filter();
  // The model that changed most; without changes the first one.
  const changed = [...steps.keys()].sort((a, b) => Math.abs(rows[b][5]) - Math.abs(rows[a][5]));
  state.chosen = changed.length ? changed[0] : state.found[0];
  for (const each of [drawSeries, drawMap, drawEstimates]) whenIdle(each);
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
  openDetailsToPrint();
})();
