"""The memory of a session over time, from the parsed file to the session that is ready.

`Loading` goes through the steps of a session's creation (see `session_memory`) with all constants
of a model, and notes what is in memory at the moments that may be the peak of a phase: each
conversion, each evaluated node, each rewritten filter, each packed buffer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.model_file import ModelFile
from memdiag.ort.arena import Arena
from memdiag.ort.fusions import batch_normalization_after
from memdiag.ort.releases import ARENA_FREED_SINCE, PACKED_SHARED_SINCE, WEIGHTS_CONVERTED_SINCE
from memdiag.ort.session_constants import FoldedResult, LoadedWeight, SessionConstant
from memdiag.ort.session_memory import PredictedSession
from memdiag.records.estimate import TermName
from memdiag.records.phases import PhaseName
from memdiag.records.weights import qualified_name

REORDERED = "reordered"

COPIES_WHILE_REORDERED = 3
"""Copies of a filter beside the original and the result, while it is brought into blocks. Measured:
resnet18 and xception on 1.20.1, 1.24.4 and 1.32.0 (docs/estimates.md)."""

MAPPED_SINCE = 128 << 10
"""malloc maps blocks of this size, and returns them when they are freed. Smaller ones stay in the
heap: its first threshold, which MALLOC_MMAP_THRESHOLD_ keeps from growing."""


class Moment(NamedTuple):
    """What is in memory at one time.

    Attributes:
        terms: the bytes by what they are for.
        cause: the weight or node that takes the most of what is there for this moment only.
    """

    terms: dict[TermName, int]
    cause: str

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(self.terms.values())


class Timeline:
    """The memory in each phase: the largest moment, and what is there at its end.

    Attributes:
        now: the bytes in memory by what they are for.
        largest: for each term the weight, node or value that takes most of it.
    """

    def __init__(self) -> None:
        self.now: Counter[TermName] = Counter()
        self.largest: dict[TermName, str] = {}
        self._peaks: dict[PhaseName, Moment] = {}
        self._ends: dict[PhaseName, dict[TermName, int]] = {}

    def note(
        self, phase: PhaseName, extra: Mapping[TermName, int] | None = None, cause: str = ""
    ) -> None:
        """Note a moment of `phase`, at which `extra` bytes are there beside `now`."""
        terms = self.now + Counter(extra or {})
        moment = Moment(dict(terms), cause)
        if phase not in self._peaks or moment.nbytes > self._peaks[phase].nbytes:
            self._peaks[phase] = moment
        self._ends[phase] = dict(self.now)

    def peak(self, phase: PhaseName) -> Moment:
        """Return the largest moment of a phase."""
        return self._peaks[phase]

    def end(self, phase: PhaseName) -> dict[TermName, int]:
        """Return what is in memory at the end of a phase."""
        return self._ends[phase]

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
        filter_bytes: the size of the reordered filter made from it.
    """

    name: str
    constant: SessionConstant
    term: TermName
    private_bytes: int
    mapped_bytes: int
    filter_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """All its bytes."""
        return self.private_bytes + self.mapped_bytes

    @property
    def reordered_bytes(self) -> int:
        """The bytes of the filters into which the optimizer reorders it; 0 if it does not."""
        buffers = (buffer for _, buffer in self.constant.buffers() if buffer.kind == REORDERED)
        first = next(buffers, None)
        return 0 if first is None else first.nbytes


