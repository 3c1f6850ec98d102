"""The timeline as a picture for a README: memory above the baseline, phases, and the peak."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from memdiag.records.profile import Profile
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.picture import Kind, fitting, rendered
from memdiag.reports.views import headline, labels, scale, timeline
from memdiag.reports.views.memory_parts import factor
from memdiag.reports.views.text import and_kind, shortened
from memdiag.reports.views.timeline import Band, Timeline
from memdiag.units import GIB, KIB, MIB, format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "png"
FILE_NAME = "timeline.png"

_INCHES = (10.0, 5.2)
_DPI = 160
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.085, 0.985, 0.13, 0.735
_TITLE, _TEXT, _SMALL = 19.0, 14.0, 12.5  # points: legible at half of the picture's width
_POINTS = 72.0
_ACROSS = _INCHES[0] * _POINTS * 0.97
_SUBTITLE, _LONG_SUBTITLE = 92, 102  # letters of a line at _TEXT, and at _SMALL
_LETTER = 0.62  # a letter's width as a share of its size, generously
_RIBBON = 0.05  # the phases' ribbon above the plot, as a share of its height
_STEPS = (1, 2, 2.5, 5, 10)
_LAYERS = {
    "file-backed": COLOR.file,
    "shared": COLOR.shared,
    "anonymous": COLOR.anonymous,
    "resident": COLOR.anonymous,
}


def render(profile: Profile) -> bytes:
    """Return the drawing of `profile` as PNG, 1600 × 832 pixels."""
    return picture(profile, "png")


def picture(profile: Profile, kind: Kind) -> bytes:
    """Return the drawing of `profile` in the format `kind`, the same for the same record.

    Raises:
        ReportError: the samples' columns differ in length.
    """
    view = timeline.build(profile)
    # Its letters have places that were reckoned with this font.
    return rendered(lambda: draw(profile, view), kind, outlined=True)


def draw(profile: Profile, view: Timeline) -> Figure:
    """Return the figure; it belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor=COLOR.surface)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM))
    axes.set_facecolor(COLOR.surface)
    times = scale.build(view)
    top = _top(profile, view)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top)
    _title(figure, profile)
    _bands(axes, view, times)
    _memory(axes, view, times)
    _weights(axes, view, top)
    _peak(axes, profile, view, times, top)
    _time_axis(axes, view, times)
    _size_axis(axes, top)
    return figure


def _top(profile: Profile, view: Timeline) -> int:
    above = max(view.top_bytes, profile.peak_rss_bytes) - view.baseline_bytes
    weights = view.weight_bytes or 0
    # Weights far above what was reached (a failed load) would flatten all there is to see.
    return int(1.22 * max(above, weights if weights <= 3 * above else 0, 256 * KIB))


def _title(figure: Figure, profile: Profile) -> None:
    answer = headline.build(profile)
    color = COLOR.ink if answer.completed else COLOR.peak_ink
    title, title_size = fitting(answer.model, _TITLE, _ACROSS)
    lines = textwrap.wrap(answer.first, _SUBTITLE)
    size = _TEXT
    if len(lines) > 1:
        size = _SMALL
        lines = textwrap.wrap(answer.first, _LONG_SUBTITLE, max_lines=2, placeholder=" …")
    texts = (
        (0.975, title, title_size, COLOR.ink, "bold"),
        (0.905, "\n".join(lines), size, color, "normal"),
    )
    for y, text, points, ink, weight in texts:
        figure.text(
            0.014, y, text, fontsize=points, color=ink, weight=weight, va="top", parse_math=False,
            linespacing=1.1,
        )  # fmt: skip
    figure.text(
        _RIGHT, 0.965, shortened(answer.facts, 60), fontsize=_SMALL - 2, color=COLOR.muted,
        va="top", ha="right", parse_math=False, visible=len(answer.model) < 30,
    )  # fmt: skip


