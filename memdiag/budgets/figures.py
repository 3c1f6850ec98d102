"""The figures of a profile that a budget can limit, and the copies in use of its weights."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from memdiag.records.attribution import Attribution, Copy, CopyKind
from memdiag.records.baseline import CopyTotal
from memdiag.records.phases import GENERATION_PHASES, PHASES, PhaseName
from memdiag.records.profile import Memory, Profile
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.units import format_size

FigureUnit = Literal["bytes", "count"]

MIN_COPY_BYTES = 4096
"""Copies of smaller weights are not counted: a budget of copies is about large ones."""

MAX_BASELINE_COPIES = 20
"""Copies in a baseline file, the largest ones. It cannot be told whether smaller ones are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFigure:
    """One figure that a budget can limit.

    Attributes:
        name: the name in budgets and baseline files.
        description: the meaning, for help and documentation.
        unit: the unit of its values.
    """

    name: str
    description: str
    unit: FigureUnit = "bytes"

    def show(self, value: int, *, signed: bool = False) -> str:
        """Return `value`, bytes or a count, as text with its unit."""
        if self.unit == "count":
            return f"{value:+,}" if signed else f"{value:,}"
        return format_size(value, signed=signed)


BUDGET_PHASES: tuple[PhaseName, ...] = tuple(
    name for name in PHASES if name not in ("start", "steady")
)
MAX_BYTES_PER_S = 6e9
"""Bytes that a process can allocate in a second. Bounds the error of phases that were read late."""

FIGURES_BY_NAME: dict[str, BudgetFigure] = {
    figure.name: figure
    for figure in (
        BudgetFigure(name="peak", description="the largest resident set, above the baseline"),
        BudgetFigure(
            name="steady", description="the resident set after the last run, above the baseline"
        ),
        BudgetFigure(
            name="steady_anonymous", description="its anonymous part: heap, arenas, stacks"
        ),
        BudgetFigure(
            name="steady_file", description="its file-backed part: mapped weights, libraries"
        ),
        *(
            BudgetFigure(name=name, description=f"the peak in {name}, above the baseline")
            for name in BUDGET_PHASES
        ),
        BudgetFigure(
            name="growth_per_run",
            description="by how much each run after the second leaves it grown",
        ),
        BudgetFigure(
            name="copies", description="the most copies in use of any weight", unit="count"
        ),
        BudgetFigure(
            name="process_peak", description="the largest resident set of the whole process"
        ),
        BudgetFigure(
            name="device_peak", description="the peak on the GPU, the context and code included"
        ),
        BudgetFigure(
            name="device_steady", description="the memory on the GPU after the last run, likewise"
        ),
    )
}
"""Every figure by its name. Resident memory is above the process's own baseline, except
`process_peak`."""

DEVICE_FIGURES: tuple[Literal["device_peak", "device_steady"], ...] = (
    "device_peak",
    "device_steady",
)
"""Figures that only profiles have that ran on a GPU."""


def figures_of(profile: Profile) -> dict[str, int]:
    """Return the figures that `profile` has, in their units.

    A phase that was not reached or not distinguished has no figure. `growth_per_run` needs later
    runs, `copies` an X-ray, and the figures of the GPU their sources.
    """
    base = profile.baseline_rss_bytes
    figures = {"peak": profile.peak_above_bytes}
    if profile.steady is not None:
        start = profile.phase("start")
        figures |= growth_since(profile.steady, start.end if start else None, base)
    for phase in profile.phases:
        if phase.name in BUDGET_PHASES:
            figures[phase.name] = phase.peak_rss_bytes - base
    if len(profile.runs) > 1:
        grown_bytes = profile.runs[-1].rss_bytes - profile.runs[0].rss_bytes
        figures["growth_per_run"] = round(grown_bytes / (len(profile.runs) - 1))
    if profile.attribution is not None:
        count_by_weights: Counter[tuple[str, ...]] = Counter()
        count_by_weights.update(
            copy.weights for copy in profile.attribution.copies if counts_as_copy(copy)
        )
        figures["copies"] = max(count_by_weights.values(), default=0)
    figures["process_peak"] = profile.peak_rss_bytes
    device = profile.device
    if device is not None and device.peak_bytes is not None:
        figures["device_peak"] = device.peak_bytes
    if device is not None and device.steady_bytes is not None:
        figures["device_steady"] = device.steady_bytes
    return figures


def aggregate_figures(profiles: Sequence[Profile]) -> dict[str, int]:
    """Return the figures of several processes that ran the same model.

    They are medians, with two exceptions. Figures of phases are from the process whose boundaries
    were read soonest, because memory that is allocated before a boundary is read counts to the
    phase before it. Figures of the GPU are from the first process, because only that one may have
    recorded the allocations, which takes memory on the GPU.
    """
    process_figures = [figures_of(profile) for profile in profiles]
    names = dict.fromkeys(name for figures in process_figures for name in figures)
    medians = {
        name: round(median(figures[name] for figures in process_figures if name in figures))
        for name in names
    }
    soonest_figures = figures_of(min(profiles, key=_lag_s))
    return (
        medians
        | {name: soonest_figures[name] for name in BUDGET_PHASES if name in soonest_figures}
        | {name: process_figures[0][name] for name in DEVICE_FIGURES if name in process_figures[0]}
    )