class Loading:
    """The creation of one session.

    Args:
        model, graphs, session: the model, and what is predicted of its constants.
        prepacks: whether kernels pack their constants.
        folds: whether constant folding is on.
        fuses: whether nodes are merged.
        reorders: whether filters of convolutions are reordered: at the level ALL.
        from_bytes: whether the session is created from the bytes of the file.
    """

    def __init__(
        self,
        model: ModelFile,
        graphs: GraphIndex,
        session: PredictedSession,
        *,
        prepacks: bool = True,
        folds: bool = True,
        fuses: bool = True,
        reorders: bool = True,
        from_bytes: bool = False,
    ) -> None:
        self._model, self._graphs, self._session = model, graphs, session
        self._prepacks, self._folds, self._fuses = prepacks, folds, fuses
        self._reorders = reorders
        self._from_bytes = from_bytes
        self.timeline = Timeline()
        self.mapped: list[LiveConstant] = []
        self.arena = Arena()

    def run(self) -> Timeline:
        """Go through all steps and return the timeline."""
        timeline = self.timeline
        loaded = [self._session.weight(weight) for weight in self._model.weights]
        live = [self._weight(each) for each in loaded]
        self._parse(loaded)
        self._convert(loaded, live)
        if self._folds:
            live = _used(live) + self._fold(loaded)
        live = self._fuse(live)
        live = self._reorder(live)
        timeline.note("optimize")
        self._initialize(live)
        self._pack(live)
        return timeline

    def _weight(self, loaded: LoadedWeight) -> LiveConstant:
        name = qualified_name(loaded.weight)
        is_late = self._session.runtime < WEIGHTS_CONVERTED_SINCE
        term: TermName = "model file" if is_late else "weights"
        return LiveConstant(name, loaded, term, loaded.private_bytes, loaded.mapped_bytes)

    def _parse(self, loaded: Sequence[LoadedWeight]) -> None:
        """Parse the file; nodes that contain subgraphs are copied."""
        timeline = self.timeline
        copies = sum(2 * each.depth * each.private_bytes for each in loaded)
        if self._from_bytes:
            timeline.now["model file"] += self._model.file_bytes
        timeline.now["model file"] += self._model.file_bytes + copies
        timeline.note("parse")

    def _convert(self, loaded: Sequence[LoadedWeight], live: Sequence[LiveConstant]) -> None:
        """Copy embedded weights out of the protobuf, one at a time."""
        timeline, now = self.timeline, self.timeline.now
        private = sum(each.private_bytes for each in live)
        stale = sum(each.depth * each.private_bytes for each in loaded)
        largest = max(live, key=lambda each: each.private_bytes, default=None)
        if self._session.runtime < WEIGHTS_CONVERTED_SINCE:
            return
        now["model file"] = self._model.file_bytes if self._from_bytes else 0
        now["weights"], now["stale weights"] = private, stale
        if largest is not None and largest.private_bytes:
            timeline.largest["weights"] = largest.name
            timeline.note(
                "optimize", {"weight being converted": largest.private_bytes}, largest.name
            )
        timeline.note("optimize")

    def _fold(self, loaded: Sequence[LoadedWeight]) -> list[LiveConstant]:
        """Evaluate nodes with constant inputs, and return the results that stay."""
        folding = self._session.folding_memory()
        timeline, now = self.timeline, self.timeline.now
        cause = "" if folding.at is None else self._qualified(folding.at.scope, folding.at.node)
        timeline.note(
            "constant_fold",
            {
                "folded constants": folding.results_bytes,
                "operands of folding": folding.peak_bytes - folding.results_bytes,
            },
            cause,
        )
        results: dict[tuple[Scope, str], FoldedResult] = {
            (result.fold.scope, result.fold.output): result
            for each in loaded
            for result in each.results
        }
        for fold in self._session.folds:
            key = fold.scope, fold.output
            if fold.stays and key not in results:  # computed from no weight
                results[key] = replace(self._session.result(fold), content_key=key)
        live = [
            LiveConstant(key[1], result, "folded constants", result.fold.nbytes, 0)
            for key, result in results.items()
        ]
        now["folded constants"] = sum(each.private_bytes for each in live)
        timeline.note("constant_fold")
        dropped = folding.all_bytes - now["folded constants"]
        timeline.note("optimize", {"operands of folding": max(0, dropped)}, cause)
        for each in loaded:
            if not each.uses and not each.is_exposed:
                self._drop(self._weight(each).term, each.private_bytes)
        return live

    def _fuse(self, live: list[LiveConstant]) -> list[LiveConstant]:
        """Merge BatchNormalization into the filters before it: new weights replace the old ones."""
        if not self._fuses:
            return live
        timeline = self.timeline
        fused: list[LiveConstant] = []
        kept: list[LiveConstant] = []
        for each in live:
            uses = each.constant.uses
            scaled = [
                use
                for use in uses
                if use.input_index == 1 and batch_normalization_after(use.scope, use.node)
            ]
            if not scaled:
                kept.append(each)
                continue
            for use in scaled:
                new = SessionConstant(
                    uses=(use,), content_key=(each.constant.content_key, use.node)
                )
                fused.append(LiveConstant(use.node.output[0], new, "fused weights", each.nbytes, 0))
                timeline.note(
                    "optimize",
                    {"fused weights": 2 * each.nbytes},
                    self._qualified(use.scope, use.node),
                )
                self._take("fused weights", each.nbytes)
            if len(scaled) < len(uses) or each.constant.is_exposed:
                kept.append(each)
        timeline.note("optimize")
        remaining = set(map(id, kept))
        for each in live:
            if id(each) not in remaining:
                self._drop(each.term, each.private_bytes)
        if fused and self._folds:
            # The optimizers of this level start again after a change, constant folding with them.
            timeline.note("constant_fold")
        return kept + fused

    def _reorder(self, live: list[LiveConstant]) -> list[LiveConstant]:
        """Reorder the filters of convolutions into blocks of channels.

        All originals stay until the last filter is done.
        """
        if not self._reorders:
            return live
        timeline = self.timeline
        done = sorted((each for each in live if each.reordered_bytes), key=_first_use)
        for each in done:
            nbytes = each.filter_bytes = each.reordered_bytes
            self._take("reordered filters", nbytes)
            copies = COPIES_WHILE_REORDERED * nbytes
            timeline.note("optimize", {"reordered filters": copies}, each.name)
        for each in done:
            if not each.constant.is_exposed and all(
                use.buffer is not None and use.buffer.kind == REORDERED
                for use in each.constant.uses
            ):
                self._drop(each.term, each.private_bytes)
                each.private_bytes = each.mapped_bytes = 0
        return live

    def _initialize(self, live: Sequence[LiveConstant]) -> None:
        """Make tensors of what is still in the file's format, in releases that convert late."""
        timeline, now = self.timeline, self.timeline.now
        runtime = self._session.runtime
        if runtime < WEIGHTS_CONVERTED_SINCE:
            largest = max(live, key=lambda each: each.private_bytes, default=None)
            now["model file"] = self._model.file_bytes if self._from_bytes else 0
            for each in live:
                if each.term == "model file":
                    each.term = "weights"
                    now["weights"] += each.private_bytes
            if largest is not None:
                timeline.note(
                    "initialize", {"weight being converted": largest.private_bytes}, largest.name
                )
        if runtime < ARENA_FREED_SINCE:
            for index, each in enumerate(live):
                if each.private_bytes + each.filter_bytes:
                    self.arena.take(~index, each.private_bytes + each.filter_bytes)
            now["unused arena"] += self.arena.table_bytes
        timeline.note("initialize")

    def _pack(self, live: Sequence[LiveConstant]) -> None:
        """Let one kernel after another pack its constants, and free what all have packed."""
        timeline = self.timeline
        runtime = self._session.runtime
        seen: set[object] = set()
        for index, each in enumerate(live):
            constant = each.constant
            is_packed = False
            for key, buffer in constant.buffers() if self._prepacks else ():
                if buffer.kind == REORDERED and _is_filter(constant):
                    continue
                is_packed = True
                timeline.note(
                    "prepack",
                    {"packed weights": buffer.nbytes, "mapped weights": each.mapped_bytes},
                    each.name,
                )
                if not (runtime >= PACKED_SHARED_SINCE and key in seen):
                    self._take("packed weights", buffer.nbytes)
                seen.add(key)
            is_freed = is_packed and constant.is_packed_only and not constant.is_kept
            if is_freed and runtime < ARENA_FREED_SINCE and each.private_bytes:
                self.arena.free(~index)  # its pages stay, for activations
                self.timeline.now[each.term] -= each.private_bytes
                self.timeline.now["unused arena"] += each.private_bytes
            elif is_freed:
                self._drop(each.term, each.private_bytes)
            elif each.mapped_bytes and not is_freed:
                self.mapped.append(each)
        timeline.note("prepack")
        self._initialize_last_subgraph(live)

    def _initialize_last_subgraph(self, live: Sequence[LiveConstant]) -> None:
        """Note the start of the last graph's initialization: all graphs before it are packed."""
        scopes = [scope for _, scope in self._graphs if not scope.is_function]
        if len(scopes) < 2:
            return
        own = {
            key: buffer.nbytes
            for each in live
            if any(use.scope is scopes[-1] for use in each.constant.uses)
            for key, buffer in (each.constant.buffers() if self._prepacks else ())
            if not (buffer.kind == REORDERED and _is_filter(each.constant))
        }
        self.timeline.note("initialize", {"packed weights": -sum(own.values())})

    def _take(self, term: TermName, nbytes: int) -> None:
        """Count `nbytes` to `term`; small blocks come out of what malloc has kept."""
        now = self.timeline.now
        now[term] += nbytes
        if nbytes < MAPPED_SINCE:
            now["freed heap"] -= min(nbytes, now["freed heap"])

    def _drop(self, term: TermName, nbytes: int) -> None:
        """Free a block of `term`; malloc keeps it if it is small."""
        now = self.timeline.now
        now[term] -= nbytes
        if nbytes < MAPPED_SINCE:
            now["freed heap"] += nbytes

    def _qualified(self, scope: Scope, node: Node) -> str:
        return self._graphs.qualified(scope, node)


def _used(live: Sequence[LiveConstant]) -> list[LiveConstant]:
    """Return the weights that a node of the folded graph reads; the others are dropped."""
    return [each for each in live if each.constant.uses or each.constant.is_exposed]


def _first_use(live: LiveConstant) -> int:
    return min((use.node.index for use in live.constant.uses), default=0)


def _is_filter(constant: SessionConstant) -> bool:
    """Return whether a convolution of floats reads the constant: the optimizer reorders it."""
    return any(
        use.node.op_type in ("Conv", "FusedConv") and use.buffer is not None
        for use in constant.uses
    )
