(() => {
  const chart = document.getElementById("timeline");
  if (!chart) return;
  const line = data.run, lanes = line.lanes;
  let printing = false;

  const clipped = (text, length) => escaped(text.length > length ? text.slice(0, length - 1) + "…" : text);
  const whole = [0, Math.max(line.end_s, 1e-6)];
  const seconds = whole[1] >= 2 ? { by: 1, name: "s" } : { by: 1000, name: "ms" };
  const at = (s) => s * seconds.by;
  const time = (s) => `${Number(at(s).toPrecision(5))} ${seconds.name}`;
  // A short bar would vanish: its hover area is at least this long.
  const lasting = (start, end) => at(Math.max(end - start, whole[1] / 2000));

  const colors = () => data.themes[dark.matches && !printing ? "dark" : "light"];
  const font = (c, px) => ({ family: getComputedStyle(document.body).fontFamily, size: px || 13, color: c.ink });
  const narrow = () => chart.clientWidth < 560;

  // The tree has a panel of its own if there are several processes; each process has a panel for
  // its memory and one for its sessions. Heights in pixels, from the top.
  const TREE = 150, MEMORY = 110, ROW = 22, TITLE = 26, GAP = 10, TOP = 34, BOTTOM = 40;
  const hasTree = lanes.length !== 1 || line.left_out > 0;
  const panels = [];
  let height = 0;
  const panel = (kind, lane, pixels) => {
    panels.push({ kind, lane, top: height, bottom: height + pixels });
    height += pixels;
  };
  if (hasTree) { height += TITLE; panel("tree", null, TREE); height += GAP; }
  for (const lane of lanes) {
    height += TITLE;
    panel("memory", lane, MEMORY);
    if (lane.rows) { height += 4; panel("sessions", lane, ROW * lane.rows); }
    height += GAP;
  }
  chart.style.height = `${height + TOP + BOTTOM}px`;
  const domain = (chartPanel) => [1 - chartPanel.bottom / height, 1 - chartPanel.top / height];
  panels.forEach((chartPanel, i) => { chartPanel.axis = i ? `y${i + 1}` : "y"; chartPanel.layout = i ? `yaxis${i + 1}` : "yaxis"; });

  const highest = Math.max(line.peak_bytes, ...line.rss_bytes, 1);
  const highestLane = Math.max(1, ...lanes.flatMap((lane) => [...lane.rss_bytes, ...lane.peaks.map((peak) => peak.rss_bytes)]));
  const unitOf = (bytes) => (bytes >= 2 * GIB ? { by: GIB, name: "GiB" } : { by: MIB, name: "MiB" });
  const treeUnit = unitOf(highest), laneUnit = unitOf(highestLane);

  // The name of a session stands at the right end of the visible part of its bar, or behind it: where it fits, otherwise
  // shortened where more of it fits.
  const LETTER = 7.2;
  const MAX_BUTTONS = 12;
  const MAX_LABEL = 44, MIN_LABEL = 3;
  function placed(lane, bar) {
    const pixels = (chart.clientWidth - 80) / (range[1] - range[0]), length = Math.min(MAX_LABEL, bar.label.length);
    const letters = (from, to) => Math.min(length, Math.floor(((to - from) * pixels - 8) / LETTER));
    const end = Math.min(at(bar.end_s), range[1]);
    const phases = bar.segments.filter((segment) => at(segment.start_s) < end).map((segment) => at(segment.end_s));
    const inside = letters(Math.max(at(bar.start_s), range[0], ...phases), end);
    const next = Math.min(range[1], ...lane.bars.filter((nextBar) => nextBar.row === bar.row && nextBar.start_s >= bar.end_s).map((nextBar) => at(nextBar.start_s)));
    const behind = at(bar.end_s) >= range[0] ? letters(end, next) : 0;
    if (Math.max(inside, behind) < Math.min(length, MIN_LABEL)) return { x: end, text: "", place: "middle left" };
    if (inside >= behind) return { x: end, text: `${clipped(bar.label, inside)} `, place: "middle left" };
    return { x: end, text: ` ${clipped(bar.label, behind)}`, place: "middle right" };
  }
  const nameColumns = (lane) => {
    const all = lane.bars.map((bar) => placed(lane, bar));
    return { x: all.map((label) => label.x), text: all.map((label) => label.text), textposition: all.map((label) => label.place) };
  };
  const names = (c, axis, lane) => ({
    ...nameColumns(lane), y: lane.bars.map((bar) => -bar.row), yaxis: axis, type: "scatter", mode: "text", name: "names", textfont: { color: c.ink, size: 12 },
    hoverinfo: "skip", showlegend: false,
  });
  const bars = (c, axis, items, width, name) => ({
    type: "bar", orientation: "h", yaxis: axis, showlegend: false, name, width,
    y: items.map((item) => -item.row), base: items.map((item) => at(item.start)), x: items.map((item) => lasting(item.start, item.end)),
    marker: { color: items.map((item) => item.color), line: { width: 0.8, color: items.map((item) => item.edge || c.surface) } },
    customdata: items.map((item) => item.hover), hovertemplate: "%{customdata}<extra></extra>",
  });

  // A sample is drawn until the next one ("hv"): a ramp between two that are far apart would look measured.
  function traces(c) {
    const list = [];
    let isFirst = true;
    for (const chartPanel of panels) {
      const { lane, axis } = chartPanel;
      if (chartPanel.kind === "tree") {
        list.push({
          x: line.t_s.map(at), y: line.rss_bytes.map((b) => b / treeUnit.by), yaxis: axis, type: "scatter", mode: "lines", name: "RSS of all processes",
          line: { width: 1.4, color: c.ink, shape: "hv" }, fill: "tozeroy", fillcolor: c.band, showlegend: true,
          customdata: line.t_s.map((t, i) => `<b>${size(line.rss_bytes[i])}</b> RSS of all processes<br>at ${time(t)}`), hovertemplate: "%{customdata}<extra></extra>",
        });
        if (line.pss_bytes.length) list.push({
          x: line.proportional_t_s.map(at), y: line.pss_bytes.map((b) => b / treeUnit.by), yaxis: axis, type: "scatter", mode: "lines+markers", name: "PSS",
          line: { width: 1.4, dash: "dot", color: c.anonymous }, marker: { size: 5, color: c.anonymous },
          customdata: line.proportional_t_s.map((t, i) => `<b>${size(line.pss_bytes[i])}</b> PSS: shared pages counted once<br>at ${time(t)}`), hovertemplate: "%{customdata}<extra></extra>",
        });
        list.push({
          x: [at(line.peak_s)], y: [line.peak_bytes / treeUnit.by], yaxis: axis, type: "scatter", mode: "markers", name: "peak", showlegend: false, cliponaxis: false,
          marker: { size: 11, color: c.peak, line: { width: 1.6, color: c.surface } },
          customdata: [`<b>${size(line.peak_bytes)}</b> peak<br>at ${time(line.peak_s)}`], hovertemplate: "%{customdata}<extra></extra>",
        });
      } else if (chartPanel.kind === "memory") {
        const t = lane.t_s.map(at), by = (b) => b / laneUnit.by;
        const area = (values, name, color) => ({
          x: t, y: values.map(by), yaxis: axis, name, type: "scatter", mode: "lines", line: { width: 0, shape: "hv" }, fillcolor: color,
          stackgroup: `lane${axis}`, hoverinfo: "skip", showlegend: isFirst, legendgroup: name,
        });
        if (lane.anonymous_bytes && lane.file_and_shared_bytes) {
          list.push(area(lane.file_and_shared_bytes, "file-backed", c.file), area(lane.anonymous_bytes, "anonymous", c.anonymous));
        } else list.push(area(lane.rss_bytes, "resident", c.anonymous));
        isFirst = false;
        list.push({
          x: t, y: lane.rss_bytes.map(by), yaxis: axis, type: "scatter", mode: "lines", showlegend: false, name: `process ${lane.pid}`, line: { width: 1, color: c.ink, shape: "hv" },
          customdata: lane.t_s.map((moment, i) => {
            const split = lane.file_and_shared_bytes && lane.anonymous_bytes ? `<br>anonymous ${size(lane.anonymous_bytes[i])}, file-backed ${size(lane.file_and_shared_bytes[i])}` : "";
            return `<b>${size(lane.rss_bytes[i])}</b> in process ${lane.pid}<br>at ${time(moment)}${split}`;
          }), hovertemplate: "%{customdata}<extra></extra>",
        });
        if (lane.peaks.length) list.push({
          x: lane.peaks.map((peak) => at(peak.t_s)), y: lane.peaks.map((peak) => by(peak.rss_bytes)), yaxis: axis, type: "scatter", mode: "markers",
          name: "runs", showlegend: false, cliponaxis: false, marker: { size: 9, symbol: "diamond", color: c.peak, line: { width: 1.4, color: c.surface } },
          customdata: lane.peaks.map((peak) => `<b>peak raised to ${size(peak.rss_bytes)}</b> at ${time(peak.t_s)}<br>${peak.sentences.map(escaped).join("<br>")}`),
          hovertemplate: "%{customdata}<extra></extra>",
        });
      } else {
        const hover = (bar) => `<b>session ${clipped(bar.label, 70)}</b><br>${bar.sentences.map((text) => clipped(text, 110)).join("<br>")}`;
        list.push(bars(c, axis, lane.bars.map((bar) => ({
          row: bar.row, start: bar.start_s, end: bar.end_s, color: bar.is_failed ? c.peak_soft : c.band,
          edge: bar.is_failed ? c.peak : c.rail, hover: hover(bar),
        })), 0.86, "sessions"));
        list.push(bars(c, axis, lane.bars.flatMap((bar) => bar.segments.map((segment, i) => ({
          row: bar.row, start: segment.start_s, end: segment.end_s,
          color: segment.phase === "first_run" ? c.anonymous : segment.is_peak ? c.peak : i % 2 ? c.muted : c.rail,
          hover: `<b>${segment.phase}</b> of session ${clipped(bar.label, 70)}<br>${time(segment.end_s - segment.start_s)} from ${time(segment.start_s)}`,
        }))), 0.5, "phases"));
        list.push(names(c, axis, lane));
      }
    }
    return list;
  }

  function layout(c) {
    const small = narrow();
    const settings = {
      font: font(c), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "overlay", bargap: 0, annotations: [],
      margin: { l: small ? 56 : 62, r: 10, t: TOP, b: BOTTOM }, hovermode: "closest", dragmode: coarse ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.ink },
      hoverlabel: { bgcolor: c.surface, bordercolor: c.muted, font: font(c), align: "left" },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", itemclick: false, itemdoubleclick: false, bgcolor: "rgba(0,0,0,0)" },
      xaxis: {
        range, anchor: panels.length ? panels[panels.length - 1].axis : "y", ticksuffix: ` ${seconds.name}`, nticks: small ? 4 : 9, showgrid: false, zeroline: false,
        linecolor: c.line, ticks: "outside", tickcolor: c.line, minallowed: at(whole[0]), maxallowed: at(whole[1]),
      },
    };
    const addTitle = (chartPanel, text) => settings.annotations.push({
      xref: "paper", yref: "paper", x: 0, xanchor: "left", y: domain(chartPanel)[1], yanchor: "bottom", yshift: 2, showarrow: false, text, font: font(c, small ? 12 : 13),
    });
    settings.shapes = line.end_xrays.map(([start, end]) => ({
      type: "rect", xref: "x", yref: "paper", x0: at(start), x1: at(end), y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: c.band,
    }));
    const letters = (rest) => Math.max(8, Math.floor((chart.clientWidth - settings.margin.l) / 8) - rest.length);
    for (const chartPanel of panels) {
      if (chartPanel.kind === "sessions") {
        settings[chartPanel.layout] = { domain: domain(chartPanel), range: [-chartPanel.lane.rows + 0.5, 0.5], fixedrange: true, showgrid: false, zeroline: false, showticklabels: false };
        continue;
      }
      const isTree = chartPanel.kind === "tree", unit = isTree ? treeUnit : laneUnit, top = isTree ? highest : highestLane;
      settings[chartPanel.layout] = {
        domain: domain(chartPanel), range: [0, (1.1 * top) / unit.by], fixedrange: true, gridcolor: c.line, zeroline: false, nticks: 4, tickformat: ",",
        title: { text: unit.name, standoff: small ? 2 : 6 },
      };
      const peak = isTree ? ` · peak ${line.is_peak_sampled ? "~" : ""}${size(line.peak_bytes)}` : ` · peak ${size(chartPanel.lane.peak_bytes)}`;
      addTitle(chartPanel, `<b>${isTree ? "all processes" : clipped(chartPanel.lane.label, letters(peak))}</b>${peak}`);
    }
    return settings;
  }

  let range = whole.map(at);
  const draw = () => {
    const c = colors();
    Plotly.react(chart, traces(c), layout(c), {
      displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, scrollZoom: false, displayModeBar: coarse || document.documentElement.clientWidth < 640 ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { filename: "timeline", scale: 2 },
    });
  };
  const rename = () => {
    const places = chart.data.flatMap((trace, i) => (trace.name === "names" ? [i] : []));
    const columns = panels.filter((chartPanel) => chartPanel.kind === "sessions").map((chartPanel) => nameColumns(chartPanel.lane));
    if (places.length) Plotly.restyle(chart, {
      x: columns.map((column) => column.x), text: columns.map((column) => column.text), textposition: columns.map((column) => column.textposition),
    }, places);
  };
  const press = (pressed) => {
    for (const rangeButton of document.querySelectorAll("#ranges > button")) rangeButton.setAttribute("aria-pressed", String(rangeButton === pressed));
    for (const list of document.querySelectorAll("#ranges > select")) if (list !== pressed) list.value = "";
  };
  const show = (next, button) => {
    range = next;
    press(button);
    Plotly.relayout(chart, { "xaxis.range": [...next] });
  };
  const addRange = (text, next) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => show(next, button));
    document.getElementById("ranges").append(button);
    return button;
  };
  const around = (first, last) => {
    const margin = Math.max(0.08 * (last - first), whole[1] / 1e5);
    return [Math.max(whole[0], first - margin), Math.min(whole[1], last + margin)].map(at);
  };

  draw();
  const wholeButton = addRange("whole run", range);
  press(wholeButton);
  // Each creation can be shown alone: with a button, or with an entry of a list where there are many.
  const creation = (bar) => bar.segments.filter((segment) => segment.phase !== "first_run");
  const created = lanes.flatMap((lane) => lane.bars).filter((bar) => creation(bar).length).sort((a, b) => a.number - b.number);
  const rangeOf = (bar) => {
    const ends = bar.segments.map((segment) => segment.end_s);
    return around(bar.segments[0].start_s, Math.max(...creation(bar).map((segment) => segment.end_s), ...ends.slice(0, 1)));
  };
  if (created.length > MAX_BUTTONS) {
    const list = document.createElement("select");
    list.setAttribute("aria-label", "Creation to show");
    list.add(new Option("creation of session …", ""));
    for (const bar of created) list.add(new Option(`creation of session ${bar.label}`, bar.number));
    list.addEventListener("change", () => {
      const bar = created.find((createdBar) => String(createdBar.number) === list.value);
      show(bar ? rangeOf(bar) : whole.map(at), bar ? list : wholeButton);
    });
    document.getElementById("ranges").append(list);
  } else {
    for (const bar of created) addRange(narrow() ? `session ${bar.number}` : `creation of session ${bar.number}`, rangeOf(bar));
  }

  // Arrow keys move by a fifth of the visible range, plus and minus zoom around its middle.
  chart.addEventListener("keydown", (event) => {
    const [low, high] = whole.map(at), wide = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    const moved = (by) => {
      const first = Math.max(low, Math.min(high - wide, range[0] + by * wide));
      return [first, first + wide];
    };
    const zoomed = (by) => [Math.max(low, middle - (by * wide) / 2), Math.min(high, middle + (by * wide) / 2)];
    const next = {
      ArrowLeft: () => moved(-0.2), ArrowRight: () => moved(0.2), "+": () => zoomed(0.5), "=": () => zoomed(0.5), "-": () => zoomed(2), 0: () => [low, high],
    }[event.key];
    if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(next(), event.key === "0" ? wholeButton : null);
  });
  chart.on("plotly_relayout", (change) => {
    const next = change["xaxis.range"] || (change["xaxis.range[0]"] === undefined ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    if (!next) return;
    if (next[0] !== range[0] || next[1] !== range[1]) press(null);
    range = [...next];
    rename();
  });
  chart.on("plotly_doubleclick", () => { show(whole.map(at), wholeButton); return false; });
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
