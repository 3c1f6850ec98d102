"""The timeline as a picture: memory above the baseline, phases, and the peak."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memdiag.records.profile import Profile
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.profile.headline import profile_headline, weight_factor
from memdiag.reports.profile.timeline import PhaseBand, TimelineChart, profile_timeline
from memdiag.reports.text import sampled_peak_word, shortened
from memdiag.units import KIB, format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TIMELINE_INCHES = 5.2
_BOTTOM, _TOP = 0.13, 0.735
_SMALL = 12.5  # points
_MAX_SMALL_LINE = 102  # letters of a line at _SMALL
_RIBBON_HEIGHT_SHARE = 0.05  # the phases' ribbon above the plot, as a share of its height
_TICK_STEPS = (1, 2, 2.5, 5, 10)
_MIN_PHASE_WIDTH = 0.09  # share of the width, for phases after `start`
_MAX_START_WIDTH = 0.05  # nothing of the model happens in `start`
_LAYER_COLORS = {
    "file-backed": COLOR.file,
    "shared": COLOR.shared,
    "anonymous": COLOR.anonymous,
    "resident": COLOR.anonymous,
}


def draw(profile: Profile) -> Figure:
    """Return the timeline of `profile`, 1600 × 832 pixels."""
    line = profile_timeline(profile)
    figure = picture.timeline_figure(_TIMELINE_INCHES)
    axes = picture.timeline_axes(figure, _BOTTOM, _TOP - _BOTTOM)
    times = time_scale(line)
    top = _axis_top_bytes(profile, line)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top)
    _draw_profile_title(figure, profile)
    _draw_phase_bands(axes, line, times)
    _draw_memory_layers(axes, line, times)
    _draw_weights(axes, line, top)
    _draw_peak(axes, profile, line, times, top)
    _draw_time_axis(axes, line, times)
    _draw_size_axis(axes, top)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """A piecewise linear map from seconds to the share of the width, from 0 to 1.

    Attributes:
        has_several_scales: whether its segments differ in scale.
    """

    edges_s: tuple[float, ...]
    positions: tuple[float, ...]
    has_several_scales: bool

    def position(self, t_s: float) -> float:
        """Return the position of the time `t_s` in the width of the chart, from 0 to 1."""
        index = min(max(bisect_right(self.edges_s, t_s) - 1, 0), len(self.edges_s) - 2)
        first, last = self.edges_s[index], self.edges_s[index + 1]
        share = (min(max(t_s, first), last) - first) / (last - first)
        return self.positions[index] + share * (self.positions[index + 1] - self.positions[index])


def time_scale(line: TimelineChart) -> TimeScale:
    """Return a scale on which every phase is visible, however short it is.

    Phases that take turns, such as `optimize` and `constant_fold`, share one segment, in which time
    is linear.
    """
    segments = _phase_group_ranges(line)
    min_share = min(_MIN_PHASE_WIDTH, 0.6 / len(segments))
    total_s = sum(last - first for first, last, _ in segments)
    after_start_s = sum(last - first for first, last, start in segments if not start) or total_s
    shares = [
        min(_MAX_START_WIDTH, (last - first) / total_s)
        if is_start and len(segments) > 1
        else max(min_share, (last - first) / after_start_s)
        for first, last, is_start in segments
    ]
    # Short segments are widened to the minimum, and long segments narrowed to make room.
    excess_share = sum(shares) - 1
    spare_share = sum(max(0.0, share - min_share) for share in shares)
    if spare_share > 0:
        shares = [
            share - max(0.0, share - min_share) * min(1.0, excess_share / spare_share)
            for share in shares
        ]
    positions = [0.0]
    for share in shares:
        positions.append(positions[-1] + share / sum(shares))
    speeds = [
        share / (last - first) for share, (first, last, _) in zip(shares, segments, strict=True)
    ]
    return TimeScale(
        edges_s=(segments[0][0], *(last for _, last, _ in segments)),
        positions=tuple(positions),
        has_several_scales=max(speeds) > 1.5 * min(speeds),
    )


def _phase_group_ranges(line: TimelineChart) -> list[tuple[float, float, bool]]:
    """Return (start, end, whether it is the phase `start`) of each group of overlapping phases."""
    start_s = line.start_s
    end_s = max(line.end_s, start_s + 1e-6)
    merged_ranges: list[tuple[float, float, bool]] = []
    for start, end, is_start in sorted(_phase_extents(line.bands)):
        if merged_ranges and start < merged_ranges[-1][1]:
            previous_range = merged_ranges.pop()
            merged_ranges.append(
                (previous_range[0], max(previous_range[1], end), previous_range[2] and is_start)
            )
        elif end > start:
            merged_ranges.append((start, end, is_start))
    if not merged_ranges:
        return [(start_s, end_s, False)]
    merged_ranges[0] = (start_s, *merged_ranges[0][1:])
    merged_ranges[-1] = (merged_ranges[-1][0], end_s, merged_ranges[-1][2])
    # Spans follow each other without gaps. A gap in a record belongs to the next segment.
    return [
        (previous_range[1], end, is_start)
        for previous_range, (_, end, is_start) in zip(
            [(0, start_s), *merged_ranges], merged_ranges, strict=False
        )
    ]


def _phase_extents(bands: Sequence[PhaseBand]) -> list[tuple[float, float, bool]]:
    extents: dict[str, tuple[float, float, bool]] = {}
    for band in bands:
        start, end, _ = extents.get(band.phase, (band.start_s, band.end_s, False))
        extent = (min(start, band.start_s), max(end, band.end_s), band.phase == "start")
        extents[band.phase] = extent
    return list(extents.values())


def _axis_top_bytes(profile: Profile, line: TimelineChart) -> int:
    above_bytes = max(line.top_bytes, profile.peak_rss_bytes) - line.baseline_bytes
    weight_bytes = line.weight_bytes or 0
    # Weights far above the memory that was reached (a failed load) would flatten the curve.
    shown_weight_bytes = weight_bytes if weight_bytes <= 3 * above_bytes else 0
    return int(1.22 * max(above_bytes, shown_weight_bytes, 256 * KIB))


def _draw_profile_title(figure: Figure, profile: Profile) -> None:
    answer = profile_headline(profile)
    color = COLOR.ink if answer.completed else COLOR.peak_ink
    lines = textwrap.wrap(answer.first, picture.MAX_WIDE_LINE)
    size = picture.WIDE_TEXT
    if len(lines) > 1:
        size = _SMALL
        lines = textwrap.wrap(answer.first, _MAX_SMALL_LINE, max_lines=2, placeholder=" …")
    picture.timeline_title(figure, (0.975, 0.905), answer.model, "\n".join(lines), size, color)
    figure.text(
        picture.RIGHT, 0.965, shortened(answer.facts, 60), fontsize=_SMALL - 2, color=COLOR.muted,
        va="top", ha="right", parse_math=False, visible=len(answer.model) < 30,
    )  # fmt: skip


def _draw_phase_bands(axes: Axes, line: TimelineChart, times: TimeScale) -> None:
    transform = axes.get_xaxis_transform()
    longest_by_phase: dict[str, PhaseBand] = {}
    phases = list(dict.fromkeys(band.phase for band in line.bands))
    peak = next((peak.phase for peak in line.peaks if peak.overall), None)
    for band in line.bands:
        first, last = times.position(band.start_s), times.position(band.end_s)
        is_peak = band.phase == peak
        is_odd = phases.index(band.phase) % 2 == 1
        ribbon = COLOR.peak if is_peak else COLOR.muted if is_odd else COLOR.rail
        tint = COLOR.peak_soft if is_peak else COLOR.band if is_odd else COLOR.surface
        axes.axvspan(first, last, color=tint, lw=0, zorder=0)
        axes.axvspan(
            first, last, ymin=1.0, ymax=1.0 + _RIBBON_HEIGHT_SHARE / 2, fc=ribbon, clip_on=False,
            ec=COLOR.surface, lw=0.8 if last - first > 0.004 else 0,
        )  # fmt: skip
        longest_band = longest_by_phase.get(band.phase, band)
        if band.end_s - band.start_s >= longest_band.end_s - longest_band.start_s:
            longest_by_phase[band.phase] = band
    centres = [
        (times.position(band.start_s) + times.position(band.end_s)) / 2
        for band in longest_by_phase.values()
    ]
    widths = [len(phase) / picture.timeline_letters(_SMALL) for phase in longest_by_phase]
    positions = picture.label_centres(centres, widths, gap=0.008, width=1.0)
    for phase, centre, position in zip(longest_by_phase, centres, positions, strict=True):
        ink = COLOR.peak_ink if phase == peak else COLOR.ink
        axes.plot(
            [centre, position], [1.0 + _RIBBON_HEIGHT_SHARE / 2,
            1.0 + 1.5 * _RIBBON_HEIGHT_SHARE], transform=transform,
            color=ink if phase == peak else COLOR.muted, lw=0.9, clip_on=False,
        )  # fmt: skip
        axes.text(
            position, 1.0 + 1.6 * _RIBBON_HEIGHT_SHARE, phase, transform=transform,
            fontsize=_SMALL, color=ink,
            ha="center", va="bottom", weight="bold" if phase == peak else "normal",
        )  # fmt: skip


def _draw_memory_layers(axes: Axes, line: TimelineChart, times: TimeScale) -> None:
    if not line.t_s:
        axes.text(
            0.5, 0.5, "no samples were taken", transform=axes.transAxes, fontsize=picture.WIDE_TEXT,
            color=COLOR.muted, ha="center",
        )  # fmt: skip
        return
    x = [times.position(t) for t in line.t_s]
    bottoms = [0] * len(x)
    for layer in line.layers:
        tops = [bottom + size for bottom, size in zip(bottoms, layer.above_bytes, strict=True)]
        axes.fill_between(x, bottoms, tops, color=_LAYER_COLORS[layer.name], lw=0, label=layer.name)
        bottoms = tops
    axes.plot(x, bottoms, color=COLOR.ink, lw=1.0, solid_joinstyle="round")
    axes.legend(
        loc="upper right", bbox_to_anchor=(1.005, -0.095), ncols=3, reverse=True, fontsize=_SMALL,
        frameon=False, labelcolor=COLOR.ink, handlelength=1.0, handletextpad=0.5,
        columnspacing=1.4, borderpad=0.2, borderaxespad=0,
    )  # fmt: skip


def _draw_weights(axes: Axes, line: TimelineChart, top: int) -> None:
    if not line.weight_bytes or not 0.02 * top < line.weight_bytes < top:
        return
    axes.axhline(line.weight_bytes, color=COLOR.surface, lw=2.8, alpha=0.75, zorder=3)
    axes.axhline(line.weight_bytes, color=COLOR.ink, lw=1.3, ls=(0, (5, 3)), zorder=3)
    axes.text(
        0.992, line.weight_bytes, f"the weights, {format_size(line.weight_bytes)}",
        fontsize=_SMALL, color=COLOR.ink, ha="right", va="center", zorder=5,
        bbox={"boxstyle": "round,pad=0.25", "fc": COLOR.surface, "ec": COLOR.line, "alpha": 0.92},
    )  # fmt: skip


def _draw_peak(
    axes: Axes, profile: Profile, line: TimelineChart, times: TimeScale, top: int
) -> None:
    peak = next((peak for peak in line.peaks if peak.overall), None)
    above_bytes = profile.peak_above_bytes
    if peak is None or above_bytes <= 0:
        return
    x = times.position(peak.t_s)
    ratio = weight_factor(profile, above_bytes)
    label_parts = [format_size(above_bytes), ratio or "", peak.phase, sampled_peak_word(peak.kind)]
    text = " · ".join(part for part in label_parts if part)
    width = len(text) / picture.timeline_letters(picture.WIDE_TEXT)
    left = min(max(x, width / 2 + 0.005), 0.995 - width / 2)
    _draw_other_peaks(axes, line, times, top, label=(left - width / 2, left + width / 2))
    axes.plot(
        [x], [above_bytes], "o", ms=9, mfc=COLOR.peak, mec=COLOR.surface, mew=1.6, zorder=6,
        clip_on=False,
    )  # fmt: skip
    axes.text(
        left, above_bytes + 0.045 * top, text,
        fontsize=picture.WIDE_TEXT, weight="bold", color=COLOR.peak_ink, ha="center", va="bottom",
        zorder=6,
    )  # fmt: skip


def _draw_other_peaks(
    axes: Axes, line: TimelineChart, times: TimeScale, top: int, *, label: tuple[float, float]
) -> None:
    """Mark the peaks of phases that released memory, with their sizes if labels do not overlap."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3.5, foreground=COLOR.surface)]
    overall_bytes = max(peak.rss_bytes for peak in line.peaks) - line.baseline_bytes
    boxes = [(*label, overall_bytes)]
    for peak in line.peaks:
        above_bytes = peak.rss_bytes - line.baseline_bytes
        if peak.overall or peak.transient_bytes < 0.03 * top:
            continue
        x = times.position(peak.t_s)
        axes.plot(
            [x], [above_bytes], "o", ms=5.5, mfc=COLOR.surface, mec=COLOR.ink, mew=1.2, zorder=5,
            clip_on=False,
        )  # fmt: skip
        text = format_size(above_bytes)
        half_width = len(text) / picture.timeline_letters(_SMALL) / 2
        overlaps = any(
            x + half_width > left
            and x - half_width < right
            and abs(above_bytes - label_bytes) < 0.1 * top
            for left, right, label_bytes in boxes
        )
        if not overlaps:
            axes.text(
                max(x, half_width), above_bytes + 0.03 * top, text, fontsize=_SMALL,
                color=COLOR.ink, ha="center", va="bottom", zorder=5, path_effects=halo,
            )  # fmt: skip
            boxes.append((x - half_width, x + half_width, above_bytes))


