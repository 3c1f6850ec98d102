"""What a session takes on an NVIDIA GPU with the CUDA provider, from the model alone.

Weights are in the arena, one chunk each, or with `DeviceSettings.has_own_weights` in allocations of
their own. A run copies its inputs to the device, and takes chunks for its values. The arena returns
nothing, so that what the session takes after its runs is also the most that it ever takes. Handles
of cuBLAS and cuDNN, and the context of the process, are constants that were recorded on an H100.

The arena's part is compared with recorded sessions (tests/ort/test_device_session.py). Fused nodes
are not known for this provider: the values that they save are counted. Weights are taken in the
order of the file; the runtime has them in a hash table, which moves the sum by a few MiB.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from memdiag.device.allocations import page_bytes_for
from memdiag.device.ledger import ledger_row
from memdiag.model.tensor_types import TensorType
from memdiag.ort.activations import SimulatedRun
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import LATER_RUNS, ArenaStrategy, SimulatedArena
from memdiag.ort.executed_graph import ExecutedNode
from memdiag.ort.scratch import ScratchSizes, TypesByName
from memdiag.records.device import Ledger
from memdiag.units import KIB, MIB

RECORDED_DEVICE = "NVIDIA H100 80GB HBM3"
"""The device whose constants these are."""

RECORDED_CONTEXT_BYTES = 545 * MIB
"""Context and code of a process without CUPTI, which would take 12 to 16 MiB more."""

HANDLES = 2
"""Handles of cuBLAS, and of cuDNN, of a session."""

CUBLAS_WORKSPACE_BYTES = 64 * MIB
"""The workspace of a cuBLAS handle."""

SMALL_CUBLAS_WORKSPACE_BYTES = 8 * 16 * KIB
"""The same with `SMALL_CUBLAS_WORKSPACE`."""

_CUBLAS_HANDLE_BYTES = (1024, 128 * KIB)
_CUDNN_HANDLE_BYTES = (25_344, 4)

_FIRST_CONSTANT_KEY, _FIRST_INPUT_KEY = 1 << 40, 1 << 41
"""Keys in the arena that no request of a run has."""


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """The configuration of a session and its process that affects memory on the device.

    Attributes:
        strategy: the provider option ``arena_extend_strategy``.
        has_own_weights: ``session.use_device_allocator_for_initializers``.
        has_pattern: ``enable_mem_pattern``.
        cublas_workspace_bytes: the workspace of each cuBLAS handle.
        context_bytes: the context and code of the process.
    """

    strategy: ArenaStrategy = "kNextPowerOfTwo"
    has_own_weights: bool = False
    has_pattern: bool = True
    cublas_workspace_bytes: int = CUBLAS_WORKSPACE_BYTES
    context_bytes: int = RECORDED_CONTEXT_BYTES


def no_scratch(node: ExecutedNode, types: TypesByName, opset: int) -> list[int]:
    """Return no working memory for any kernel: what other kernels than Conv take is not known."""
    return []


def convolution_copies(node: ExecutedNode, types: TypesByName, opset: int) -> list[int]:
    """Return the most that cuDNN took for a Conv in recordings: a copy of input, filter and output.

    Its fastest kernels read and write channels last, which the model's values are not.
    """
    if node.op_type != "Conv":
        return []
    kinds = (types.get(name) for name in (*node.input[:2], node.output[0]))
    return [sum(_nbytes(kind) for kind in kinds)]


class DeviceSession:
    """The memory on the device that sessions of one model take.

    Args:
        ctx: the model and the release.
    """

    def __init__(self, ctx: AnalysisContext) -> None:
        self._ctx = ctx
        self._runs: dict[tuple[ScratchSizes, frozenset[tuple[str, int]]], _DeviceRun] = {}

    @cached_property
    def weight_bytes(self) -> int:
        """The bytes of the weights of the file that the session reads."""
        return sum(self._weight_sizes)

    @cached_property
    def has_convolutions(self) -> bool:
        """Whether the model has convolutions, whose working memory is a range."""
        return any(node.op_type == "Conv" for _, scope in self._ctx.graphs for node in scope.nodes)

    def unknown_values(self, sizes: Mapping[str, int]) -> int:
        """Return the number of values whose sizes only a run shows; they count as nothing."""
        return self._run_at(sizes, no_scratch).simulated.peak.unknown

    def ledger_after(
        self,
        runs: Sequence[Mapping[str, int]],
        settings: DeviceSettings,
        scratch: ScratchSizes = no_scratch,
    ) -> Ledger:
        """Return what a process with one session takes on the device after runs.

        Args:
            runs: the sizes of the free dimensions by name; the model runs several times at each.
            settings: the configuration.
            scratch: returns the working memory of kernels.
        """
        arena = SimulatedArena(settings.strategy)
        constants = (*self._weight_sizes, *self._folded_sizes)
        if not settings.has_own_weights:
            for index, nbytes in enumerate(constants):
                arena.take(_FIRST_CONSTANT_KEY + index, nbytes)
        in_use = sum(constants) if settings.has_own_weights else arena.in_use_bytes
        for sizes in runs:
            _serve_runs(arena, self._run_at(sizes, scratch), has_pattern=settings.has_pattern)
        handle = (*_CUBLAS_HANDLE_BYTES, settings.cublas_workspace_bytes)
        allocations = [
            *(constants if settings.has_own_weights else ()),
            *arena.regions,
            *HANDLES * (*handle, *_CUDNN_HANDLE_BYTES),
        ]
        rows = (
            ledger_row("context", settings.context_bytes, "computed"),
            ledger_row("weights", self.weight_bytes, "computed"),
            ledger_row("values", in_use - self.weight_bytes, "computed"),
            ledger_row("empty_arena", arena.held_bytes - arena.in_use_bytes, "computed"),
            ledger_row("cublas", HANDLES * sum(handle), "computed"),
            ledger_row("cudnn", HANDLES * sum(_CUDNN_HANDLE_BYTES), "computed"),
            ledger_row("rounding", page_bytes_for(allocations) - sum(allocations), "computed"),
        )
        return Ledger(
            mark="runs", used_bytes=sum(row.bytes for row in rows), rows=rows, is_coarse=False
        )

    def _run_at(self, sizes: Mapping[str, int], scratch: ScratchSizes) -> "_DeviceRun":
        key = scratch, frozenset(sizes.items())
        if key not in self._runs:
            shapes, main = self._ctx.shapes_at(sizes), self._ctx.graphs.main
            inputs = self._ctx.model_file.graph.required_inputs
            kinds = (shapes.of(main, value.name) for value in inputs)
            simulated = self._ctx.unfused_run(sizes, scratch)
            self._runs[key] = _DeviceRun(tuple(map(_nbytes, kinds)), simulated)
        return self._runs[key]

    @cached_property
    def _weight_sizes(self) -> tuple[int, ...]:
        """The sizes of the weights that a node reads after constant folding."""
        session = self._ctx.session
        weights = (session.weight(weight) for weight in self._ctx.model_file.weights)
        return tuple(
            loaded.weight.nbytes
            for loaded in weights
            if (loaded.uses or loaded.is_exposed) and loaded.weight.dtype != "string"
        )

    @cached_property
    def _folded_sizes(self) -> tuple[int, ...]:
        """The sizes of the results of constant folding that stay."""
        return tuple(fold.nbytes for fold in self._ctx.folds if fold.stays)


class _DeviceRun(NamedTuple):
    """A run on the device.

    Attributes:
        inputs: the sizes of the inputs, which it copies to the device before and frees at its end.
        simulated: its nodes.
    """

    inputs: tuple[int, ...]
    simulated: SimulatedRun


def _serve_runs(arena: SimulatedArena, run: _DeviceRun, *, has_pattern: bool) -> None:
    """Let `arena` serve a first run and later ones, which have a planned block or not."""
    for is_first in (True, *LATER_RUNS * (False,)):
        for index, nbytes in enumerate(run.inputs):
            arena.take(_FIRST_INPUT_KEY + index, nbytes)
        if is_first or not has_pattern:
            arena.serve(run.simulated.requests)
        else:
            arena.serve_again(run.simulated.later.requests, times=1)
        for index in range(len(run.inputs)):
            arena.free(_FIRST_INPUT_KEY + index)


def _nbytes(kind: TensorType | None) -> int:
    return 0 if kind is None else kind.nbytes or 0
