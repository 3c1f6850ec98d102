"""What a fix did, and how it was verified (schema ``memdiag.fix/1``)."""

from typing import Final, Literal

from memdiag.records.base import Drawn, Record
from memdiag.records.dimension import Dimension

FIX_SCHEMA: Final = "memdiag.fix/1"

RemedyStatus = Literal[
    "applied", "refused", "rejected", "undecided", "possible", "untried", "unverified"
]
"""``applied``: it is in the output, verified; ``refused``: it cannot be done here; ``rejected``: it
was built and measured, and is not in the output; ``undecided``: so was it, and it saves memory, but
it could not be measured whether it is too slow; ``possible``: it would be tried (a dry run);
``untried``: the search ended before; ``unverified``: it is in the output, but the model could not
be run."""


class Remedy(Record, frozen=True, kw_only=True):
    """One remedy for one finding: what became of it, and why, in a few words.

    `name` is the remedy's, `rule` the name of the rule that asked for it, `weights` the weights
    concerned.
    """

    name: str
    rule: str
    status: RemedyStatus
    reason: str
    weights: tuple[str, ...]


class LatencyAt(Record, frozen=True, kw_only=True):
    """The latency with one set of inputs, in seconds (medians of runs that took turns).

    `ratio` is after / before, with its 95 % confidence interval `low` to `high` over `pairs`.
    """

    inputs: str
    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    pairs: int


class Figures(Record, frozen=True, kw_only=True):
    """What a model takes, memory above the baseline: medians of fresh processes.

    `peak_spread_bytes` and `steady_spread_bytes` are from the smallest to the largest of them.
    `file_bytes` is what steady memory is mapped from files, `disk_bytes` the model's files.
    `latency_s` is over all inputs that it was run with.
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
    """One combination of options that was measured: what it is, and what it takes.

    `options` are the names, ``rewrite`` among them where it is the fixed model that is loaded. With
    `saved_options` the runtime writes its optimized model once, and that model is loaded; with
    `shares_weights` the weights are mapped once for all sessions of the process.

    `ratio` is its latency beside that of the defaults: the largest median of all inputs, with its
    95 % confidence interval; None where it was not compared, for too little memory would be saved
    or, where `offered`, for the time was over. `slowest_with` are the inputs it is of. `undecided`
    says that the interval with some inputs includes the largest slowdown.
    `on_front` says that no other point takes less memory at the peak and in the end and less time;
    `fits` that it keeps within the budget and the largest slowdown; `problem` why it cannot be
    used, empty where it can.
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


class Fix(Drawn, frozen=True, kw_only=True):
    """What became of a model's findings.

    `output` is the fixed model's path, None where nothing was worth changing; `output_files` are
    all files it needs. Those of the original are `kept_files`: `kept_bytes` of its weights stay
    there. `session_options` and `environment` are what the saving depends on beside the file.

    `largest_difference` is that of any output, relative to its largest value, and `bound` what it
    was held to. `verified_on` are the releases of onnxruntime on which the outputs were compared,
    the first that on which all was measured; `oldest_onnxruntime` is the oldest supported one that
    can load what the file declares (None: none is known that can), `oldest_reason` what of it needs
    that (empty: all can). `is_valid` says whether it passes ``onnx.checker`` (None: no output).

    `points` are the combinations of options that a tuning measured, in the order in which they were
    tried (the defaults first), `untried` the options whose memory was not measured; `snippet` is
    Python that sets up the chosen point. Where that is the defaults, it sets up the offered point
    with the least memory, and is empty where none is offered.
    `session_count` is how many sessions were started for them; all memory is that of a process
    with `sessions` sessions of the model. `command` is the command that made it, word by word
    (empty where it was made otherwise). `dimensions` are the free dimensions of the inputs with the
    realistic sizes among those that it was run at.
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