def _draw_time_axis(axes: Axes, line: TimelineChart, times: TimeScale) -> None:
    if times.has_several_scales:
        tick_times = list(times.edges_s)
        note = "time, short phases drawn wider than they lasted"
    else:
        tick_times = _round_tick_values(times.edges_s[0], times.edges_s[-1], 6)
        note = "time"
    ticks: list[tuple[float, str]] = []
    for t_s in tick_times:
        position = times.position(t_s)
        text = "0" if t_s == 0 else format_duration(t_s)
        is_last = position > 0.97
        distance = 0.13 if is_last else 0.085  # the last label ends at the edge, others are centred
        while is_last and len(ticks) > 1 and position - ticks[-1][0] < distance:
            ticks.pop()
        if not ticks or (position - ticks[-1][0] >= distance and text != ticks[-1][1]):
            ticks.append((position, text))
    axes.set_xticks([position for position, _ in ticks], [text for _, text in ticks])
    for label, (position, _) in zip(axes.get_xticklabels(), ticks, strict=True):
        label.set_horizontalalignment("right" if position > 0.97 else "center")
    axes.set_xlabel(note, fontsize=_SMALL, color=COLOR.muted, loc="left")
    axes.tick_params(axis="x", labelsize=_SMALL, colors=COLOR.muted, length=4, color=COLOR.line)


def _draw_size_axis(axes: Axes, top: int) -> None:
    unit, name = picture.size_unit(top)
    values = [value for value in _round_tick_values(0, top / unit, 5) if value * unit < top]
    axes.set_yticks([value * unit for value in values], [f"{value:,g}" for value in values])
    picture.style_timeline(axes, f"{name} above baseline", _SMALL)


def _round_tick_values(first: float, last: float, count: int) -> list[float]:
    """Return about `count` round numbers between `first` and `last`, for ticks."""
    rough_step = max((last - first) / count, 1e-9)
    power = (
        10.0 ** (len(f"{rough_step:.0f}") - 1)
        if rough_step >= 1
        else 10.0 ** -_negative_exponent(rough_step)
    )
    step = power * next(step for step in _TICK_STEPS if step * power >= rough_step)
    number = int(first // step)
    values = []
    while number * step <= last:
        if number * step >= first:
            values.append(round(number * step, 12))
        number += 1
    return values


def _negative_exponent(number: float) -> int:
    return int(f"{number:e}".partition("e-")[2])