def _bands(axes: Axes, view: Timeline, times: scale.TimeScale) -> None:
    transform = axes.get_xaxis_transform()
    longest: dict[str, Band] = {}
    phases = list(dict.fromkeys(band.phase for band in view.bands))
    peak = next((peak.phase for peak in view.peaks if peak.overall), None)
    for band in view.bands:
        first, last = times.place(band.start_s), times.place(band.end_s)
        is_peak = band.phase == peak
        odd = phases.index(band.phase) % 2
        ribbon = COLOR.peak if is_peak else COLOR.muted if odd else COLOR.rail
        tint = COLOR.peak_soft if is_peak else COLOR.band if odd else COLOR.surface
        axes.axvspan(first, last, color=tint, lw=0, zorder=0)
        axes.axvspan(
            first, last, ymin=1.0, ymax=1.0 + _RIBBON / 2, fc=ribbon, clip_on=False,
            ec=COLOR.surface, lw=0.8 if last - first > 0.004 else 0,
        )  # fmt: skip
        before = longest.get(band.phase, band)
        if band.end_s - band.start_s >= before.end_s - before.start_s:
            longest[band.phase] = band
    centres = [
        (times.place(band.start_s) + times.place(band.end_s)) / 2 for band in longest.values()
    ]
    plot = _INCHES[0] * (_RIGHT - _LEFT) * _POINTS
    widths = [len(phase) * _SMALL * _LETTER / plot for phase in longest]
    places = labels.spread(centres, widths, gap=0.008, width=1.0)
    for phase, centre, place in zip(longest, centres, places, strict=True):
        ink = COLOR.peak_ink if phase == peak else COLOR.ink
        axes.plot(
            [centre, place], [1.0 + _RIBBON / 2, 1.0 + 1.5 * _RIBBON], transform=transform,
            color=ink if phase == peak else COLOR.muted, lw=0.9, clip_on=False,
        )  # fmt: skip
        axes.text(
            place, 1.0 + 1.6 * _RIBBON, phase, transform=transform, fontsize=_SMALL, color=ink,
            ha="center", va="bottom", weight="bold" if phase == peak else "normal",
        )  # fmt: skip


def _memory(axes: Axes, view: Timeline, times: scale.TimeScale) -> None:
    if not view.t_s:
        axes.text(
            0.5, 0.5, "no samples were taken", transform=axes.transAxes, fontsize=_TEXT,
            color=COLOR.muted, ha="center",
        )  # fmt: skip
        return
    x = [times.place(t) for t in view.t_s]
    below = [0] * len(x)
    for layer in view.layers:
        tops = [low + size for low, size in zip(below, layer.above_bytes, strict=True)]
        axes.fill_between(x, below, tops, color=_LAYERS[layer.name], lw=0, label=layer.name)
        below = tops
    axes.plot(x, below, color=COLOR.ink, lw=1.0, solid_joinstyle="round")
    axes.legend(
        loc="upper right", bbox_to_anchor=(1.005, -0.095), ncols=3, reverse=True, fontsize=_SMALL,
        frameon=False, labelcolor=COLOR.ink, handlelength=1.0, handletextpad=0.5,
        columnspacing=1.4, borderpad=0.2, borderaxespad=0,
    )  # fmt: skip


def _weights(axes: Axes, view: Timeline, top: int) -> None:
    if not view.weight_bytes or not 0.02 * top < view.weight_bytes < top:
        return
    axes.axhline(view.weight_bytes, color=COLOR.surface, lw=2.8, alpha=0.75, zorder=3)
    axes.axhline(view.weight_bytes, color=COLOR.ink, lw=1.3, ls=(0, (5, 3)), zorder=3)
    axes.text(
        0.992, view.weight_bytes, f"the weights, {format_size(view.weight_bytes)}",
        fontsize=_SMALL, color=COLOR.ink, ha="right", va="center", zorder=5,
        bbox={"boxstyle": "round,pad=0.25", "fc": COLOR.surface, "ec": COLOR.line, "alpha": 0.92},
    )  # fmt: skip


def _peak(axes: Axes, profile: Profile, view: Timeline, times: scale.TimeScale, top: int) -> None:
    peak = next((peak for peak in view.peaks if peak.overall), None)
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    if peak is None or above <= 0:
        return
    x = times.place(peak.t_s)
    ratio = factor(profile, above)
    asides = [format_size(above), ratio or "", peak.phase, and_kind(peak.kind)]
    text = " · ".join(part for part in asides if part)
    width = len(text) * _TEXT * _LETTER / (_INCHES[0] * (_RIGHT - _LEFT) * _POINTS)
    left = min(max(x, width / 2 + 0.005), 0.995 - width / 2)
    _other_peaks(axes, view, times, top, taken=(left - width / 2, left + width / 2))
    axes.plot(
        [x], [above], "o", ms=9, mfc=COLOR.peak, mec=COLOR.surface, mew=1.6, zorder=6,
        clip_on=False,
    )  # fmt: skip
    axes.text(
        left, above + 0.045 * top, text,
        fontsize=_TEXT, weight="bold", color=COLOR.peak_ink, ha="center", va="bottom", zorder=6,
    )  # fmt: skip


