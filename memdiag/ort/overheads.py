"""Memory of a session that is neither weights nor activations, by release: measured, not derived.

A session of any model has threads, allocators, tables of kernels, and pages of the library that its
code touches; each node has its protobuf, its kernel and its place in the plans. The figures are
fitted to measurements by ``python -m benchmarks.estimates --fit``, on the part of the models that
may be looked at (docs/estimates.md): x86-64 wheels from PyPI, with telemetry off.
"""

from collections.abc import Iterable
from typing import NamedTuple

from memdiag.ort.runtime import Runtime
from memdiag.records.phases import PhaseName


class SessionOverhead(NamedTuple):
    """The bytes at the end of a phase.

    Attributes:
        session: the bytes for any model.
        node: the bytes for each node of the model, subgraphs included.
        executed: the bytes for each node that a run executes, after optimization.
    """

    session: int
    node: int
    executed: int = 0

    def graph_bytes(self, nodes: int, executed: int) -> int:
        """Return the bytes for a model with `nodes` nodes, of which a run executes `executed`."""
        return self.node * nodes + self.executed * executed


SESSION_OVERHEADS: dict[Runtime, dict[PhaseName, SessionOverhead]] = {
    Runtime(1, 24): {
        "parse": SessionOverhead(1_905_738, 5_703),
        "optimize": SessionOverhead(8_531_692, 9_225),
        "constant_fold": SessionOverhead(8_340_598, 8_416),
        "initialize": SessionOverhead(8_718_895, 9_327),
        "prepack": SessionOverhead(8_612_461, 10_304),
        "first_run": SessionOverhead(9_472_515, 10_195),
        "steady": SessionOverhead(9_468_831, 11_341),
    },
    Runtime(1, 28): {
        "parse": SessionOverhead(2_085_798, 2_455),
        "optimize": SessionOverhead(7_612_585, 8_404),
        "constant_fold": SessionOverhead(7_302_266, 8_176),
        "initialize": SessionOverhead(7_790_272, 9_094),
        "prepack": SessionOverhead(7_861_088, 9_297),
        "first_run": SessionOverhead(8_705_874, 10_160),
        "steady": SessionOverhead(8_737_750, 10_641),
    },
    Runtime(1, 31): {
        "parse": SessionOverhead(1_907_182, 5_954),
        "optimize": SessionOverhead(9_721_232, 9_023),
        "constant_fold": SessionOverhead(9_280_874, 8_257),
        "initialize": SessionOverhead(9_943_410, 8_990),
        "prepack": SessionOverhead(9_927_892, 9_314),
        "first_run": SessionOverhead(11_037_826, 8_978),
        "steady": SessionOverhead(10_992_362, 10_908),
    },
    Runtime(1, 32): {
        "parse": SessionOverhead(1_863_128, 6_287, 0),
        "optimize": SessionOverhead(10_369_426, 4_913, 5_968),
        "constant_fold": SessionOverhead(9_935_237, 4_770, 4_943),
        "initialize": SessionOverhead(10_552_547, 1_017, 13_055),
        "prepack": SessionOverhead(10_633_374, 3_604, 7_371),
        "first_run": SessionOverhead(11_615_556, 0, 13_053),
        "steady": SessionOverhead(11_724_985, 0, 11_965),
    },
}
"""By release, the oldest first. A release without figures has those of the last one before it."""

PROCESS_BASELINE_BYTES: dict[Runtime, int] = {
    Runtime(1, 24): 42_393_600,
    Runtime(1, 28): 45_404_160,
    Runtime(1, 31): 44_767_232,
    Runtime(1, 32): 46_473_216,
}
"""The resident set before a session: Python 3.11, numpy and onnxruntime, without telemetry."""


def overhead_at_end(runtime: Runtime, phase: PhaseName) -> SessionOverhead:
    """Return what a session takes at the end of `phase` in addition to weights and values.

    The bytes are 0 for a phase that was not measured.
    """
    return SESSION_OVERHEADS[_nearest_measured_release(runtime, SESSION_OVERHEADS)].get(
        phase, SessionOverhead(0, 0)
    )


def baseline_bytes(runtime: Runtime) -> int:
    """Return the resident set of a process that has imported onnxruntime."""
    return PROCESS_BASELINE_BYTES[_nearest_measured_release(runtime, PROCESS_BASELINE_BYTES)]


def _nearest_measured_release(runtime: Runtime, table: Iterable[Runtime]) -> Runtime:
    return max(release for release in table if release[:2] <= runtime[:2])
