"""The record of growth: an observation of a model or a process, with its verdict."""

from collections.abc import Mapping, Sequence
from typing import Literal

from memdiag.growth.growth_sentences import (
    growth_advice,
    growth_sentence,
    is_of_calibration,
    pattern_note,
)
from memdiag.growth.observation import GrowthObservation
from memdiag.growth.verdict import grown_bytes, growth_judgement
from memdiag.records.growth import Growth, Moment, RunSample, Varied, Verdict
from memdiag.thinning import thinned_indices

MAX_RUN_SAMPLES = 5000


def growth_record(
    observation: GrowthObservation,
    *,
    subject: str,
    kind: Literal["model", "program", "process"],
    runs: int,
    warm_up_runs: int,
    warm_up_s: float,
    onnxruntime: str | None,
    trim_returned_bytes: int | None = None,
    varied: Sequence[Varied] = (),
    dimensions: Mapping[str, tuple[int, int]] | None = None,
    notes: Sequence[str] = (),
    message: str = "",
) -> Growth:
    """Judge `observation` and return its record; the other arguments are fields of the record."""
    judgement = growth_judgement(observation)
    moments = observation.moments
    return Growth(
        subject=subject,
        kind=kind,
        verdict=judgement.verdict,
        sentence=growth_sentence(judgement, observation),
        advice=growth_advice(judgement, observation, trim_returned_bytes),
        owner=judgement.owner,
        slope=judgement.slope,
        slope_bytes_per_run=judgement.slope.bytes_per_unit if judgement.slope else 0.0,
        kept_values=judgement.kept.names,
        grown_bytes=grown_bytes(moments),
        trim_returned_bytes=trim_returned_bytes,
        runs=runs,
        warm_up_runs=warm_up_runs,
        warm_up_s=warm_up_s,
        unit=observation.unit,
        varied=tuple(varied),
        dimensions=dict(dimensions or {}),
        blocks=observation.blocks,
        moments=moments,
        samples=_thinned_samples(observation.samples),
        notes=(*notes, *_reading_notes(moments, judgement.verdict)),
        onnxruntime=onnxruntime,
        message=message,
        is_of_calibration=is_of_calibration(judgement, observation),
    )


def _thinned_samples(samples: Sequence[RunSample]) -> tuple[RunSample, ...]:
    """Return at most about `MAX_RUN_SAMPLES` of the samples, with every peak."""
    sizes = [sample.resident_bytes for sample in samples]
    return tuple(samples[index] for index in thinned_indices(sizes, MAX_RUN_SAMPLES))


def _reading_notes(moments: Sequence[Moment], verdict: Verdict) -> tuple[str, ...]:
    notes = []
    if verdict != "patterns" and (pattern_sentence := pattern_note(moments)):
        notes.append(pattern_sentence)
    unread_count = sum(moment.heap_bytes is None for moment in moments)
    torn_count = sum(moment.heap_bytes is None and not moment.owners for moment in moments)
    unread_count -= torn_count
    if unread_count:
        notes.append(
            f"blocks in use could not be counted at {unread_count} of {len(moments)} moments: the"
            " process was busy (see --pause), or its allocator is not glibc's"
        )
    if torn_count:
        notes.append(
            f"{torn_count} of {len(moments)} readings are left out of slopes: the memory changed"
            " during them, because runs went on or other threads allocated memory"
        )
    return tuple(notes)
