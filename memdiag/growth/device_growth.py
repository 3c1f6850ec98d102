"""The verdict on the growth of the memory on a GPU.

There is one judge, `memdiag.growth.verdict`. Its rules ask what is in use, what is kept without
being used, and how large the whole is. The figures of a GPU take the places of the host's:

======================================  ============================================
 host                                    GPU
======================================  ============================================
 resident set                            the whole (`memdiag.growth.device_series`)
 values in arenas, and their slack       those of the arenas on the GPU
 blocks of malloc in use                 allocations of libraries, such as cuBLAS
 stacks and private mappings             the rest
======================================  ============================================

So what users call growth of the GPU is told apart as on the host:

- A handle of another thread, or a region of the arena that came once, is a ``plateau``.
- Regions that come with new largest inputs are a ``high_water`` mark. Regions that come with inputs
  of other sizes, as their values do not fit into the free pieces, are a ``plateau`` or
  ``undecided``, and the sentence has the reason.
- Values that a program keeps make the arena in use grow: ``kept``. If memdiag itself runs the
  model, it keeps none, and this is a ``leak``.
- Reloads that return to the same size are ``flat``.

The whole device (``device``) is never called a leak. Another process that allocates looks exactly
like one, however steadily it does so and however long it is observed, so that no condition on the
figure makes a leak certain. Its growth is ``undecided``, and the advice names the sources that
would tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from memdiag.growth.device_series import DeviceSeries, device_series
from memdiag.growth.growth_sentences import (
    RELEASE_SESSIONS_ADVICE,
    UNDECIDED_ADVICE,
    elapsed_text,
    gibibyte_clause,
    listed_growth_bytes,
    slope_text,
)
from memdiag.growth.observation import GrowthObservation
from memdiag.growth.verdict import GrowthJudgement, grown_bytes, growth_judgement
from memdiag.records.growth import (
    DeviceBasis,
    DeviceGrowth,
    DevicePart,
    GrowingOwner,
    Moment,
    OwnerBytes,
    RunSample,
)
from memdiag.units import format_rate, format_size

WHOLE_LABELS: Mapping[DeviceBasis, str] = {
    "process": "memory of the process",
    "allocations": "allocated memory of the process",
    "arena": "arena",
    "device": "memory of all processes",
}
"""Names of the whole."""

_PART_BY_OWNER: Mapping[GrowingOwner, DevicePart] = {
    "arena": "arena",
    "arena_slack": "empty_arena",
    "heap": "libraries",
    "other": "rest",
    "sessions": "sessions",
}
_SIZES_ADVICE = (
    "run inputs of a few sizes only, or let runs return regions of the arena: run option"
    " memory.enable_memory_arena_shrinkage = gpu:0, which costs time in each run"
)
_SOURCES_ADVICE = (
    "observe it where NVML or CUPTI reports the memory of the process alone (pip install"
    ' "memdiag[nvidia]")'
)


def device_growth(observation: GrowthObservation) -> DeviceGrowth | None:
    """Return the growth of the memory on the GPU; None if it was not read at any moment."""
    series = device_series(observation.moments)
    if series is None:
        return None
    on_device = _observation_of_device(series, observation)
    judgement = growth_judgement(on_device)
    is_steady = judgement.verdict in ("leak", "kept")
    if is_steady and series.basis == "device":
        judgement = replace(judgement, verdict="undecided")
    part = _PART_BY_OWNER.get(judgement.owner) if judgement.owner else None
    library = ""
    if part == "libraries":
        library = _growing_library(series, on_device.warm_up if is_steady else 0)
    largest_inputs = {moment.largest_input_bytes for moment in series.moments}
    texts = _DeviceTexts(
        observation=on_device,
        series=series,
        judgement=judgement,
        library=library,
        sizes_vary=bool(observation.new_largest) or len(largest_inputs) > 1,
    )
    return DeviceGrowth(
        basis=series.basis,
        verdict=judgement.verdict,
        sentence=texts.sentence(),
        advice=texts.advice(),
        part=part,
        library=library,
        slope=judgement.slope,
        grown_bytes=grown_bytes(on_device.moments),
    )


def device_notes(observation: GrowthObservation) -> tuple[str, ...]:
    """Return a sentence on the memory on the GPU that is not judged; none if all of it is."""
    series = device_series(observation.moments)
    if series is None or series.basis != "arena":
        return ()
    text = (
        "of the memory on the GPU only onnxruntime's arena is judged: that of libraries, context"
        " and code is not known"
    )
    used = [
        moment.device.used_bytes
        for moment in (series.moments[0], series.moments[-1])
        if moment.device is not None and moment.device.used_bytes is not None
    ]
    if len(used) < 2:
        return (text,)
    first, last = map(format_size, used)
    return (f"{text}. All processes had {first} there at the start, and {last} at the end",)


def _observation_of_device(
    series: DeviceSeries, observation: GrowthObservation
) -> GrowthObservation:
    """Return the observation of the GPU, with its figures in the places of the host's."""
    moments = tuple(_moment_of_device(series, index) for index in range(len(series.moments)))
    in_warm_up = observation.moments[: observation.warm_up]
    new_largest = frozenset(
        after.run
        for before, after in pairwise(moments)
        if any(before.run < run <= after.run for run in observation.new_largest)
    )
    return GrowthObservation(
        moments=moments,
        unit=observation.unit,
        warm_up=sum(moment in in_warm_up for moment in series.moments),
        # A GPU is read at the moments only. Of a program these know its largest inputs.
        samples=tuple(map(_sample_at, moments)) if observation.new_largest else (),
        new_largest=new_largest,
        caller_keeps_nothing=observation.caller_keeps_nothing,
    )