def late_bytes(profiles: Sequence[Profile]) -> int:
    """Return the possible error in bytes of what `aggregate_figures` returns for phases."""
    return round(min(map(_lag_s, profiles)) * MAX_BYTES_PER_S)


def _lag_s(profile: Profile) -> float:
    return profile.sampling.boundary_lag_s or 0.0


def growth_since(memory: Memory, start: Memory | None, base: int) -> dict[str, int]:
    """Return the growth in bytes: of `memory` above `base`, and of its parts since `start`."""
    growth_by_figure = {"steady": memory.rss_bytes - base}
    if start is None:
        return growth_by_figure
    parts = (
        ("steady_anonymous", memory.anonymous_bytes, start.anonymous_bytes),
        ("steady_file", memory.file_bytes, start.file_bytes),
    )
    differences = {
        name: now - then for name, now, then in parts if now is not None and then is not None
    }
    return growth_by_figure | differences


def counts_as_copy(copy: Copy) -> bool:
    """Return whether `copy` is large enough, not freed, and mostly resident."""
    is_large = copy.bytes >= MIN_COPY_BYTES
    return is_large and copy.in_use is not False and 2 * copy.resident_bytes >= copy.bytes


def why_missing(profile: Profile, name: str) -> str:
    """Return the reason why `profile` has no figure `name`."""
    if name in BUDGET_PHASES:
        runtime = f"onnxruntime {profile.environment.onnxruntime}"
        if name in GENERATION_PHASES and profile.generation is None:
            return "the model was not run as a generation (--steps)"
        if profile.session.runs is None and name == "first_run":
            return "the model was not run"
        if profile.generation is not None and name == "first_run":
            return "a generation has the phase prefill in its place"
        return f"{runtime} did not log that phase with these session options"
    if name == "copies":
        failure = profile.xray_failure
        return f"no X-ray: {failure}" if failure else "no X-ray was taken"
    if name in DEVICE_FIGURES:
        return _why_not_on_device(profile, name)
    if name == "growth_per_run":
        return "it takes two runs after the first one, or more"
    if profile.steady is None:
        return "the model was not run"
    return "this system does not split the resident set"


def _why_not_on_device(profile: Profile, name: str) -> str:
    device = profile.device
    if device is None or not uses_nvidia_device(profile.session.providers):
        return "the session did not run on an NVIDIA device (--provider CUDAExecutionProvider)"
    if device.ledger is None:
        reason = device.missing_reason("cudaMemGetInfo")
        return f"the memory on the GPU was not read{f' ({reason})' if reason else ''}"
    reason = device.missing_reason("CUPTI")
    if reason:
        return f"the peak on the GPU is not known without CUPTI ({reason})"
    reason = device.missing_reason("cudaMemGetInfo")
    return f"the memory on the GPU was not read after each step{f' ({reason})' if reason else ''}"


def phase_of_figure(profile: Profile, name: str) -> PhaseName | None:
    """Return the phase that determines figure `name` of `profile`; None for figures of the GPU."""
    if name in DEVICE_FIGURES:
        return None
    if name in ("peak", "process_peak"):
        return profile.peak_phase
    return next((phase for phase in BUDGET_PHASES if phase == name), "steady")


def copy_totals(attribution: Attribution) -> tuple[CopyTotal, ...]:
    """Return the copies in use by weight and kind, the largest first.

    Weights of equal content count as one weight.
    """
    copies_by_weight_and_kind: dict[tuple[str, CopyKind], list[Copy]] = {}
    for copy in filter(counts_as_copy, attribution.copies):
        weight_and_kind = (min(copy.weights, default=""), copy.kind)
        copies_by_weight_and_kind.setdefault(weight_and_kind, []).append(copy)
    rows = (
        CopyTotal(
            weight=weight,
            kind=kind,
            count=len(copies),
            bytes=sum(copy.bytes for copy in copies),
            made_by=next((copy.made_by for copy in copies if copy.made_by), None),
        )
        for (weight, kind), copies in copies_by_weight_and_kind.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.weight, row.kind)))


def largest_repeated(rows: Sequence[CopyTotal]) -> tuple[CopyTotal, ...]:
    """Return the rows of the weight that has several copies and the most bytes."""
    rows_by_weight: dict[str, list[CopyTotal]] = {}
    for row in rows:
        rows_by_weight.setdefault(row.weight, []).append(row)
    repeated = [group for group in rows_by_weight.values() if sum(row.count for row in group) > 1]
    return tuple(max(repeated, key=lambda group: sum(row.bytes for row in group), default=()))


def new_since(
    baseline_rows: Sequence[CopyTotal], rows: Sequence[CopyTotal]
) -> tuple[CopyTotal, ...]:
    """Return the `rows` that have more copies than the rows of a baseline file."""
    count_by_copy = {(row.weight, row.kind): row.count for row in baseline_rows}
    is_cut_off = len(baseline_rows) >= MAX_BASELINE_COPIES
    smallest = min(row.bytes for row in baseline_rows) if is_cut_off else 0
    return tuple(
        row
        for row in rows
        if row.bytes > smallest and row.count > count_by_copy.get((row.weight, row.kind), 0)
    )
