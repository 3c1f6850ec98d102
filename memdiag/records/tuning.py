"""A tuning: the session options that were measured and the chosen ones (``memdiag.tuning/1``)."""

from typing import Final, Literal

import msgspec

from memdiag.defaults import DEFAULT_MAX_SLOWDOWN
from memdiag.records.base import Record
from memdiag.records.fix import Fix
from memdiag.records.measured_change import Figures, MeasuredChange

TUNING_SCHEMA: Final = "memdiag.tuning/1"

REWRITE: Final = "rewrite"
"""The name of the fixed model among the options of a point."""

LOAD_BY_PATH: Final = "load-by-path"
"""The name of the option to create the session from the path of the model, not its bytes."""


class Point(Record, frozen=True, kw_only=True):
    """One combination of options that was measured.

    Attributes:
        options: the names of the options; `REWRITE` is the fixed model.
        session_options: SessionOptions attributes and config entries.
        environment: variables that must be set before the process starts.
        run_options: config entries of RunOptions.
        disabled_optimizers: names of disabled graph transformers.
        shared_arena: whether the sessions use an arena of the environment.
        saved_options: session options with which the runtime writes its optimized model once; that
            model is loaded from then on. Empty if the model is loaded as it is.
        load_from: what the session is created from.
        shares_weights: whether all sessions of the process share one mapping of the weights.
        figures: memory and load time; None if the model did not run.
        ratio: the latency relative to the latency of the defaults: the largest median of all
            inputs. None if it was not compared.
        low: lower end of the 95 % confidence interval of the ratio; of four pairs, their smallest
            ratio.
        high: upper end of that interval.
        largest_high: the largest upper end of the intervals of all inputs; None if it was not
            compared.
        slowest_with: the inputs with that ratio.
        unnoticed: whether the latency with these inputs is larger by too little to notice, so that
            the ratio counts as 1.
        undecided: whether the ratio is above the allowed one, but not certainly: its interval
            reaches below that, or few pairs of runs were compared.
        offered: whether it takes less than the chosen point, but was not compared because the
            search ended before.
        on_front: whether it is on a Pareto front: no other point is as good in both steady memory
            and latency and better in one of them, or the same for the peak and latency.
        fits: whether it keeps the budget and, as far as it is known, the allowed slowdown.
        problem: the reason why it cannot be used; empty if it can.
    """

    options: tuple[str, ...]
    session_options: dict[str, str]
    environment: dict[str, str]
    run_options: dict[str, str]
    disabled_optimizers: tuple[str, ...]
    shared_arena: bool
    saved_options: dict[str, str]
    load_from: Literal["path", "bytes"] = "path"
    shares_weights: bool = False
    figures: Figures | None
    ratio: float | None
    low: float | None
    high: float | None
    on_front: bool
    fits: bool
    problem: str
    slowest_with: str = ""
    unnoticed: bool = False
    undecided: bool = False
    offered: bool = False
    largest_high: float | None = None

    @property
    def may_equal_defaults(self) -> bool:
        """Whether the interval of the latency ratio includes 1, or is unknown."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high

    @property
    def counted_ratio(self) -> float | None:
        """The latency ratio; 1 if the difference is too small to notice; None if unknown."""
        return 1.0 if self.unnoticed else self.ratio

    def is_too_slow(self, max_slowdown: float) -> bool:
        """Return whether the latency ratio is above `max_slowdown` beyond doubt."""
        ratio = self.counted_ratio
        return ratio is not None and ratio > max_slowdown and not self.undecided

    @property
    def known_ratio(self) -> float:
        """The latency ratio; 1 if the point may be as fast as the defaults."""
        return 1.0 if self.may_equal_defaults else self.counted_ratio or 1.0


class Tuning(MeasuredChange, frozen=True, kw_only=True):
    """The result of a tuning.

    Attributes:
        points: the measured combinations of options, in the order of measuring, defaults first.
        untried: the options whose memory was not measured.
        chosen: the options of the chosen point; empty for the defaults.
        program: Python that sets up the chosen point; empty for the defaults, if its latency is
            undecided, and if its model could not be written.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; empty for none.
        max_slowdown: the largest ratio of latencies that was allowed.
        session_count: the number of sessions that were started for the points.
        sessions: the number of sessions in each measured process.
        processes: the number of processes whose memory together the figures are, computed from one
            process.
        fix: the fix that ``memdiag optimize`` made before the options were tried; None without. Its
            notes are among `notes` too.
        output_files: the files of the model that an optimizer wrote, the model first, if that is a
            part of the chosen point; otherwise the files of the fix are those of the new model.
        write_problem: why the new model could not be written, so that the files of
            `output_files`, or of `fix`, are not there or are those of an earlier model; empty if it
            was written, or if there is none.
    """

    schema: Literal["memdiag.tuning/1"]
    points: tuple[Point, ...]
    untried: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    program: str = ""
    budget: dict[str, int] = msgspec.field(default_factory=dict)
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    session_count: int = 0
    sessions: int = 1
    processes: int = 1
    fix: Fix | None = None
    output_files: tuple[str, ...] = ()
    write_problem: str = ""

    @property
    def chosen_point(self) -> Point | None:
        """The point of `chosen`; None if no point was measured."""
        return next((point for point in self.points if point.options == self.chosen), None)

    def is_chosen(self, point: Point) -> bool:
        """Return whether `point` is the result; not the defaults if nothing was compared."""
        return point.options == self.chosen and (bool(self.chosen) or self.is_conclusive)

    @property
    def is_complete(self) -> bool:
        """Whether the search came to its end: nothing was left to measure or to compare."""
        return self.ended_by == "completion" and self._is_compared

    @property
    def _is_compared(self) -> bool:
        """Whether all options were measured, and the latency of all that take less was compared."""
        return not (self.untried or any(point.offered for point in self.points))

    @property
    def is_conclusive(self) -> bool:
        """Whether an option was compared with the defaults, or no option was left out."""
        is_compared = any(point.ratio is not None for point in self.points if point.options)
        return is_compared or self._is_compared
