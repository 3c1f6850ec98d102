"""The result of a fix or a tuning, and of its verification (schema ``memdiag.fix/1``)."""

from typing import Final, Literal

from memdiag.records.base import PlottableRecord, Record
from memdiag.records.dimension import Dimension

FIX_SCHEMA: Final = "memdiag.fix/1"

RemedyStatus = Literal[
    "applied", "refused", "rejected", "undecided", "possible", "untried", "unverified"
]
"""``applied``: in the output, verified; ``refused``: cannot be applied to this model; ``rejected``:
built and measured, and not in the output; ``undecided``: built and measured, saves memory, but the
comparison of latency has no clear result; ``possible``: would be tried (a dry run); ``untried``:
the search ended before; ``unverified``: in the output, but the model could not be run."""


class Remedy(Record, frozen=True, kw_only=True):
    """The result of one remedy for one finding.

    Attributes:
        name: the name of the remedy.
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


class LatencyAt(Record, frozen=True, kw_only=True):
    """The latency with one set of inputs, before and after a fix, from interleaved runs.

    Attributes:
        inputs: the sizes and values of the inputs, as text.
        before_s, after_s: medians.
        ratio: median ratio of after to before.
        low, high: 95 % confidence interval of the ratio.
        pairs: the number of pairs of runs.
    """

    inputs: str
    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    pairs: int


class Figures(Record, frozen=True, kw_only=True):
    """Memory above the baseline, load time and latency of a model: medians of several processes.

    Attributes:
        peak_spread_bytes, steady_spread_bytes: largest minus smallest value of the processes.
        file_bytes: the part of steady memory that is mapped from files.
        latency_s: median over all inputs; None if no run was timed.
        disk_bytes: the size of the model's files.
    """

    peak_bytes: int
    peak_spread_bytes: int
    steady_bytes: int
    steady_spread_bytes: int
    anonymous_bytes: int
    file_bytes: int
    load_s: float
    latency_s: float | None
    disk_bytes: int


class Point(Record, frozen=True, kw_only=True):
    """One combination of options that was measured.

    Attributes:
        options: the names of the options; ``rewrite`` stands for the fixed model.
        saved_options: session options with which the runtime writes its optimized model once; that
            model is loaded from then on. Empty if the model is loaded as it is.
        shares_weights: whether all sessions of the process share one mapping of the weights.
        figures: memory and load time; None if the model did not run.
        ratio: the latency relative to that of the defaults: the largest median of all inputs. None
            if it was not compared.
        low, high: 95 % confidence interval of the ratio.
        slowest_with: the inputs with that ratio.
        undecided: whether the interval of some inputs includes the allowed slowdown.
        offered: whether the latency was not compared because the time limit had passed.
        on_front: whether no other point has less peak memory, less steady memory and less latency.
        fits: whether it keeps the budget and the allowed slowdown.
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
    undecided: bool = False
    offered: bool = False


class Fix(PlottableRecord, frozen=True, kw_only=True):
    """The result of a fix, or of a tuning (which has `points`).

    Attributes:
        output: the path of the fixed model; None if nothing was worth changing.
        output_files: all files that the fixed model needs.
        kept_files: those of them that belong to the original model.
        kept_bytes: the bytes of weights in `kept_files`.
        session_options, environment: settings that the saving needs beside the file.
        latencies: latency before and after, for each set of inputs.
        largest_difference: the largest difference of any output, relative to the output's largest
            value; None if outputs were not compared.
        bound, bound_reason: the allowed difference, and where it comes from.
        verified: whether outputs, memory and latency were compared.
        verified_on: the releases of onnxruntime on which outputs were compared; all else was
            measured on the first of them.
        is_valid: whether the output passes ``onnx.checker``; None without an output.
        oldest_onnxruntime: the oldest supported release that can load the output; None if no such
            release is known.
        oldest_reason: the feature of the output that needs this release; empty if all releases
            can load it.
        points: the measured combinations of options, in the order of measuring, defaults first.
        untried: the options whose memory was not measured.
        chosen: the options of the chosen point; empty for the defaults.
        snippet: Python that sets up the chosen point. If that is the defaults, it sets up the
            offered point with the least memory; empty if no point is offered.
        session_count: the number of sessions that were started for the points.
        sessions: the number of sessions in each measured process.
        command: the words of the command; empty for the Python API.
        dimensions: the free dimensions, with the realistic sizes among those that were measured.
    """

    schema: Literal["memdiag.fix/1"]
    model: str
    onnxruntime: str
    output: str | None
    output_files: tuple[str, ...]
    session_options: dict[str, str]
    environment: dict[str, str]
    remedies: tuple[Remedy, ...]
    before: Figures | None
    after: Figures | None
    latencies: tuple[LatencyAt, ...]
    largest_difference: float | None
    bound: float | None
    bound_reason: str
    verified: bool
    notes: tuple[str, ...]
    duration_s: float
    points: tuple[Point, ...] = ()
    untried: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    snippet: str = ""
    session_count: int = 0
    kept_files: tuple[str, ...] = ()
    kept_bytes: int = 0
    verified_on: tuple[str, ...] = ()
    is_valid: bool | None = None
    oldest_onnxruntime: str | None = None
    oldest_reason: str = ""
    sessions: int = 1
    command: tuple[str, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
