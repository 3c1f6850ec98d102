"""Analysis context: everything that several rules need of one model, computed on first use."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from memdiag.model.equal_weights import MAX_DECODED_BYTES, can_be_compared, identical_weights
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import WeightReader, find_readers
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.ort.activations import ActivationPeak, SimulatedRun, simulate_run, total_value_bytes
from memdiag.ort.constant_folding import Folds, fold_constants
from memdiag.ort.loading import peak_reduction
from memdiag.ort.predicted_session import PredictedSession
from memdiag.ort.prepacking import NCHWC_BLOCK
from memdiag.ort.runtime import Runtime
from memdiag.ort.scratch import ScratchSizes, scratch_bytes
from memdiag.ort.session_constants import LoadedWeight
from memdiag.ort.used_values import UsedValues
from memdiag.records.weights import Weight, qualified_name
from memdiag.units import counted, format_size, some_of

MIN_COMPARED_BYTES = 64
"""Smaller weights are not compared: the runtime itself merges most of them."""


class AnalysisContext:
    """One model under one release of onnxruntime.

    Args:
        model_file: the open model.
        runtime: the release.
        sizes: the sizes of free dimensions that the user gave, by name.
        reads_weights: whether rules may read the values of weights. If not, rules that need values
            find nothing.
        block: the channels of a block of convolutions (`prepacking.CHANNEL_BLOCKS`).

    Attributes:
        notes: sentences on what could not be examined; rules append to it.
    """

    def __init__(
        self,
        model_file: ModelFile,
        runtime: Runtime,
        *,
        sizes: Mapping[str, int] | None = None,
        reads_weights: bool = True,
        block: int = NCHWC_BLOCK,
    ) -> None:
        self.model_file = model_file
        self.runtime = runtime
        self.reads_weights = reads_weights
        self.block = block
        self.sizes: dict[str, int] = dict(sizes or {})
        self.notes: list[str] = []
        self._readers: dict[Weight, tuple[WeightReader, ...]] = {}
        self._runs: dict[frozenset[tuple[str, int]], SimulatedRun] = {}
        self._largest_runs: dict[frozenset[tuple[str, int]], SimulatedRun] = {}
        self._last_shapes: tuple[dict[str, int], ModelShapes] | None = None
        self._last_largest: tuple[dict[str, int], ModelShapes] | None = None

    @cached_property
    def graphs(self) -> GraphIndex:
        """The scopes of the model, and the weights in them."""
        return GraphIndex(self.model_file)

    @cached_property
    def shapes(self) -> ModelShapes:
        """The inferred types and shapes of all values, at the given sizes."""
        return infer_shapes(self.model_file, self.graphs, self.sizes, self.notes)

    @cached_property
    def folds(self) -> Folds:
        """The results of constant folding; empty for a model whose graph is optimized already."""
        if self.model_file.is_ort_format:
            return Folds(())
        return fold_constants(self.graphs, self.shapes, self.runtime)

    @cached_property
    def session(self) -> PredictedSession:
        """The constants of a session."""
        return PredictedSession(
            self.model_file,
            self.graphs,
            self.shapes,
            self.folds,
            self.readers,
            self.runtime,
            self.block,
        )

    def peak_reduction(
        self, weights: Sequence[LoadedWeight], replacement: Sequence[LoadedWeight]
    ) -> int:
        """Return by how many bytes the peak of loading is lower with `replacement` than `weights`.

        The other weights of the model count only while one of them is converted, reordered or
        packed.
        """
        return peak_reduction(self.model_file, self.graphs, self.session, weights, replacement)

    @cached_property
    def used_values(self) -> UsedValues:
        """The values that are read, and the values on which an output depends."""
        return UsedValues(self.graphs)

    @cached_property
    def equal_weights(self) -> list[list[Weight]]:
        """Groups of two weights or more with the same bytes, of `MIN_COMPARED_BYTES` or more."""
        if not self.reads_weights:
            return []
        names = self._uncompared_weight_names()
        if names:
            self.notes.append(
                f"{counted(len(names), 'weight')} ({some_of(names)}) of more than "
                f"{format_size(MAX_DECODED_BYTES)}, sparse or in fields of a number each, "
                f"{'was' if len(names) == 1 else 'were'} not compared with others of the same "
                "size."
            )
        return identical_weights(self.model_file, min_bytes=MIN_COMPARED_BYTES)

    def equal_to(self, weight: Weight) -> Sequence[Weight]:
        """Return the weights with the bytes of `weight`, itself among them; empty if there is no
        other."""
        return self._group_by_weight.get(weight, ())

    @cached_property
    def _group_by_weight(self) -> dict[Weight, list[Weight]]:
        return {weight: group for group in self.equal_weights for weight in group}

    def _uncompared_weight_names(self) -> list[str]:
        """Return the names of weights that cannot be compared with another weight of their size."""
        weights = [
            weight
            for weight in self.model_file.weights
            if weight.dtype != "string" and not can_be_compared(self.model_file, weight)
        ]
        if not weights:
            return []
        sizes = Counter(weight.nbytes for weight in self.model_file.weights)
        return [qualified_name(weight) for weight in weights if sizes[weight.nbytes] > 1]

    def shapes_at(self, sizes: Mapping[str, int]) -> ModelShapes:
        """Return the types of all values at `sizes` of the free dimensions."""
        if all(self.sizes.get(name) == size for name, size in sizes.items()):
            return self.shapes
        # An estimate asks for the shapes at one choice of sizes several times in a row.
        if self._last_shapes is None or self._last_shapes[0] != sizes:
            shapes = infer_shapes(self.model_file, self.graphs, sizes, [])
            self._last_shapes = dict(sizes), shapes
        return self._last_shapes[1]

    def largest_shapes_at(self, sizes: Mapping[str, int]) -> ModelShapes:
        """Return the types at `sizes` with values that depend on the data as large as they can be,
        where that is known."""
        if self._last_largest is None or self._last_largest[0] != sizes:
            shapes = infer_shapes(self.model_file, self.graphs, sizes, [], counts_largest=True)
            self._last_largest = dict(sizes), shapes
        return self._last_largest[1]

    def run(self, sizes: Mapping[str, int]) -> SimulatedRun:
        """Return a simulated run at `sizes` of the free dimensions."""
        key = frozenset(sizes.items())
        if key not in self._runs:
            self._runs[key] = self._simulate_run(self.shapes_at(sizes), self.folds)
        return self._runs[key]

    def largest_run(self, sizes: Mapping[str, int]) -> SimulatedRun:
        """Return a simulated run at `sizes` with `largest_shapes_at`."""
        key = frozenset(sizes.items())
        if key not in self._largest_runs:
            shapes = self.largest_shapes_at(sizes)
            self._largest_runs[key] = self._simulate_run(shapes, self.folds)
        return self._largest_runs[key]

    def unfolded_run(self, sizes: Mapping[str, int]) -> SimulatedRun:
        """Return a simulated run in which no node is folded, as without the optimizer."""
        return self._simulate_run(self.shapes_at(sizes), Folds(()))

    def fp32_run(self, sizes: Mapping[str, int]) -> SimulatedRun:
        """Return a simulated run in fp32, with the inputs and outputs of the model in float16."""
        return self._simulate_run(self.shapes_at(sizes), self.folds, in_fp32=True)

    def unfused_run(self, sizes: Mapping[str, int], scratch: ScratchSizes) -> SimulatedRun:
        """Return a simulated run in which no nodes are fused and each kernel takes `scratch`."""
        shapes = self.shapes_at(sizes)
        return self._simulate_run(shapes, self.folds, optimizes=False, scratch=scratch)

    def _simulate_run(
        self,
        shapes: ModelShapes,
        folds: Folds,
        *,
        in_fp32: bool = False,
        optimizes: bool = True,
        scratch: ScratchSizes = scratch_bytes,
    ) -> SimulatedRun:
        return simulate_run(
            self.graphs,
            shapes,
            folds,
            declared=self.shapes.as_declared,
            runtime=self.runtime,
            block=self.block,
            optimizes=optimizes and not self.model_file.is_ort_format,
            in_fp32=in_fp32,
            scratch=scratch,
        )

    def activations(self, sizes: Mapping[str, int]) -> ActivationPeak:
        """Return the most memory that activations take at `sizes` of the free dimensions."""
        return self.run(sizes).peak

    def activations_may_exceed(self, nbytes: float, sizes: Mapping[str, int]) -> bool:
        """Return whether activations may take more than `nbytes`, without simulating a run."""
        total = total_value_bytes(self.graphs, self.shapes, sizes)
        return total is None or total > nbytes

    def readers(self, weight: Weight) -> tuple[WeightReader, ...]:
        """Return the nodes that read `weight`, also behind operators that only change its form."""
        if weight not in self._readers:
            self._readers[weight] = tuple(find_readers(self.graphs, weight))
        return self._readers[weight]
