"""A fix: the changes that were tried, the chosen ones, and what they save (``memdiag.fix/1``)."""

from typing import Final, Literal

import msgspec

from memdiag.defaults import DEFAULT_MAX_SLOWDOWN, DEFAULT_PROVIDERS
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.device import Device
from memdiag.records.dimension import Dimension
from memdiag.records.measured_change import Figures, LatencyAt, SearchEnd

FIX_SCHEMA: Final = "memdiag.fix/1"

REWRITE: Final = "rewrite"
"""The name of the rewritten model among the changes of a point."""

RemedyStatus = Literal["applied", "refused", "rejected", "untried"]
"""``applied``: in the new model, verified; ``refused``: cannot be applied to this model;
``rejected``: built and measured, and not in the new model; ``untried``: the search ended before."""


class Remedy(Record, frozen=True, kw_only=True):
    """The result of one rewrite for one finding.

    Attributes:
        name: the name of the rewrite.
        rule: the name of the rule of the finding.
        status: the result.
        reason: the reason for the status, in a few words.
        weights: qualified names of the weights concerned.
    """

    name: str
    rule: str
    status: RemedyStatus
    reason: str
    weights: tuple[str, ...]


class Point(Record, frozen=True, kw_only=True):
    """One combination of changes that was measured.

    Attributes:
        option_names: the names of the changes: `REWRITE` is the rewritten model, the name of an
            optimizer the model that it wrote, every other name an option of the session.
        session_options: SessionOptions attributes and config entries.
        environment: variables that must be set before the process starts.
        run_options: config entries of RunOptions.
        providers: the execution providers, the preferred one first.
        provider_options: their options by name, by the name of the provider.
        disabled_optimizers: names of disabled graph transformers.
        shared_arena: whether the session uses an arena of the environment.
        saved_options: session options with which the runtime writes its optimized model once; that
            model is loaded from then on. Empty if the model is loaded as it is.
        figures: memory and load time; None if the model did not run.
        ratio: the latency relative to the latency of the defaults: the largest median of all
            inputs. None if it was not compared.
        low: lower end of the 95 % confidence interval of the ratio; of a few pairs, their smallest
            ratio.
        high: upper end of that interval.
        largest_high: the largest upper end of the intervals of all inputs; None if it was not
            compared.
        slowest_with: the inputs with that ratio.
        unnoticed: whether the latency with these inputs is larger by too little to notice, so that
            the ratio counts as 1.
        same_kernels: whether the same kernels run on the same shapes as with the defaults, and the
            ratio is not certainly above the allowed one, so that it counts as at most 1.
        undecided: whether the ratio is above the allowed one, but not certainly: its interval
            reaches below that, or few pairs of runs were compared.
        offered: whether it takes less than the chosen point, but was not compared because the
            search ended before.
        on_front: whether it is on a Pareto front: no other point is as good in both steady memory
            and latency and better in one of them, or the same for the peak and latency.
        fits: whether it keeps the budget and, as far as it is known, the allowed slowdown.
        problem: the reason why it cannot be used; empty if it can.
    """

    option_names: tuple[str, ...]
    session_options: dict[str, str]
    environment: dict[str, str]
    run_options: dict[str, str]
    disabled_optimizers: tuple[str, ...]
    shared_arena: bool
    saved_options: dict[str, str]
    figures: Figures | None
    ratio: float | None
    low: float | None
    high: float | None
    on_front: bool
    fits: bool
    problem: str
    slowest_with: str = ""
    unnoticed: bool = False
    same_kernels: bool = False
    undecided: bool = False
    offered: bool = False
    largest_high: float | None = None
    providers: tuple[str, ...] = DEFAULT_PROVIDERS
    provider_options: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)

    @property
    def may_equal_defaults(self) -> bool:
        """Whether the interval of the latency ratio includes 1, or is unknown."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high

    @property
    def counted_ratio(self) -> float | None:
        """The latency ratio; at most 1 if what is above is noise or too small to notice."""
        if self.ratio is not None and (self.unnoticed or self.same_kernels):
            return min(self.ratio, 1.0)
        return self.ratio

    def is_too_slow(self, max_slowdown: float) -> bool:
        """Return whether the latency ratio is above `max_slowdown` beyond doubt."""
        ratio = self.counted_ratio
        return ratio is not None and ratio > max_slowdown and not self.undecided

    @property
    def known_ratio(self) -> float:
        """The latency ratio; 1 if the point may be as fast as the defaults."""
        return 1.0 if self.may_equal_defaults else self.counted_ratio or 1.0


class Fix(PlottableRecord, frozen=True, kw_only=True):
    """The result of a search for changes with which a model takes less memory.

    Attributes:
        model: the path of the original model.
        onnxruntime: the release that the figures were measured on.
        device: the GPU whose memory the figures are; None if they are of the host, above the
            baseline.
        before, after: figures of the defaults and of the chosen point; None if the search ended
            before they were measured.
        measured_once: whether `after` was measured in one process only, because the search ended
            before several could be.
        latencies: latency before and after, for each set of inputs.
        largest_difference: the largest difference of any output, relative to the output's largest
            value; None if outputs were not compared.
        bound, bound_reason: the allowed difference, and where it comes from.
        ended_by: what ended the search.
        notes: sentences about the measurement and the result.
        command: the words of the command; empty for the Python API.
        only: the names of what was to be tried; empty for everything.
        dimensions: the free dimensions, with the measured sizes that are realistic.
        further_sizes: the sizes that each measured process ran with after these, as text, such as
            ``batch 4``: its memory includes what these runs left.
        sufficient_time_limit_s: a time limit that is expected to suffice, from the durations so
            far; None if the limit did not end the search, or if none is known.
        remedies: the result of each rewrite.
        points: the measured combinations of changes, in the order of measuring, defaults first.
        untried: the options and optimizers that were not tried.
        failed_optimizers: why optimizers that were to be tried wrote no model, by name.
        chosen: the changes of the chosen point; empty for the defaults.
        program: Python that sets up the chosen point; empty for the defaults, if its latency is
            undecided, and if its model could not be written.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; empty for none.
        max_slowdown: the largest ratio of latencies that was allowed.
        session_count: the number of sessions that were started for the points.
        output_files: the files of the new model, the model first; empty if the original is loaded.
        kept_files: the `output_files` that belong to the original model.
        kept_bytes: the bytes of weights in `kept_files`.
        is_valid: whether the rewritten model passes ``onnx.checker``; None without one.
        oldest_onnxruntime: the oldest supported release that can load the rewritten model; None if
            no such release is known, or there is no such model.
        oldest_reason: the feature of that model that needs this release; empty if all releases can
            load it.
        write_problem: why the new model could not be written, so that its files are not there or
            are those of an earlier model; empty if it was written, or if there is none.
    """

    schema: Literal["memdiag.fix/1"]
    model: str
    onnxruntime: str
    before: Figures | None = None
    after: Figures | None = None
    measured_once: bool = False
    latencies: tuple[LatencyAt, ...] = ()
    largest_difference: float | None = None
    bound: float | None = None
    bound_reason: str = ""
    ended_by: SearchEnd = "completion"
    notes: tuple[str, ...] = ()
    duration_s: float
    command: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    further_sizes: tuple[str, ...] = ()
    sufficient_time_limit_s: float | None = None
    remedies: tuple[Remedy, ...] = ()
    points: tuple[Point, ...] = ()
    untried: tuple[str, ...] = ()
    failed_optimizers: dict[str, str] = msgspec.field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    program: str = ""
    budget: dict[str, int] = msgspec.field(default_factory=dict)
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    session_count: int = 0
    output_files: tuple[str, ...] = ()
    kept_files: tuple[str, ...] = ()
    kept_bytes: int = 0
    is_valid: bool | None = None
    oldest_onnxruntime: str | None = None
    oldest_reason: str = ""
    write_problem: str = ""
    device: Device | None = None

    @property
    def output(self) -> str | None:
        """The path of the new model; None if the original is loaded."""
        return self.output_files[0] if self.output_files else None

    @property
    def chosen_point(self) -> Point | None:
        """The point of `chosen`; None if no point was measured."""
        return next((point for point in self.points if point.option_names == self.chosen), None)

    def is_chosen(self, point: Point) -> bool:
        """Return whether `point` is the result; not the defaults if nothing was compared."""
        return point.option_names == self.chosen and (bool(self.chosen) or self.is_conclusive)

    @property
    def is_complete(self) -> bool:
        """Whether the search came to its end: nothing was left to measure or to compare."""
        return self.ended_by == "completion" and self._is_compared

    @property
    def _is_compared(self) -> bool:
        """Whether everything was tried, and the latency of all that take less was compared."""
        is_left = self.untried or any(remedy.status == "untried" for remedy in self.remedies)
        return not (is_left or any(point.offered for point in self.points))

    @property
    def is_conclusive(self) -> bool:
        """Whether a change was compared with the defaults, or none was left out."""
        is_compared = any(point.ratio is not None for point in self.points if point.option_names)
        return is_compared or self._is_compared
