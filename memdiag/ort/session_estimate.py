"""The memory of a session by phase, before it is created, from the model alone.

`SessionEstimate` puts together what the other modules of this package predict: the constants over
time (`loading`), the requests of a run (`activations`) to the arena (`arena`), and what a session
takes in addition (`overheads`). Nothing is run and no weight is read.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Literal

import msgspec

from memdiag.defaults import DEFAULT_RUNS, LoadFrom
from memdiag.model.graph_index import Scope
from memdiag.model.model_file import FAULT_BYTES
from memdiag.model.shapes import ModelShapes
from memdiag.model.tensor_types import shape_with_zeros
from memdiag.ort.activations import ActivationPeak, LiveValue, SimulatedRun
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import LATER_RUNS, ArenaRequest, SimulatedArena, planned_block
from memdiag.ort.calls_in_arena import CallsInArena, GenerationSizes, step_requests
from memdiag.ort.loading import FREED_ORT_FILE, LoadingTimeline, OrtFile, SessionLoading
from memdiag.ort.operators import GATHERING_OPERATORS
from memdiag.ort.overheads import overhead_at_end
from memdiag.records.estimate import (
    EstimatedPhase,
    EstimatedPoint,
    EstimatedTerm,
    LiveTensor,
    TermName,
)
from memdiag.records.phases import PHASES, RUN_PHASES, PhaseName
from memdiag.units import MIB

LARGE_FAULT_BYTES = 2 * MIB
"""The most that Linux maps at once of a file that was written or read shortly before: the page
cache then has it in blocks of this size. Measured with Linux 6.18, ext4."""

INTERVAL_BELOW, INTERVAL_ABOVE = 0.08, 0.09
"""How far the interval goes below and above the estimate, as shares: with malloc pinned, nineteen
in twenty measured peaks are inside (docs/estimates.md)."""

LOADING_ABOVE = 0.25
"""How far the interval goes above the peak of loading with glibc's malloc, as a share: by then its
heap has blocks that were freed (docs/estimates.md)."""

USUALLY_KEPT, MOST_KEPT = 0.6, 1.3
"""Bytes that glibc's malloc keeps in the runs, usually and at most, for each byte of `freed_bytes`;
some freed blocks are not in that figure. It is the same at all sizes (docs/estimates.md)."""

MIN_INTERVAL_BYTES = 4 * MIB
"""The smallest distance from the estimate to the ends of the interval, in bytes."""


_MEASURED_PHASES: dict[PhaseName, PhaseName] = {"prefill": "first_run", "decode": "steady"}
"""The phases whose overheads stand for those of the phases of a generation."""


@dataclass(frozen=True, kw_only=True)
class EstimatedSettings:
    """Session options that affect memory.

    Attributes:
        prepacks: False with ``session.disable_prepacking``.
        folds: False without the optimizer ConstantFolding.
        level: the level of graph optimizations.
        has_arena: ``enable_cpu_mem_arena``.
        has_pattern: ``enable_mem_pattern``.
        load_from: from the file's path, or from its bytes.
        ort_file: what the session does with a file in ORT format.
        runs: the number of runs after the first one, each with other contents; None if the session
            is only created.
    """

    prepacks: bool = True
    folds: bool = True
    level: Literal["disable_all", "basic", "extended", "layout", "all"] = "all"
    has_arena: bool = True
    has_pattern: bool = True
    load_from: LoadFrom = "path"
    ort_file: OrtFile = FREED_ORT_FILE
    runs: int | None = DEFAULT_RUNS


class SessionEstimate:
    """The estimates of one model under one release.

    Attributes:
        ctx: the model and the release.
        settings: the configuration of the session.
    """

    def __init__(self, ctx: AnalysisContext, settings: EstimatedSettings) -> None:
        self.ctx, self.settings = ctx, settings

    def at(self, sizes: Mapping[str, int]) -> EstimatedPoint:
        """Return the estimate at `sizes` of the free dimensions, by name.

        The upper ends of its interval include values of unknown size at their largest, if that is
        known.
        """
        point = self.most_probable(sizes)
        if not point.unknown_values:
            return point
        run = self.ctx.largest_run(sizes)
        if run.peak.unknown:
            return point
        largest = self._estimate_at(sizes, run, self.ctx.largest_shapes_at(sizes))
        return msgspec.structs.replace(
            point,
            high_bytes=max(point.high_bytes, largest.high_bytes),
            pinned_high_bytes=max(point.pinned_high_bytes, largest.pinned_high_bytes),
            is_bounded=True,
        )

    def most_probable(self, sizes: Mapping[str, int]) -> EstimatedPoint:
        """Return the estimate at `sizes` without the largest sizes of what is unknown."""
        return self._estimate_at(sizes, self.ctx.run(sizes), self.ctx.shapes_at(sizes))

    def _estimate_at(
        self, sizes: Mapping[str, int], run: SimulatedRun, shapes: ModelShapes
    ) -> EstimatedPoint:
        settings = self.settings
        timeline = self._loaded_timeline()
        if settings.runs is None:
            return self._estimated_point(sizes, timeline)
        activations, requests, _, heap, repeated = run
        arena = SimulatedArena()
        first_terms: Counter[TermName]
        later_terms: Counter[TermName]
        if settings.has_arena:
            first_terms = Counter({"kernel scratch": _serve_run(arena, requests, heap)})
            kernel_bytes = (nbytes for _, nbytes in repeated.heap)
            later_terms = Counter({"kernel scratch": max(kernel_bytes, default=0)})
            timeline.now += _run_terms(activations.peak_bytes, arena.resident_bytes)
        else:
            first_terms = later_terms = _terms_of_malloc(activations, requests, heap)
            if settings.has_pattern and settings.runs:
                later_terms = _terms_of_malloc(activations, *repeated, planned_block(requests))
        reads = self._mapped_reads(shapes, runs=1)
        timeline.now["mapped weights"] += sum(reads.values())
        peak_label = self._peak_node_label(activations)
        timeline.note("first_run", first_terms, peak_label)
        timeline.note("first_run")
        self._run_again(timeline, arena, repeated.requests)
        reads_of_all_runs = self._mapped_reads(shapes, runs=1 + settings.runs)
        most_reads = self._mapped_reads(
            shapes, runs=1 + settings.runs, fault_bytes=LARGE_FAULT_BYTES
        )
        timeline.now["mapped weights"] += sum(reads_of_all_runs.values()) - sum(reads.values())
        timeline.note("steady", later_terms, peak_label)
        timeline.note("steady")
        more_mapped = sum(most_reads.values()) - sum(reads_of_all_runs.values())
        point = self._estimated_point(
            sizes, timeline, self._live_tensors(activations, shapes), more_mapped=more_mapped
        )
        return msgspec.structs.replace(
            point, input_bytes=self._input_bytes(shapes), unknown_values=activations.unknown
        )

    def generate(self, calls: GenerationSizes) -> EstimatedPoint:
        """Return the estimate of a generation: the phases ``prefill`` and ``decode``."""
        ctx, settings = self.ctx, self.settings
        timeline = self._loaded_timeline()
        cache = calls.cache
        shapes = ctx.shapes_at(calls.prompt)
        prompt, prompt_requests, *_ = ctx.run(calls.prompt)
        arena = SimulatedArena()
        calls_in_arena = CallsInArena(arena, calls.outputs)
        past_bytes, cache_bytes = 0, cache.bytes_at(calls.prefill_tokens)
        reads = sum(self._mapped_reads(shapes, runs=1).values())
        timeline.now["mapped weights"] += reads

        def note(phase: PhaseName, activations: ActivationPeak) -> None:
            # Activations that a call returns as the cache count as the cache.
            other_bytes = max(0, activations.peak_bytes - cache_bytes)
            terms: Counter[TermName] = Counter({"KV cache": past_bytes + cache_bytes})
            terms["activations"] = other_bytes
            if settings.has_arena:
                arena_bytes = arena.resident_bytes
                arena_cache_bytes = min(arena_bytes, past_bytes + cache_bytes)
                other_bytes = min(other_bytes, arena_bytes - arena_cache_bytes)
                terms = Counter({"KV cache": arena_cache_bytes, "activations": other_bytes})
                terms["unused arena"] = arena_bytes - arena_cache_bytes - other_bytes
            timeline.note(phase, terms, self._peak_node_label(activations))
            kept_bytes = min(terms["KV cache"], cache_bytes)
            freed_bytes = sum(terms.values()) - kept_bytes if settings.has_arena else 0
            timeline.note_end(phase, {"KV cache": kept_bytes, "unused arena": freed_bytes})

        calls_in_arena.serve(prompt_requests)
        note("prefill", prompt)
        first_step, last_step = ctx.run(calls.first_step), ctx.run(calls.last_step)
        for requests in step_requests(first_step.requests, last_step.requests, calls.steps):
            calls_in_arena.serve(requests)
        tokens = calls.prefill_tokens + calls.steps
        past_bytes, cache_bytes = cache.bytes_at(tokens - 1), cache.bytes_at(tokens)
        # A step looks up as many rows as a token of the prompt.
        runs = 1 + calls.steps / calls.prefill_tokens
        reads_of_all_runs = sum(self._mapped_reads(shapes, runs=runs).values())
        most_reads = self._mapped_reads(shapes, runs=runs, fault_bytes=LARGE_FAULT_BYTES)
        timeline.now["mapped weights"] += reads_of_all_runs - reads
        note("decode", last_step.peak)
        peak = max(prompt, last_step.peak, key=lambda call: call.peak_bytes)
        sizes = calls.prompt if peak is prompt else calls.last_step
        live = self._live_tensors(peak, ctx.shapes_at(sizes))
        more_mapped = sum(most_reads.values()) - reads_of_all_runs
        point = self._estimated_point(calls.prompt, timeline, live, more_mapped=more_mapped)
        return msgspec.structs.replace(point, unknown_values=peak.unknown)

    def with_run_details(
        self, point: EstimatedPoint, doubled: Mapping[str, Mapping[str, int]]
    ) -> EstimatedPoint:
        """Return `point` with the growth of its live tensors.

        Args:
            point: an estimate that `at` returned.
            doubled: for each free dimension, the sizes of all if it is twice as large, by name.
        """
        values = self.ctx.activations(point.dims).live
        bytes_now = self._sizes_of(values, point.dims)
        growth: list[dict[str, float]] = [{} for _ in values]
        for name, sizes in doubled.items():
            doubled_bytes = self._sizes_of(values, sizes)
            for factors, size, doubled_size in zip(growth, bytes_now, doubled_bytes, strict=True):
                if size and doubled_size and doubled_size != size:
                    factors[name] = round(doubled_size / size, 3)
        live = tuple(
            msgspec.structs.replace(tensor, growth=factors)
            for tensor, factors in zip(point.live, growth, strict=True)
        )
        return msgspec.structs.replace(point, live=live)

    def _sizes_of(self, values: Sequence[LiveValue], sizes: Mapping[str, int]) -> list[int | None]:
        """Return the bytes of `values` at `sizes`; None for values of unknown size."""
        shapes = self.ctx.shapes_at(sizes)
        kinds = [shapes.of(value.scope, value.name) for value in values]
        return [None if kind is None else kind.nbytes for kind in kinds]

    @cached_property
    def _loading(self) -> SessionLoading:
        settings = self.settings
        optimizes = settings.level != "disable_all" and not self.ctx.model_file.is_ort_format
        return SessionLoading(
            self.ctx.model_file,
            self.ctx.graphs,
            self.ctx.session,
            prepacks=settings.prepacks,
            folds=settings.folds and optimizes,
            fuses=optimizes,
            reorders=optimizes and settings.level in ("all", "layout"),
            from_bytes=settings.load_from == "bytes",
            ort_file=settings.ort_file,
        )

    def _loaded_timeline(self) -> LoadingTimeline:
        self.__dict__.pop("_loading", None)  # the timeline of each point continues its own loading
        return self._loading.run()

    def _run_again(
        self, timeline: LoadingTimeline, arena: SimulatedArena, requests: Sequence[ArenaRequest]
    ) -> None:
        """Let later runs take the block that was planned in the first one."""
        settings = self.settings
        if not (settings.has_arena and settings.has_pattern and settings.runs):
            return
        bytes_before = arena.resident_bytes
        arena.serve_again(requests, min(settings.runs, LATER_RUNS))
        timeline.now["planned block"] += arena.resident_bytes - bytes_before

    def _mapped_reads(
        self, shapes: ModelShapes, *, runs: float, fault_bytes: int = FAULT_BYTES
    ) -> dict[str, int]:
        """Return the bytes of each mapped weight that `runs` runs read.

        A Gather reads rows, and the kernel maps `fault_bytes` around each of them.
        """
        reads: dict[str, int] = {}
        for weight in self._loading.mapped:
            uses = [use for use in weight.constant.uses if use.buffer is None]
            nbytes = weight.mapped_bytes
            if uses and all(
                use.node.op_type in GATHERING_OPERATORS and use.input_index == 0 for use in uses
            ):
                rows = sum(
                    _value_element_count(shapes, use.scope, use.node.input[1])
                    for use in uses
                    if use.node.input[1:]
                )
                parts = max(1.0, nbytes / fault_bytes)
                nbytes = round(nbytes * (1 - exp(-rows * runs / parts)))
            reads[weight.name] = nbytes
        return reads

    def _input_bytes(self, shapes: ModelShapes) -> int:
        """Return the bytes of the inputs of a run, as far as their sizes are known."""
        main, graph = self.ctx.graphs.main, self.ctx.model_file.graph
        kinds = [shapes.of(main, value.name) for value in graph.required_inputs]
        return sum(kind.nbytes or 0 for kind in kinds if kind is not None)

    def _peak_node_label(self, activations: ActivationPeak) -> str:
        if activations.scope is None or activations.node is None:
            return ""
        return self.ctx.graphs.qualified(activations.scope, activations.node)

    def _estimated_point(
        self,
        sizes: Mapping[str, int],
        timeline: LoadingTimeline,
        live: Sequence[LiveTensor] = (),
        more_mapped: int = 0,
    ) -> EstimatedPoint:
        """Return the point of `timeline`; a run may map `more_mapped` more bytes of files."""
        executed = len(self.ctx.run(sizes).steps)
        phases = [
            self._estimated_phase(name, timeline, executed)
            for name in PHASES
            if name in timeline.phases()
        ]
        largest = max(phases, key=lambda phase: phase.peak_bytes)
        peak = largest.peak_bytes
        loading = max(phase.peak_bytes for phase in phases if phase.name not in RUN_PHASES)
        running = max(
            (phase.peak_bytes for phase in phases if phase.name in RUN_PHASES),
            default=phases[-1].kept_bytes,
        )
        highest = max(running, phases[-1].kept_bytes + more_mapped)
        freed = self._loading.freed_bytes
        return EstimatedPoint(
            dims=dict(sizes),
            peak_bytes=peak,
            peak_phase=largest.name,
            steady_bytes=phases[-1].kept_bytes,
            low_bytes=max(0, peak - max(MIN_INTERVAL_BYTES, round(INTERVAL_BELOW * peak))),
            usual_bytes=max(loading, running + round(USUALLY_KEPT * freed)),
            high_bytes=max(
                _interval_end(loading, LOADING_ABOVE),
                _interval_end(highest, INTERVAL_ABOVE) + round(MOST_KEPT * freed),
            ),
            pinned_high_bytes=_interval_end(max(peak, highest), INTERVAL_ABOVE),
            phases=tuple(phases),
            live=tuple(live),
        )

    def _estimated_phase(
        self, name: PhaseName, timeline: LoadingTimeline, executed: int
    ) -> EstimatedPhase:
        """Return the phase, with the memory of the runtime itself and of `executed` nodes."""
        overhead = overhead_at_end(self.ctx.runtime, _MEASURED_PHASES.get(name, name))
        fixed: dict[TermName, int] = {
            "runtime": overhead.session,
            "graph": overhead.graph_bytes(self.ctx.model_file.node_count, executed),
        }
        moment, end = timeline.peak(name), timeline.end(name)
        return EstimatedPhase(
            name=name,
            peak_bytes=moment.nbytes + sum(fixed.values()),
            kept_bytes=sum(end.values()) + sum(fixed.values()),
            cause=moment.cause,
            peak_terms=_estimated_terms(fixed, moment.terms, timeline),
            kept_terms=_estimated_terms(fixed, end, timeline),
        )

    def _live_tensors(self, activations: ActivationPeak, shapes: ModelShapes) -> list[LiveTensor]:
        tensors = []
        for value in activations.live:
            kind = value.kind or shapes.of(value.scope, value.name)
            producer = value.scope.producers.get(value.name)
            uses = [use.node for use in value.scope.uses(value.name)]
            last = max(uses, key=lambda node: node.index, default=None)
            graphs = self.ctx.graphs
            tensors.append(
                LiveTensor(
                    name=value.name,
                    form=value.form,
                    dtype="" if kind is None else kind.dtype,
                    shape=shape_with_zeros((kind and kind.shape) or ()),
                    bytes=value.nbytes,
                    producer="" if producer is None else graphs.qualified(value.scope, producer),
                    last_use="" if last is None else graphs.qualified(value.scope, last),
                )
            )
        return tensors


def _interval_end(size: int, share: float) -> int:
    return size + max(MIN_INTERVAL_BYTES, round(share * size))


def _estimated_terms(
    fixed: Mapping[TermName, int], terms: Mapping[TermName, int], timeline: LoadingTimeline
) -> tuple[EstimatedTerm, ...]:
    bytes_by_term = Counter(fixed)
    bytes_by_term.update(terms)
    return tuple(
        EstimatedTerm(name=name, bytes=nbytes, largest=timeline.largest.get(name, ""))
        for name, nbytes in bytes_by_term.items()
        if nbytes
    )


def _serve_run(
    arena: SimulatedArena, requests: Sequence[ArenaRequest], heap: Sequence[tuple[int, int]]
) -> int:
    """Serve a run, and return how many bytes more than at its end are allocated while a kernel has
    memory of malloc."""
    start = peak = 0
    for index, nbytes in heap:
        arena.serve(requests[start:index])
        start, peak = index, max(peak, arena.resident_bytes + nbytes)
    arena.serve(requests[start:])
    return max(0, peak - arena.resident_bytes)


def _terms_of_malloc(
    activations: ActivationPeak,
    requests: Sequence[ArenaRequest],
    heap: Sequence[tuple[int, int]],
    block: int = 0,
) -> Counter[TermName]:
    """Return the parts of the largest memory of a run if malloc serves all its requests.

    A later run has the planned `block` from its beginning to its end.
    """
    heap_bytes_by_index = dict(sorted(heap))
    in_use = peak = block
    sizes: dict[int, int] = {}
    for index, request in enumerate(requests):
        peak = max(peak, in_use + heap_bytes_by_index.get(index, 0))
        if not (block and request.is_planned):
            in_use += request.nbytes - sizes.get(request.key, 0)
            sizes[request.key] = request.nbytes
    peak = max(peak, in_use + heap_bytes_by_index.get(len(requests), 0))
    values = min(activations.peak_bytes, peak)
    other_term: TermName = "planned block" if block else "kernel scratch"
    return Counter({"activations": values, other_term: peak - values})


def _run_terms(activations: int, resident: int) -> Counter[TermName]:
    in_use = min(activations, resident)
    return Counter({"activations": in_use, "unused arena": resident - in_use})


def _value_element_count(shapes: ModelShapes, scope: Scope, name: str) -> int:
    """Return the number of elements of a value; 1 if it is unknown."""
    kind = shapes.of(scope, name)
    if kind is None or kind.shape is None:
        return 1
    count = 1
    for size in kind.shape:
        count *= size or 1
    return count