def _other_peaks(
    axes: Axes, view: Timeline, times: scale.TimeScale, top: int, *, taken: tuple[float, float]
) -> None:
    """Mark what other phases reached and gave back; with its figure where `taken` leaves room."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3.5, foreground=COLOR.surface)]
    overall = max(peak.rss_bytes for peak in view.peaks) - view.baseline_bytes
    boxes = [(*taken, overall)]
    for peak in view.peaks:
        above = peak.rss_bytes - view.baseline_bytes
        if peak.overall or peak.transient_bytes < 0.03 * top:
            continue
        x = times.place(peak.t_s)
        axes.plot(
            [x], [above], "o", ms=5.5, mfc=COLOR.surface, mec=COLOR.ink, mew=1.2, zorder=5,
            clip_on=False,
        )  # fmt: skip
        text = format_size(above)
        half = len(text) * _SMALL * _LETTER / (_INCHES[0] * (_RIGHT - _LEFT) * _POINTS) / 2
        covers = any(
            x + half > left and x - half < right and abs(above - at) < 0.1 * top
            for left, right, at in boxes
        )
        if not covers:
            axes.text(
                max(x, half), above + 0.03 * top, text, fontsize=_SMALL, color=COLOR.ink,
                ha="center", va="bottom", zorder=5, path_effects=halo,
            )  # fmt: skip
            boxes.append((x - half, x + half, above))


def _time_axis(axes: Axes, view: Timeline, times: scale.TimeScale) -> None:
    if times.stretched:
        wanted = list(times.edges_s)
        note = "time, short phases drawn wider than they lasted"
    else:
        wanted = _even(times.edges_s[0], times.edges_s[-1], 6)
        note = "time"
    ticks: list[tuple[float, str]] = []
    for t_s in wanted:
        place = times.place(t_s)
        text = "0" if t_s == 0 else format_duration(t_s)
        is_last = place > 0.97
        room = (
            0.13 if is_last else 0.085
        )  # the last one ends at the edge, the others have both sides
        while is_last and len(ticks) > 1 and place - ticks[-1][0] < room:
            ticks.pop()
        if not ticks or (place - ticks[-1][0] >= room and text != ticks[-1][1]):
            ticks.append((place, text))
    axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
    for label, (place, _) in zip(axes.get_xticklabels(), ticks, strict=True):
        label.set_horizontalalignment("right" if place > 0.97 else "center")
    axes.set_xlabel(note, fontsize=_SMALL, color=COLOR.muted, loc="left")
    axes.tick_params(axis="x", labelsize=_SMALL, colors=COLOR.muted, length=4, color=COLOR.line)


def _size_axis(axes: Axes, top: int) -> None:
    unit, name = (GIB, "GiB") if top >= 2 * GIB else (MIB, "MiB")
    values = [value for value in _even(0, top / unit, 5) if value * unit < top]
    axes.set_yticks([value * unit for value in values], [f"{value:,g}" for value in values])
    axes.set_ylabel(f"{name} above baseline", fontsize=_SMALL, color=COLOR.muted)
    axes.tick_params(axis="y", labelsize=_SMALL, colors=COLOR.muted, length=0)
    axes.grid(axis="y", color=COLOR.line, lw=0.8, zorder=1)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(COLOR.line)


def _even(first: float, last: float, count: int) -> list[float]:
    """Return about `count` round numbers from `first` to `last`."""
    rough = max((last - first) / count, 1e-9)
    power = 10.0 ** (len(f"{rough:.0f}") - 1) if rough >= 1 else 10.0 ** -_zeros(rough)
    step = power * next(step for step in _STEPS if step * power >= rough)
    number = int(first // step)
    values = []
    while number * step <= last:
        if number * step >= first:
            values.append(round(number * step, 12))
        number += 1
    return values


def _zeros(number: float) -> int:
    return int(f"{number:e}".partition("e-")[2])