def _moment_of_device(series: DeviceSeries, index: int) -> Moment:
    moment = series.moments[index]
    arena, empty_arena = series.bytes_of("arena", index), series.bytes_of("empty_arena", index)
    libraries = series.bytes_of("libraries", index)
    return Moment(
        run=moment.run,
        time_s=moment.time_s,
        resident_bytes=series.whole[index],
        owners=(
            OwnerBytes(kind="arena", bytes=arena + empty_arena),
            OwnerBytes(kind="other_heap", bytes=libraries),
            OwnerBytes(kind="unnamed", bytes=series.bytes_of("rest", index)),
        ),
        heap_bytes=libraries,
        arena_used_bytes=arena,
        arena_slack_bytes=empty_arena,
        sessions=moment.sessions,
        largest_input=moment.largest_input,
    )


def _sample_at(moment: Moment) -> RunSample:
    return RunSample(
        run=moment.run, resident_bytes=moment.resident_bytes, anonymous_bytes=0, duration_s=0.0
    )


def _growing_library(series: DeviceSeries, since: int) -> str:
    """Return the library that grew most from the moment at index `since` to the last one."""
    before, after = series.libraries[since], series.libraries[-1]
    growth = {library: size - before.get(library, 0) for library, size in after.items()}
    return max(growth, key=growth.__getitem__, default="")


@dataclass(frozen=True, kw_only=True, slots=True)
class _DeviceTexts:
    """The sentence of a verdict on the memory on a GPU, and its advice.

    Attributes:
        observation: the figures that were judged.
        series: the same with their names.
        judgement: the verdict.
        library: the library that grew most; empty if libraries did not.
        sizes_vary: whether inputs had several sizes.
    """

    observation: GrowthObservation
    series: DeviceSeries
    judgement: GrowthJudgement
    library: str
    sizes_vary: bool

    def sentence(self) -> str:
        """Return the verdict with its figures."""
        judgement, unit = self.judgement, self.observation.unit
        first, last = self.observation.moments[0], self.observation.moments[-1]
        first_size, last_size = map(format_size, (first.resident_bytes, last.resident_bytes))
        runs = elapsed_text(last, unit)
        whole = f"the {WHOLE_LABELS[self.series.basis]} there"
        match judgement.verdict:
            case "flat":
                return f"no growth on the GPU: {whole} is {last_size} after {runs}"
            case "high_water":
                return (
                    f"no leak on the GPU: {whole} grew from {first_size} to {last_size} with new"
                    f" largest inputs, and stays there: {format_size(last.arena_slack_bytes or 0)}"
                    " is empty arena"
                )
            case "leak" | "kept":
                return self._steady_sentence()
            case "undecided" if judgement.slope is None:
                return f"undecided on the GPU: too few readings in {runs} to judge growth"
        grown = format_size(listed_growth_bytes(self.observation.moments))
        growth = f"{whole} grew by {grown}{self._cause_clause()}"
        if judgement.verdict == "plateau":
            return f"warm-up on the GPU, not a leak: {growth} and stopped at {last_size}"
        pace = judgement.slope.bytes_per_unit if judgement.slope else 0.0
        about = f", by {format_rate(pace)} a {unit}" if pace > 0 else ""
        others = ". Other processes may have taken it" if self.series.basis == "device" else ""
        return f"undecided on the GPU: {growth}{about}, and had not stopped after {runs}{others}"

    def advice(self) -> str:
        """Return what to do about the growth; empty if there is nothing to do."""
        match self.judgement.verdict, self.judgement.owner:
            case "kept", "sessions":
                return RELEASE_SESSIONS_ADVICE
            case "kept", _:
                return (
                    "drop the OrtValues and bindings of earlier runs: look for lists, caches and"
                    " globals of the program"
                )
            case "leak", _:
                return "try the newest release of onnxruntime, and report the rate with this record"
            case (("plateau" | "high_water" | "undecided"), "arena_slack") if self.sizes_vary:
                return _SIZES_ADVICE
            case "undecided", _:
                return _SOURCES_ADVICE if self.series.basis == "device" else UNDECIDED_ADVICE
        return ""

    def _steady_sentence(self) -> str:
        judgement, unit = self.judgement, self.observation.unit
        assert judgement.owner is not None
        assert judgement.slope is not None
        slopes = {judgement.owner: judgement.slope, **dict(judgement.others)}
        rates = ", ".join(
            f"{self._part_text(owner)} {'grows ' if owner == judgement.owner else ''}by"
            f" {slope_text(slope, unit)}"
            for owner, slope in slopes.items()
        )
        what = "a leak" if judgement.verdict == "leak" else "the program keeps memory"
        return f"{what} on the GPU: {rates}; {gibibyte_clause([*slopes.values()], unit)}"

    def _cause_clause(self) -> str:
        """Return the part that grew, in brackets, with the reason if it is known."""
        owner = self.judgement.owner
        if owner is None or self.series.basis == "device":
            return ""
        reason = ""
        if owner == "arena_slack" and self.sizes_vary:
            reason = ", as values of other sizes did not fit into its free pieces"
        return f" ({self._part_text(owner)}{reason})"

    def _part_text(self, owner: GrowingOwner) -> str:
        match owner:
            case "arena":
                return "memory of values in the arena"
            case "arena_slack":
                return "the empty part of the arena"
            case "heap":
                return f"memory of {self.library or 'libraries'}"
            case "sessions":
                return "memory of sessions that are alive"
        return "other memory" if self.series.has_all_parts else "memory of no known part"
