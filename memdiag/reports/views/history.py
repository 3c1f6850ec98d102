"""A figure of models over time, as rows and as lines of points."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.budgets.figures import FIGURES, Figure
from memdiag.errors import UsageError
from memdiag.records.history import Entry, History
from memdiag.reports.views.text import plain, shortened

_LONGEST_LABEL = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One entry: its `value` in the figure's unit, and the rest as texts.

    `change` is by how much it differs from the entry before of the same model; empty for the first
    one, and where it does not. `is_other_runtime` says that the runtime's version does.
    """

    when: str
    label: str
    runtime: str
    value: int
    size: str
    change: str
    is_other_runtime: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The points of one model, in order."""

    model: str
    points: tuple[Point, ...]


def figure_of(name: str) -> Figure:
    """Return the figure called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in FIGURES:
        raise UsageError(f"unknown figure {name!r}. Choose from {', '.join(FIGURES)}.")
    return FIGURES[name]


def build(history: History, name: str) -> tuple[Line, ...]:
    """Return figure `name` of each model in `history`, the models by name.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    figure = figure_of(name)
    models: dict[str, list[Entry]] = {}
    for entry in history.entries:
        if name in entry.figures:
            models.setdefault(entry.model, []).append(entry)
    if not models:
        raise UsageError(f"no entry has the figure {name}. Choose another with --figure.")
    return tuple(
        Line(model=plain(model), points=_points(entries, figure))
        for model, entries in sorted(models.items())
    )


def _points(entries: Sequence[Entry], figure: Figure) -> tuple[Point, ...]:
    points = []
    for before, entry in zip([None, *entries], entries, strict=False):
        value = entry.figures[figure.name]
        change = value - before.figures[figure.name] if before else 0
        points.append(
            Point(
                when=time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.added_s)),
                label=shortened(plain(entry.label), _LONGEST_LABEL),
                runtime=plain(entry.onnxruntime or "?"),
                value=value,
                size=figure.show(value),
                change=figure.show(change, signed=True) if change else "",
                is_other_runtime=before is not None and before.onnxruntime != entry.onnxruntime,
            )
        )
    return tuple(points)
