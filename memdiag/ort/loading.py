"""The memory of a session over time, from the parsed file to the session that is ready.

`SessionLoading` goes through the steps of a session's creation and notes what is in memory at the
moments that may be the peak of a phase: each conversion, each evaluated node, each rewritten
filter, each packed buffer. The steps are:

1. The whole file is a protobuf. Each graph around a subgraph copies the node that contains it, so
   an embedded weight of a subgraph is there several times. Half of the copies, here called stale,
   stay for good.
2. Embedded weights are copied out of the protobuf one at a time. External weights are mapped.
3. Nodes with constant inputs are evaluated. Their inputs are copied, and all results are kept until
   the last node is evaluated. Then weights that nothing reads are dropped.
4. Constants of float16 are cast to fp32 for kernels that read nothing else. All of them are there
   in both types until the last one is cast.
5. BatchNormalization is merged into the filters before it.
6. Filters of convolutions are reordered into blocks of channels.
7. The state of the session is made.
8. One kernel after another packs its constant inputs into buffers of its own, graph by graph and
   node by node. A buffer that equals an earlier one is filled before it is dropped. A constant is
   freed once every kernel that reads it has packed it.

A file in ORT format has an optimized graph: steps 3 to 6 do nothing. Its weights are copied once
while the file is read and once more in step 7, and the file itself stays in memory until the last
kernel has packed its constants; or it is mapped in between, or as long as the session with weights
that are used in place (`OrtFile`).

An estimate goes through the loading of all constants of a model. A rule compares the loading of
weights as they are with the loading of a replacement: `peak_reduction`.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.model_file import ModelFile
from memdiag.ort.attribute_memory import NodeLists, node_lists
from memdiag.ort.fusions import batch_normalization_after
from memdiag.ort.half_precision import HALF_DTYPE, is_cast_once, reads_half
from memdiag.ort.predicted_session import PredictedSession
from memdiag.ort.prepacking import PackedBuffer
from memdiag.ort.releases import ORT_WEIGHTS_MOVED_SINCE, SUBGRAPH_WEIGHTS_KEPT_SINCE
from memdiag.ort.session_constants import (
    FoldedResult,
    LoadedWeight,
    PackedUse,
    SessionConstant,
)
from memdiag.records.estimate import TermName
from memdiag.records.phases import PhaseName
from memdiag.records.weights import qualified_name

REORDERED_KIND = "reordered"

COPIES_WHILE_REORDERED = 3
"""Copies of a filter in addition to the original and the result, while it is brought into blocks.
Measured: resnet18 and xception on 1.24.4 and 1.32.0 (docs/estimates.md)."""

MIN_MMAPPED_BYTES = 128 << 10
"""malloc maps blocks of this size, and returns them when they are freed. Smaller ones stay in the
heap: its first threshold, which MALLOC_MMAP_THRESHOLD_ keeps from growing."""


MIN_IN_PLACE_BYTES = 128
"""Smaller weights of a file in ORT format are copied in any case."""

MAX_KEPT_BLOCK = 32 << 20
"""glibc's malloc by default may keep freed blocks up to this size, and returns larger ones."""


class OrtFile(NamedTuple):
    """What a session does with the bytes of a file in ORT format.

    Attributes:
        is_copied: whether bytes that the program gives are copied.
        in_place: whether the file stays mapped, and weights are used where they are in it.
    """

    is_copied: bool = True
    in_place: bool = False


FREED_ORT_FILE = OrtFile()
"""The default: the file is read or mapped, and freed when the session is ready."""


class LoadingMoment(NamedTuple):
    """Bytes in memory at one time, by term.

    Attributes:
        terms: the bytes by what they are for.
        cause: the weight or node that takes most of the memory that is needed for this moment only.
    """

    terms: dict[TermName, int]
    cause: str

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(self.terms.values())


