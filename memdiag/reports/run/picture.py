"""The timeline of a recorded program as a picture: memory by process, and the lives of sessions."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from memdiag.records.run import ProgramRun
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.palette import SERIES_COLORS
from memdiag.reports.run.headline import RunHeadline, run_headline
from memdiag.reports.run.timeline import ProcessLane, RunTimeline, run_timeline
from memdiag.reports.text import shortened
from memdiag.units import KIB, counted, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE_INCHES, _LINE_INCHES, _MEMORY_INCHES, _ROW_INCHES, _AXIS_INCHES = 0.72, 0.24, 2.9, 0.3, 0.62
_BARS_GAP_INCHES = 0.1
_SMALL = 12.0  # points
_MAX_LINES = 6  # of the answer
_MAX_LANES, _MAX_BARS = 6, 80
_MAX_ROWS, _MIN_ROWS = 24, 4  # of bars in all, and of each process
_MAX_LEGEND_LABEL = 28  # letters
_LEGEND_INCHES, _LEGEND_COLUMNS = 0.27, 3


def draw(recording: ProgramRun) -> Figure:
    """Return the memory of the processes on top of each other, and a bar for each session."""
    lanes_with_sessions = min(_MAX_LANES, len({session.pid for session in recording.sessions}))
    max_rows = max(_MIN_ROWS, _MAX_ROWS // max(1, lanes_with_sessions))
    timeline = run_timeline(recording, max_lanes=_MAX_LANES, max_rows=max_rows, max_bars=_MAX_BARS)
    row_count = sum(lane.rows for lane in timeline.lanes)
    bars_inches = row_count * _ROW_INCHES + _BARS_GAP_INCHES if row_count else 0.0
    answer = run_headline(recording)
    lines = textwrap.wrap(
        answer.first, picture.MAX_WIDE_LINE, max_lines=_MAX_LINES, placeholder=" …"
    )
    title_inches = _TITLE_INCHES + _LINE_INCHES * len(lines)
    if len(timeline.lanes) > 1:
        title_inches += _LEGEND_INCHES * ceil(len(timeline.lanes) / _LEGEND_COLUMNS)
    height = title_inches + _MEMORY_INCHES + bars_inches + _AXIS_INCHES
    figure = picture.timeline_figure(height)
    _draw_run_title(figure, answer, lines, height)
    memory_axes = picture.timeline_axes(
        figure, (_AXIS_INCHES + bars_inches) / height, _MEMORY_INCHES / height
    )
    _draw_process_memory(memory_axes, timeline)
    lowest_axes = memory_axes
    if row_count:
        lowest_axes = picture.timeline_axes(
            figure, _AXIS_INCHES / height, row_count * _ROW_INCHES / height
        )
        _draw_session_bars(lowest_axes, timeline, row_count)
        memory_axes.tick_params(axis="x", labelbottom=False, length=0)
    for axes in {memory_axes, lowest_axes}:
        axes.set_xlim(0, max(timeline.end_s, 1e-6))
        for start_s, end_s in timeline.end_xrays:
            axes.axvspan(start_s, end_s, color=COLOR.band, lw=0, zorder=0)
    _label_end_xrays(
        memory_axes, timeline, "X-ray" if recording.is_watched else "waiting for X-ray"
    )
    lowest_axes.set_xlabel("seconds", fontsize=_SMALL, color=COLOR.muted, loc="left")
    lowest_axes.tick_params(
        axis="x", labelsize=_SMALL, colors=COLOR.muted, length=4, color=COLOR.line
    )
    omitted_sessions = len(recording.sessions) - sum(len(lane.bars) for lane in timeline.lanes)
    if omitted_sessions:
        figure.text(
            picture.RIGHT, 0.1 / height, f"and {counted(omitted_sessions, 'more session')}",
            fontsize=_SMALL, color=COLOR.muted, ha="right", va="bottom",
        )  # fmt: skip
    return figure


def _draw_run_title(
    figure: Figure, answer: RunHeadline, lines: Sequence[str], height: float
) -> None:
    color = COLOR.ink if answer.is_success else COLOR.peak_ink
    heights = (1 - 0.12 / height, 1 - 0.5 / height)
    picture.timeline_title(
        figure, heights, answer.program, "\n".join(lines), picture.WIDE_TEXT, color
    )


def _label_end_xrays(axes: Axes, timeline: RunTimeline, text: str) -> None:
    """Write `text` into the longest time of X-rays, if there is room."""
    if not timeline.end_xrays:
        return
    start_s, end_s = max(timeline.end_xrays, key=lambda interval: interval[1] - interval[0])
    letters = picture.timeline_letters(_SMALL)
    if (end_s - start_s) / max(timeline.end_s, 1e-6) * letters > len(text):
        axes.text(
            (start_s + end_s) / 2, 0.04 * axes.get_ylim()[1], text, fontsize=_SMALL - 1.5,
            color=COLOR.ink, ha="center", va="bottom", zorder=7,
            bbox={"fc": COLOR.surface, "ec": "none", "alpha": 0.8, "pad": 2},
        )  # fmt: skip


def _lane_color(index: int) -> str:
    return SERIES_COLORS[index % len(SERIES_COLORS)]


def _draw_process_memory(axes: Axes, timeline: RunTimeline) -> None:
    highest_bytes = max((*timeline.rss_bytes, timeline.peak_bytes, 256 * KIB))
    unit, name = picture.size_unit(highest_bytes)
    axes.set_ylim(0, 1.2 * highest_bytes / unit)
    if timeline.t_s and timeline.lanes:
        # Processes that are not drawn are the gap below the line of all processes.
        layers = [_sampled_lane_sizes(lane, timeline.t_s) for lane in timeline.lanes]
        axes.stackplot(
            timeline.t_s,
            [[size / unit for size in layer] for layer in layers],
            colors=[_lane_color(index) for index in range(len(layers))],
            lw=0,
            alpha=0.85,
            step="post",  # the memory between samples is not known
        )
    if timeline.t_s:
        sizes = [size / unit for size in timeline.rss_bytes]
        axes.plot(timeline.t_s, sizes, color=COLOR.ink, lw=1.0, drawstyle="steps-post")
    peak = timeline.peak_bytes / unit
    axes.plot(
        [timeline.peak_s], [peak], "o", ms=8, mfc=COLOR.peak, mec=COLOR.surface, mew=1.6,
        clip_on=False, zorder=6,
    )  # fmt: skip
    text = format_size(timeline.peak_bytes)
    share = timeline.peak_s / max(timeline.end_s, 1e-6)
    side = "left" if share < 0.1 else "right" if share > 0.9 else "center"
    axes.annotate(
        text, (timeline.peak_s, peak), xytext=(0, 8), textcoords="offset points", ha=side,
        fontsize=picture.WIDE_TEXT, weight="bold", color=COLOR.peak_ink,
    )  # fmt: skip
    picture.style_timeline(axes, f"resident, {name}", _SMALL)
    _draw_process_legend(axes, timeline)


def _sampled_lane_sizes(lane: ProcessLane, times: tuple[float, ...]) -> list[int]:
    """Return the resident bytes of a process at `times`; 0 before its start and after its end."""
    sizes = []
    for t_s in times:
        index = bisect_right(lane.t_s, t_s) - 1
        is_alive = index >= 0 and t_s <= lane.t_s[-1]
        sizes.append(lane.rss_bytes[index] if is_alive else 0)
    return sizes


def _draw_process_legend(axes: Axes, timeline: RunTimeline) -> None:
    """Name the processes above `axes`, where no curve is."""
    from matplotlib.patches import Patch

    if len(timeline.lanes) < 2:
        return
    handles = [
        Patch(fc=_lane_color(index), label=shortened(lane.label, _MAX_LEGEND_LABEL))
        for index, lane in enumerate(timeline.lanes)
    ]
    legend = axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=_LEGEND_COLUMNS,
        fontsize=_SMALL - 1.5, labelcolor=COLOR.ink, handlelength=0.9, handleheight=0.9,
        columnspacing=1.2, borderaxespad=0.2, borderpad=0.2, frameon=False,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_session_bars(axes: Axes, timeline: RunTimeline, rows: int) -> None:
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    letters = picture.timeline_letters(_SMALL)
    duration_s = max(timeline.end_s, 1e-6)
    first_row = 0
    has_several = sum(bool(lane.bars) for lane in timeline.lanes) > 1
    for index, lane in enumerate(timeline.lanes):
        for bar in lane.bars:
            label = f"{bar.label} ({lane.pid})" if has_several else bar.label
            y = first_row + bar.row + 0.5
            life_s = bar.end_s - bar.start_s
            edge = COLOR.peak if bar.is_failed else _lane_color(index)
            axes.barh(
                y, max(life_s, timeline.end_s / 2000), 0.72, left=bar.start_s, color=COLOR.band,
                ec=edge, lw=0.9,
            )  # fmt: skip
            segments_end_s = bar.start_s
            for segment in bar.segments:
                color = COLOR.peak if segment.is_peak else COLOR.rail
                if segment.phase == "first_run":
                    color = COLOR.anonymous
                width = segment.end_s - segment.start_s
                axes.barh(y, width, 0.5, left=segment.start_s, color=color, lw=0)
                segments_end_s = max(segments_end_s, segment.end_s)
            letters_inside = int(letters * (bar.end_s - segments_end_s) / duration_s) - 1
            starts = [
                later_bar.start_s
                for later_bar in lane.bars
                if later_bar.row == bar.row and later_bar.start_s >= bar.end_s
            ]
            letters_behind = (
                int(letters * (min((timeline.end_s, *starts)) - bar.end_s) / duration_s) - 1
            )
            is_inside = letters_inside >= min(len(label), letters_behind)
            if max(letters_inside, letters_behind) >= min(len(label), 12):
                axes.text(
                    bar.end_s + (-1 if is_inside else 1) * duration_s * 0.004, y,
                    shortened(label, max(letters_inside, letters_behind)), fontsize=_SMALL - 1.5,
                    color=COLOR.ink, ha="right" if is_inside else "left", va="center",
                    parse_math=False,
                )  # fmt: skip
        first_row += lane.rows
    picture.outline(axes, "bottom")
