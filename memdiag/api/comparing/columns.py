"""A column of a comparison, put together from what was measured of its subject."""

from collections.abc import Sequence
from math import isfinite, prod
from pathlib import Path

import msgspec

from memdiag.api.comparing.subjects import Subject
from memdiag.comparison.figures import latency, measured
from memdiag.comparison.reference import OutputComparison
from memdiag.errors import MemdiagError
from memdiag.model.model_file import ModelFile
from memdiag.records.comparison import Column, Graph
from memdiag.records.profile import Profile

_MAX_OUTPUTS = 4
"""A sentence names at most this many outputs."""


def column_of(
    subject: Subject,
    file: ModelFile | MemdiagError | None,
    profiles: Sequence[Profile],
    failure: str,
    beside: OutputComparison | None,
    timed: slice,
) -> Column:
    """Return the column of `subject`: `profiles` are its runs, in order, the last one may have
    ended badly; `failure` says why its process could not be watched, where that is so. `timed` are
    those of the runs of each profile whose latency is told."""
    column = Column(
        label=subject.label,
        status=subject.status,
        message=subject.message,
        model=subject.model or _text(subject.job.model),
        optimizer=subject.optimizer,
        graph=graph_of(file) if isinstance(file, ModelFile) else None,
    )
    if isinstance(file, MemdiagError):
        return msgspec.structs.replace(column, status="failed", message=str(file))
    if failure:
        return msgspec.structs.replace(column, status="failed", message=failure)
    if not profiles:
        return column
    return with_profiles(column, profiles, beside, timed)


def with_profiles(
    column: Column,
    profiles: Sequence[Profile],
    beside: OutputComparison | None = None,
    timed: slice = slice(None),
) -> Column:
    """Return `column` with the figures of `profiles`, or with how the last of them ended."""
    first, last = (_called(column.model, one) for one in (profiles[0], profiles[-1]))
    column = msgspec.structs.replace(
        column, profile=first, onnxruntime=first.environment.onnxruntime
    )
    outcome = last.outcome
    if outcome.status != "completed":
        message = f"{outcome.phase}: {outcome.message}"
        return msgspec.structs.replace(column, status=outcome.status, message=message, profile=last)
    largest = beside.largest if beside else None
    if beside is not None and beside.why:
        said = [column.message, f"outputs and latency are not compared: {beside.why}"]
        column = msgspec.structs.replace(column, message="; ".join(filter(None, said)))
    return msgspec.structs.replace(
        column,
        measured=measured(profiles),
        latency=latency(profiles, beside.raced if beside else None, timed),
        largest_difference=largest.relative if largest and isfinite(largest.relative) else None,
        difference=_difference(column.label, beside) if beside else "",
    )


def _difference(label: str, beside: OutputComparison) -> str:
    """Return how outputs differ from the first column's, apart from finite differences."""
    parts = []
    largest = beside.largest
    if largest and not isfinite(largest.relative):
        parts.append(f"output {largest.output} {largest.reason}".strip())
    if beside.added:
        parts.append(f"only {label} has {_outputs(beside.added)}")
    if beside.missing:
        parts.append(f"only the first has {_outputs(beside.missing)}")
    if largest and not largest.relative and parts:
        parts.append("all others are equal")
    return "; ".join(parts)


def _outputs(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_OUTPUTS} more" if len(names) > _MAX_OUTPUTS else ""
    listed = ", ".join(names[:_MAX_OUTPUTS])
    return f"the output{'s' if len(names) > 1 else ''} {listed}{more}"


def _called(name: str, profile: Profile) -> Profile:
    """Return `profile` of a model that is called `name`."""
    return msgspec.structs.replace(
        profile,
        model=msgspec.structs.replace(profile.model, path=name),
        findings=tuple(msgspec.structs.replace(one, model=name) for one in profile.findings),
    )


def graph_of(file: ModelFile) -> Graph:
    """Return the size of a model."""
    return Graph(
        nodes=file.node_count,
        initializers=sum(weight.place == "initializer" for weight in file.weights),
        parameters=sum(prod(weight.shape) for weight in file.weights),
        saved_bytes=sum(path.stat().st_size for path in file.files),
    )


def _text(path: Path) -> str:
    """Return `path` as text that a record can hold: a file name need not be."""
    return str(path).encode(errors="backslashreplace").decode()