class LoadingTimeline:
    """The memory in each phase: the largest moment, and what is there at its end.

    Attributes:
        now: the bytes in memory by what they are for.
        largest: for each term the weight, node or value that takes most of it.
    """

    def __init__(self) -> None:
        self.now: Counter[TermName] = Counter()
        self.largest: dict[TermName, str] = {}
        self._peaks: dict[PhaseName, LoadingMoment] = {}
        self._ends: dict[PhaseName, dict[TermName, int]] = {}

    def note(
        self, phase: PhaseName, extra: Mapping[TermName, int] | None = None, cause: str = ""
    ) -> None:
        """Note a moment of `phase`, while `extra` more bytes are allocated than `now`."""
        nbytes = sum(self.now.values()) + sum(extra.values() if extra else ())
        if phase not in self._peaks or nbytes > self._peaks[phase].nbytes:
            terms = dict(self.now)
            for term, extra_bytes in (extra or {}).items():
                terms[term] = terms.get(term, 0) + extra_bytes
            positive_terms = {term: count for term, count in terms.items() if count > 0}
            self._peaks[phase] = LoadingMoment(positive_terms, cause)
        self._ends[phase] = dict(self.now)

    def note_end(self, phase: PhaseName, extra: Mapping[TermName, int]) -> None:
        """Note that at the end of `phase` `extra` more bytes are allocated than `now`."""
        self._ends[phase] = dict(Counter(self.now) + Counter(extra))

    def peak(self, phase: PhaseName) -> LoadingMoment:
        """Return the largest moment of a phase."""
        return self._peaks[phase]

    def end(self, phase: PhaseName) -> dict[TermName, int]:
        """Return what is in memory at the end of a phase."""
        return self._ends[phase]

    def peak_bytes(self) -> int:
        """Return the bytes at the largest moment of all phases."""
        return max(moment.nbytes for moment in self._peaks.values())

    def phases(self) -> Sequence[PhaseName]:
        """Return the phases in the order in which they began."""
        return tuple(self._peaks)


@dataclass(eq=False, slots=True)
class LiveConstant:
    """A constant in memory.

    Attributes:
        name: its name.
        constant: its uses.
        term: what its private bytes count to.
        private_bytes, mapped_bytes: its size.
    """

    name: str
    constant: SessionConstant
    term: TermName
    private_bytes: int
    mapped_bytes: int

    @property
    def nbytes(self) -> int:
        """All its bytes."""
        return self.private_bytes + self.mapped_bytes

    @property
    def reordered_bytes(self) -> int:
        """The bytes of the filters into which the optimizer reorders it; 0 if it does not."""
        return _reordered_bytes(self.constant)


class LargestOthers(NamedTuple):
    """The largest weights of a model other than the weights whose loading is predicted.

    They take more memory at moments, one of which may be the peak.

    Attributes:
        converted: the bytes of the largest embedded weight.
        reordered: the bytes of the largest reordered filter.
        packed: the bytes of the largest buffer of a kernel.
    """

    converted: int = 0
    reordered: int = 0
    packed: int = 0

    @classmethod
    def excluding(cls, session: PredictedSession, weights: Sequence[LoadedWeight]) -> Self:
        """Return the largest weights of the model that are not among `weights`."""
        replaced = {loaded.weight for loaded in weights}
        converted = reordered = packed = 0
        for weight in session.largest_weights:
            if weight not in replaced:
                other_weight = session.weight(weight)
                converted = converted or other_weight.private_bytes
                reordered = reordered or _reordered_bytes(other_weight)
                packed = packed or max(
                    (buffer.nbytes for _, _, buffer in _kernel_buffers(other_weight)), default=0
                )
        return cls(converted, reordered, packed)


NO_OTHERS = LargestOthers()


class SessionLoading:
    """The creation of one session.

    Args:
        model_file, graphs, session: the model, and what is predicted of its constants.
        weights: the weights that are loaded, with their results of constant folding; all of the
            model by default. If they are a part, only their own bytes are counted, neither
            the rest of the file nor what malloc keeps. No run follows, so the timeline of a part
            ends in the phase ``steady``, with its mapped pages read.
        others: the largest other weights of the model, if `weights` is a part.
        prepacks: whether kernels pack their constants.
        folds: whether constant folding is on.
        fuses: whether nodes are merged.
        reorders: whether filters of convolutions are reordered: at the level ALL.
        from_bytes: whether the session is created from the bytes of the file.
        ort_file: what the session does with a file in ORT format.

    Attributes:
        timeline: the memory in each phase.
        mapped: constants in mapped files that no kernel packs.
        freed_bytes: constants that are freed, and copies while filters are reordered: what glibc's
            malloc may keep by default.
    """

    def __init__(
        self,
        model_file: ModelFile,
        graphs: GraphIndex,
        session: PredictedSession,
        *,
        weights: Sequence[LoadedWeight] | None = None,
        others: LargestOthers = NO_OTHERS,
        prepacks: bool = True,
        folds: bool = True,
        fuses: bool = True,
        reorders: bool = True,
        from_bytes: bool = False,
        ort_file: OrtFile = FREED_ORT_FILE,
    ) -> None:
        self._model, self._graphs, self._session = model_file, graphs, session
        self._ort_file = ort_file if model_file.is_ort_format else None
        self._is_part = weights is not None
        self._weights, self._others = weights, others
        self._prepacks, self._folds, self._fuses = prepacks, folds, fuses
        self._reorders = reorders
        self._from_bytes = from_bytes
        self.timeline = LoadingTimeline()
        self.mapped: list[LiveConstant] = []
        self.freed_bytes = 0
        self._places_read: set[Hashable] = set()

    def run(self) -> LoadingTimeline:
        """Go through all steps and return the timeline."""
        timeline = self.timeline
        loaded = self._weights
        if loaded is None:
            loaded = [
                self._session.weight(weight)
                for weight in self._model.weights
                if weight.origin != "attribute"  # counted with the lists of its node
            ]
        live = [self._live_weight(source) for source in loaded]
        self._parse_file(loaded)
        self._convert_weights(live)
        if self._folds:
            live = _used_constants(live) + self._fold_constants(loaded)
        live = self._widen_halves(live)
        live = self._fuse_normalization(live)
        live = self._reorder_filters(live)
        timeline.note("optimize")
        self._initialize_state(live)
        self._pack_constants(live)
        if self._ort_file is not None and not self._is_part:
            timeline.now["model file"] = self._kept_file_bytes
            timeline.note("prepack")
        if self._is_part:
            for constant in self.mapped:
                self._read_mapped_pages(constant)
            timeline.note("steady")
        return timeline

    def _live_weight(self, loaded: LoadedWeight) -> LiveConstant:
        name = qualified_name(loaded.weight)
        if self._ort_file is not None:
            private_bytes = 0 if self._is_in_place(loaded) else loaded.weight.nbytes
            mapped_bytes = loaded.weight.nbytes - private_bytes
            return LiveConstant(name, loaded, "weights", private_bytes, mapped_bytes)
        return LiveConstant(name, loaded, "weights", loaded.private_bytes, loaded.mapped_bytes)

    def _is_in_place(self, loaded: LoadedWeight) -> bool:
        """Return whether a session uses a weight where it is in the mapped file."""
        weight = loaded.weight
        return (
            self._ort_file is not None
            and self._ort_file.in_place
            and weight.dtype != "string"
            and weight.nbytes >= MIN_IN_PLACE_BYTES
        )

    @property
    def _kept_file_bytes(self) -> int:
        """The bytes of the model that the program has as long as the session."""
        return self._model.file_bytes if self._from_bytes else 0

    def _parse_file(self, loaded: Sequence[LoadedWeight]) -> None:
        """Parse the file; nodes that contain subgraphs are copied."""
        if self._ort_file is not None:
            self._read_ort_file(loaded, self._ort_file)
            return
        timeline, now = self.timeline, self.timeline.now
        file_bytes = self._model.file_bytes
        if self._is_part:
            file_bytes = sum(weight.private_bytes for weight in loaded)
        now["model file"] = 2 * file_bytes if self._from_bytes else file_bytes
        now["stale weights"] = sum(weight.depth * weight.private_bytes for weight in loaded)
        if not self._is_part:
            self._note_attributes()
        # Python's bindings have a copy of their own as long as the bytes are read.
        extra: dict[TermName, int] = {"stale weights": now["stale weights"]}
        extra["model file"] = 0 if self._is_part else self._kept_file_bytes
        timeline.note("parse", extra)
        timeline.note("parse")

    def _read_ort_file(self, loaded: Sequence[LoadedWeight], file: OrtFile) -> None:
        """Read a file in ORT format, and copy its weights one after another."""
        timeline, now = self.timeline, self.timeline.now
        if not self._is_part:
            self._note_attributes()
        copied_sizes = [
            0 if self._is_in_place(weight) else weight.weight.nbytes for weight in loaded
        ]
        if self._is_part or file.in_place:
            now["model file"] = 0
        else:
            now["model file"] = self._model.file_bytes
            if self._from_bytes:
                now["model file"] += self._model.file_bytes * file.is_copied
        # Python's bindings have a copy of their own as long as the bytes are read.
        binding = 0 if self._is_part else self._kept_file_bytes
        if self._session.runtime < ORT_WEIGHTS_MOVED_SINCE:
            for weight, nbytes in zip(loaded, copied_sizes, strict=True):
                now["weights"] += nbytes
                extra: dict[TermName, int] = {
                    "model file": binding,
                    "weight being converted": nbytes,
                }
                timeline.note("parse", extra, qualified_name(weight.weight))
        now["weights"] = sum(copied_sizes)
        timeline.note("parse", {"model file": binding})
        timeline.note("parse")

    def _note_attributes(self) -> None:
        """Note the long lists in attributes, which the nodes keep."""
        now = self.timeline.now
        now["graph"] = sum(lists.kept_bytes for lists in self._attribute_lists)
        if self._ort_file is None:
            # Unlike weights, the lists are no longer in memory as in the file.
            now["model file"] -= sum(lists.file_bytes for lists in self._attribute_lists)
            parsing_bytes = sum(lists.while_parsed_bytes for lists in self._attribute_lists)
            self.timeline.note("parse", {"graph": parsing_bytes})
            now["freed heap"] += sum(lists.parsed_bytes for lists in self._attribute_lists)

    @cached_property
    def _attribute_lists(self) -> Sequence[NodeLists]:
        return list(node_lists(self._model, self._graphs))

    def _convert_weights(self, live: Sequence[LiveConstant]) -> None:
        """Copy embedded weights out of the protobuf, one at a time."""
        timeline, now = self.timeline, self.timeline.now
        if self._ort_file is not None:
            timeline.note("optimize")
            return
        now["model file"] = self._model.file_bytes if self._from_bytes else 0
        now["weights"] = sum(weight.private_bytes for weight in live)
        largest = max(live, key=lambda weight: weight.private_bytes, default=None)
        if largest is not None and largest.private_bytes:
            timeline.largest["weights"] = largest.name
        self._note_conversion("optimize", live)
        timeline.note("optimize")

    def _note_conversion(self, phase: PhaseName, live: Sequence[LiveConstant]) -> None:
        """Note the moment at which the largest weight is in memory twice."""
        largest = max(live, key=lambda weight: weight.private_bytes, default=None)
        nbytes = 0 if largest is None else largest.private_bytes
        self.timeline.note(
            phase,
            {"weight being converted": max(nbytes, self._others.converted)},
            "" if largest is None or not nbytes else largest.name,
        )

    def _fold_constants(self, loaded: Sequence[LoadedWeight]) -> list[LiveConstant]:
        """Evaluate nodes with constant inputs, and return the results that stay."""
        timeline, now = self.timeline, self.timeline.now
        # A result that is computed from several weights counts once.
        results: dict[tuple[Scope, str], FoldedResult] = {
            (result.fold.scope, result.fold.output): result
            for weight in loaded
            for result in weight.results
        }
        folding = self._session.folding_memory(
            [result.fold for result in results.values()] if self._is_part else None
        )
        cause = (
            ""
            if folding.fold is None
            else self._qualified_node_label(folding.fold.scope, folding.fold.node)
        )
        timeline.note(
            "constant_fold",
            {
                "folded constants": folding.results_bytes,
                "operands of folding": folding.peak_bytes - folding.results_bytes,
            },
            cause,
        )
        for fold in () if self._is_part else self._session.folds:
            key = fold.scope, fold.output
            if fold.stays and key not in results:  # computed from no weight
                results[key] = replace(self._session.result(fold), content_key=key)
        live = [
            LiveConstant(key[1], result, "folded constants", result.fold.nbytes, 0)
            for key, result in results.items()
        ]
        now["folded constants"] = sum(weight.private_bytes for weight in live)
        timeline.note("constant_fold")
        dropped = folding.all_bytes - now["folded constants"]
        timeline.note("optimize", {"operands of folding": max(0, dropped)}, cause)
        for weight in loaded:
            if not weight.is_used:
                self._drop_block("weights", weight.private_bytes)
        return live

    def _widen_halves(self, live: list[LiveConstant]) -> list[LiveConstant]:
        """Cast constants of float16 to fp32 for the kernels that read nothing else."""
        if not self._reorders:
            return live
        cast_constants: list[LiveConstant] = []
        kept_constants: list[LiveConstant] = []
        for weight in live:
            uses = [use for use in weight.constant.uses if _is_widened(weight.constant, use)]
            for use in uses:
                key = (weight.constant.content_key, "float")
                cast_constant = SessionConstant(uses=(use,), content_key=key)
                cast_constants.append(
                    LiveConstant(weight.name, cast_constant, "weights", 2 * weight.nbytes, 0)
                )
                self._count_taken("weights", 2 * weight.nbytes)
            if len(uses) < len(weight.constant.uses) or weight.constant.is_exposed or not uses:
                other_uses = tuple(use for use in weight.constant.uses if use not in uses)
                if uses:
                    weight.constant = replace(weight.constant, uses=other_uses)
                kept_constants.append(weight)
        if cast_constants:
            largest = max(cast_constants, key=lambda weight: weight.nbytes)
            extra: dict[TermName, int] = {"weight being converted": largest.nbytes // 2}
            self.timeline.note("optimize", extra, largest.name)
        self._drop_replaced(live, kept_constants)
        return kept_constants + cast_constants

    def _drop_replaced(self, live: list[LiveConstant], kept_constants: list[LiveConstant]) -> None:
        remaining = set(map(id, kept_constants))
        for weight in live:
            if id(weight) not in remaining:
                self._drop_block(weight.term, weight.private_bytes)

    def _fuse_normalization(self, live: list[LiveConstant]) -> list[LiveConstant]:
        """Merge BatchNormalization into the filters before it: new weights replace the old ones."""
        if not self._fuses:
            return live
        timeline = self.timeline
        fused_constants: list[LiveConstant] = []
        kept_constants: list[LiveConstant] = []
        for weight in live:
            uses = weight.constant.uses
            scaled_uses = [
                use
                for use in uses
                if use.input_index == 1 and batch_normalization_after(use.scope, use.node)
            ]
            if not scaled_uses:
                kept_constants.append(weight)
                continue
            for use in scaled_uses:
                fused_constant = SessionConstant(
                    uses=(use,), content_key=(weight.constant.content_key, use.node)
                )
                fused_constants.append(
                    LiveConstant(
                        use.node.output[0], fused_constant, "fused weights", weight.nbytes, 0
                    )
                )
                timeline.note(
                    "optimize",
                    {"fused weights": 2 * weight.nbytes},
                    self._qualified_node_label(use.scope, use.node),
                )
                self._count_taken("fused weights", weight.nbytes)
            if len(scaled_uses) < len(uses) or weight.constant.is_exposed:
                kept_constants.append(weight)
        timeline.note("optimize")
        self._drop_replaced(live, kept_constants)
        if fused_constants and self._folds:
            # After a change, the optimizers of this level start again, with constant folding.
            timeline.note("constant_fold")
        return kept_constants + fused_constants

    def _reorder_filters(self, live: list[LiveConstant]) -> list[LiveConstant]:
        """Reorder the filters of convolutions into blocks of channels.

        All originals stay until the last filter is done.
        """
        if not self._reorders:
            return live
        timeline = self.timeline
        reordered = (weight for weight in live if weight.reordered_bytes)
        filters = sorted(reordered, key=_first_use_index)
        for weight in filters:
            nbytes = weight.reordered_bytes
            self._count_taken("reordered filters", nbytes)
            copies = COPIES_WHILE_REORDERED * nbytes
            timeline.note("optimize", {"reordered filters": copies}, weight.name)
        largest = max((weight.reordered_bytes for weight in filters), default=0)
        self._count_freed(largest, COPIES_WHILE_REORDERED)
        copies = (1 + COPIES_WHILE_REORDERED) * self._others.reordered
        timeline.note("optimize", {"reordered filters": copies})
        for weight in filters:
            if not weight.constant.is_exposed and all(
                use.buffer is not None and use.buffer.kind == REORDERED_KIND
                for use in weight.constant.uses
            ):
                self._drop_block(weight.term, weight.private_bytes)
                weight.private_bytes = weight.mapped_bytes = 0
        return live

    def _initialize_state(self, live: Sequence[LiveConstant]) -> None:
        """Make the session's state, for which weights of a file in ORT format are copied again."""
        if self._ort_file is not None:
            self._note_conversion("initialize", live)
        self.timeline.note("initialize")

    def _pack_constants(self, live: Sequence[LiveConstant]) -> None:
        """Let one kernel after another pack its constants, and free what all have packed."""
        timeline = self.timeline
        order = self._session.scope_order
        kernels = sorted(
            (
                (order.get(use.scope, 0), use.node.index, index, key, buffer)
                for index, weight in enumerate(live)
                for use, key, buffer in (_kernel_buffers(weight.constant) if self._prepacks else ())
            ),
            key=lambda kernel: kernel[:3],
        )
        kernels_left = Counter(index for _, _, index, _, _ in kernels)
        self.mapped += [
            weight
            for index, weight in enumerate(live)
            if weight.mapped_bytes and index not in kernels_left
        ]
        filled_keys: set[object] = set()
        bytes_read: dict[int, int] = {}
        current_graph = 0
        freed_with_graph: list[int] = []
        for graph, _, index, key, buffer in kernels:
            weight = live[index]
            if graph != current_graph:
                self._drop_blocks(live, freed_with_graph, bytes_read)
                current_graph = graph
            if index not in bytes_read:
                bytes_read[index] = self._read_mapped_pages(weight)
            timeline.note("prepack", {"packed weights": buffer.nbytes}, weight.name)
            if key not in filled_keys:
                self._count_taken("packed weights", buffer.nbytes)
            filled_keys.add(key)
            kernels_left[index] -= 1
            if kernels_left[index] or not weight.constant.is_packed_only or weight.constant.is_kept:
                continue
            if graph and self._session.runtime >= SUBGRAPH_WEIGHTS_KEPT_SINCE:
                freed_with_graph.append(index)
            else:
                self._drop_blocks(live, [index], bytes_read)
        timeline.note("prepack")
        self._drop_blocks(live, freed_with_graph, bytes_read)
        timeline.note("prepack", {"packed weights": self._others.packed})
        if not self._is_part:
            self._create_trees()
            self._initialize_last_subgraph(live)

    def _read_mapped_pages(self, live: LiveConstant) -> int:
        """Count the pages of a mapped weight, and return their bytes.

        Weights at the same place of a file share these pages, although the resident set counts them
        for each weight.
        """
        constant = live.constant
        if self._is_part and isinstance(constant, LoadedWeight):
            place = constant.weight.file, constant.weight.offset
            if place in self._places_read:
                return 0
            self._places_read.add(place)
        self.timeline.now["mapped weights"] += live.mapped_bytes
        return live.mapped_bytes

    def _create_trees(self) -> None:
        """Let the kernels of tree ensembles make their tables."""
        now = self.timeline.now
        for lists in self._attribute_lists:
            if lists.tree_nodes:
                if self._ort_file is None:
                    now["freed heap"] += lists.freed_bytes - lists.parsed_bytes
                now["tree tables"] += lists.table_bytes
                cause = self._qualified_node_label(lists.scope, lists.node)
                self.timeline.note("prepack", {"tree tables": lists.while_created_bytes}, cause)
        self.timeline.note("prepack")

    def _initialize_last_subgraph(self, live: Sequence[LiveConstant]) -> None:
        """Note the start of the last graph's initialization: all graphs before it are packed."""
        scopes = [scope for _, scope in self._graphs if not scope.is_function]
        if len(scopes) < 2:
            return
        bytes_by_key = {
            key: buffer.nbytes
            for weight in live
            if any(use.scope is scopes[-1] for use in weight.constant.uses)
            for _, key, buffer in (_kernel_buffers(weight.constant) if self._prepacks else ())
        }
        self.timeline.note("initialize", {"packed weights": -sum(bytes_by_key.values())})

    def _count_taken(self, term: TermName, nbytes: int) -> None:
        """Count `nbytes` to `term`; small blocks come out of what malloc has kept."""
        now = self.timeline.now
        now[term] += nbytes
        if nbytes < MIN_MMAPPED_BYTES and not self._is_part:
            now["freed heap"] -= min(nbytes, now["freed heap"])

    def _drop_block(self, term: TermName, nbytes: int) -> None:
        """Free a block of `term`; malloc keeps it if it is small."""
        now = self.timeline.now
        now[term] -= nbytes
        self._count_freed(nbytes)
        if nbytes < MIN_MMAPPED_BYTES and not self._is_part:
            now["freed heap"] += nbytes

    def _count_freed(self, nbytes: int, blocks: int = 1) -> None:
        if nbytes <= MAX_KEPT_BLOCK:
            self.freed_bytes += blocks * nbytes

    def _drop_blocks(
        self, live: Sequence[LiveConstant], indices: list[int], bytes_read: Mapping[int, int]
    ) -> None:
        """Free the constants at `indices`, with `bytes_read` from mapped files; empty the list."""
        for index in indices:
            self._drop_block(live[index].term, live[index].private_bytes)
            if self._ort_file is None:  # such a file stays mapped as a whole
                self.timeline.now["mapped weights"] -= bytes_read[index]
        indices.clear()

    def _qualified_node_label(self, scope: Scope, node: Node) -> str:
        return self._graphs.qualified(scope, node)


def _used_constants(live: Sequence[LiveConstant]) -> list[LiveConstant]:
    """Return the weights that a node of the folded graph reads; the others are dropped."""
    return [weight for weight in live if weight.constant.is_used]


def _is_widened(constant: SessionConstant, use: PackedUse) -> bool:
    """Return whether the optimizer casts a constant of float16 to fp32 for `use`."""
    if isinstance(constant, LoadedWeight):
        dtype = constant.weight.dtype
    else:
        dtype = constant.fold.dtype if isinstance(constant, FoldedResult) else ""
    return dtype == HALF_DTYPE and not reads_half(use.node) and is_cast_once(use.use)


def _first_use_index(live: LiveConstant) -> int:
    return min((use.node.index for use in live.constant.uses), default=0)


def _is_reordered_filter(constant: SessionConstant) -> bool:
    """Return whether a convolution of floats reads the constant: the optimizer reorders it."""
    return any(
        use.node.op_type in ("Conv", "FusedConv") and use.buffer is not None
        for use in constant.uses
    )


def _kernel_buffers(
    constant: SessionConstant,
) -> Iterator[tuple[PackedUse, Hashable, PackedBuffer]]:
    """Yield the inputs whose kernels pack the constant, with the key of the buffer and the buffer.

    The filters of `SessionLoading._reorder_filters` are not among them.
    """
    packed = (use for use in constant.uses if use.buffer is not None)
    for use, (key, buffer) in zip(packed, constant.buffers(), strict=True):
        if not (buffer.kind == REORDERED_KIND and _is_reordered_filter(constant)):
            yield use, key, buffer


def _reordered_bytes(constant: SessionConstant) -> int:
    for use in constant.uses:
        if use.buffer is not None and use.buffer.kind == REORDERED_KIND:
            return use.buffer.nbytes
    return 0


def peak_reduction(
    model_file: ModelFile,
    graphs: GraphIndex,
    session: PredictedSession,
    weights: Sequence[LoadedWeight],
    replacement: Sequence[LoadedWeight],
) -> int:
    """Return by how many bytes the peak is lower with `replacement` instead of `weights`.

    The other weights of the model count only while one of them is converted, reordered or packed.
    """
    others = LargestOthers.excluding(session, weights)
    peak_bytes, replacement_peak_bytes = (
        SessionLoading(model_file, graphs, session, weights=part, others=others).run().peak_bytes()
        for part in (weights, replacement)
    )
    return max(0, peak_bytes - replacement_peak_bytes)
