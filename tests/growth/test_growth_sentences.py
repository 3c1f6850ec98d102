"""The sentence of a verdict and its advice: which values and contents they name."""

import textwrap
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import quantize_static
from onnxruntime.quantization.calibrate import MinMaxCalibrater

from memdiag.growth.growth_sentences import (
    CALIBRATION_ADVICE,
    OWNER_LABELS,
    growth_advice,
    growth_sentence,
    is_of_calibration,
    pattern_note,
)
from memdiag.growth.observation import GrowthObservation, KeptValues
from memdiag.growth.verdict import GrowthJudgement
from memdiag.records.attribution import OwnerKind
from memdiag.records.growth import (
    GROWING_OWNERS,
    GrowingBlocks,
    GrowingOwner,
    LargestInput,
    Moment,
    Verdict,
)
from memdiag.units import MIB
from tests.growth.histories import exact_slope, moment, observed, owned_moment
from tests.programs.conftest import one_product
from tests.snapshots import assert_approved

APPROVED = Path(__file__).parent / "approved"
CALIBRATOR = "onnxruntime/quantization/calibrate.py:698 (called from app.py:7)"
SLOPE = exact_slope(1024.0)
BLOCKS = (GrowingBlocks(block_bytes=1040, blocks=90, blocks_per_run=1.0, content="output 'y'"),)
SHORT = LargestInput(run=1, bytes=800, shapes={"text": (1, 100)})
LONG = LargestInput(run=21, bytes=12_000, shapes={"text": (1, 1500)})

Case = tuple[GrowthJudgement, GrowthObservation]


def judged(verdict: Verdict, owner: GrowingOwner | None = "heap", **fields: Any) -> GrowthJudgement:
    return GrowthJudgement(verdict, owner, **{"slope": SLOPE, **fields})


def after_90_runs(verdict: Verdict, owner: GrowingOwner, kept: str = "", **fields: Any) -> Case:
    observation = observed([owned_moment(90, 50 * MIB)], blocks=BLOCKS, **fields)
    return judged(verdict, owner, kept=KeptValues(kept, 1024.0)), observation


def grown(verdict: Verdict, owner: GrowingOwner, *mebibytes: int) -> Case:
    """Return growth by `mebibytes` whose last moment, of 300 MiB, has a heap that was not read."""
    moments = [owned_moment(100 * number, size * MIB) for number, size in enumerate(mebibytes)]
    last = owned_moment(1000, 300 * MIB, heap_bytes=None)
    return judged(verdict, owner), observed([*moments, last])


def reloads(verdict: Verdict, rise: int) -> Case:
    """Return reloads with 8 MiB in the warm-up, and then `rise` bytes from moment to moment."""
    sizes = [60 * MIB, *(68 * MIB + rise * number for number in range(12))]
    runs = [1, *(10 + 30 * number // 11 for number in range(12))]
    moments = map(moment, runs, sizes)
    return judged(verdict, "allocator_retained"), observed(
        moments, unit="reload", caller_keeps_nothing=True
    )


def without_name(heap_bytes: int | None) -> Case:
    """Return growth of memory without a name, with a heap that was read or was not."""
    moments = [moment(0, MIB, time_s=float(second), heap_bytes=heap_bytes) for second in range(10)]
    return judged("leak", "other"), observed(moments, unit="second")


def few_readings(*sessions: int | None) -> Case:
    moments = [moment(run, MIB, sessions=count) for run, count in enumerate(sessions)]
    return judged("undecided", None, slope=None), observed(moments)


def sessions_of(*counts: int) -> Case:
    moments = [
        owned_moment(run, (50 + run * 49 // 5) * MIB, sessions=count)
        for run, count in zip((1, 10, 20, 30), counts, strict=True)
    ]
    return judged("kept", "sessions"), observed(moments)


def at_largest(largest: LargestInput | None, *mebibytes: int) -> Case:
    """Return growth of arena slack; the first reading is before the `largest` input."""
    moments = [
        owned_moment(
            10 * number,
            size * MIB,
            (size - 190) * MIB,
            largest_input=largest if number > 1 else SHORT,
        )
        for number, size in enumerate(mebibytes, 1)
    ]
    return judged("high_water", "arena_slack"), observed(moments)


def calibration(growths: dict[GrowingOwner, int], *, runs: int = 90_000) -> Case:
    (owner, rate), *others = growths.items()
    slopes = tuple((other, exact_slope(float(slope))) for other, slope in others)
    judgement = judged("kept", owner, slope=exact_slope(float(rate)), others=slopes)
    return judgement, observed([owned_moment(runs, 205 * MIB)], kept_from=CALIBRATOR)


def beside_leak(slack_mib: int) -> Case:
    moments = [
        owned_moment(run, (190 + slack) * MIB, slack * MIB)
        for run, slack in ((1, 0), (90, slack_mib))
    ]
    return judged("leak"), observed(moments)


FLAT = [owned_moment(run, 50 * MIB) for run in (1, 100, 200, 612)]
RISING = [owned_moment(run, run * MIB) for run in range(100, 124)]

CASES: dict[str, Case] = {
    "leak of blocks whose content is known": after_90_runs("leak", "heap"),
    "leak of the model alone": after_90_runs("leak", "heap", caller_keeps_nothing=True),
    "leak of Python objects": after_90_runs("leak", "python"),
    "leak of values in arenas, on which the content of blocks says nothing": after_90_runs(
        "leak", "arena"
    ),
    "leak of sessions": after_90_runs("leak", "sessions"),
    "leak of two owners, which fill 1 GiB together": (
        judged("leak", "python", slope=exact_slope(3072.0), others=(("heap", SLOPE),)),
        observed([moment(90, MIB)]),
    ),
    "leak of stacks or of a heap that was not read": without_name(None),
    "leak of stacks": without_name(MIB),
    "leak that is not most of the growth": beside_leak(60),
    "leak that is all of the growth": beside_leak(0),
    "kept copies": after_90_runs("kept", "heap", "copies of output 'y'"),
    "kept values of a known run": after_90_runs("kept", "heap", "output 'y'", kept_from="app.py:7"),
    "kept values of an unknown size": (
        judged("kept", kept=KeptValues("output 'y'")),
        observed([owned_moment(90, 50 * MIB)], kept_from="app.py:7"),
    ),
    "kept values without a name": after_90_runs("kept", "arena"),
    "kept sessions, not the values in them": after_90_runs("kept", "sessions", "output 'y'"),
    "kept sessions with their size": sessions_of(1, 10, 20, 30),
    "kept sessions of which there are no more": sessions_of(2, 2, 2, 2),
    "calibration that keeps whole tensors": calibration({"arena": 1024}),
    "calibration that keeps numbers": calibration({"heap": 302, "arena": 256, "python": 178}),
    "calibration with few samples": calibration({"arena": 1024}, runs=150),
    "plateau after one step": grown("plateau", "arena_slack", 213, 220, 261, 261, 261),
    "plateau after a late step": grown("plateau", "arena_slack", 213, 220, 220, 220, 261),
    "retained by malloc, and freed for a moment": grown(
        "retained", "allocator_retained", 213, 220, *(261,) * 6, 211
    ),
    "memory patterns": (
        judged("patterns", "patterns"),
        observed(
            owned_moment(run, run * MIB, patterns=run, pattern_bytes=run * MIB)
            for run in (100, 181)
        ),
    ),
    "high water at the largest input": at_largest(LONG, 210, 230, 2040, 2040),
    "high water before the largest input": at_largest(LONG, 210, 2000, 2040, 2040),
    "high water of unknown inputs": at_largest(None, 210, 230, 2040, 2040),
    "flat, with what would not be seen": (judged("flat", None, slope=None), observed(FLAT)),
    "flat after one run": (judged("flat", None, slope=None), observed(FLAT[:1])),
    "undecided, with the rate": (
        judged("undecided", slope=exact_slope(7.5 * MIB)),
        observed(RISING, unit="second"),
    ),
    "undecided after few readings, with more and more sessions": few_readings(2, 9, 30),
    "undecided after few readings with a session more": few_readings(1, 2, 2),
    "undecided after few readings without sessions": few_readings(None, None, None),
    "reloads without growth": reloads("flat", 0),
    "reloads that ratchet": reloads("retained", MIB),
    "reloads of which malloc retains the first": reloads("retained", 0),
    "reloads that leak": reloads("leak", MIB),
    "reloads that are undecided": reloads("undecided", MIB),
}


def test_sentences_and_advice() -> None:
    lines: list[str] = []
    for name, (judgement, observation) in CASES.items():
        sentence = growth_sentence(judgement, observation)
        advice = growth_advice(judgement, observation, trim_returned_bytes=30 * MIB)
        for text in (name, sentence, f"To do: {advice}" if advice else "Nothing to do."):
            indent = "" if text == name else "    "
            lines += textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)
        lines.append("")
    assert_approved("\n".join(lines), APPROVED / "sentences.txt")


def test_every_kind_of_owner_has_an_owner_of_verdicts_with_a_label() -> None:
    assert set(GROWING_OWNERS) == set(get_args(OwnerKind))
    assert set(OWNER_LABELS) == set(get_args(GrowingOwner))


@pytest.mark.parametrize(
    ("site", "growths", "is_told"),
    [
        pytest.param(CALIBRATOR, {"arena": 1024}, True, id="whole tensors"),
        # As numbers of MinMax: 256 bytes of each in the arena.
        pytest.param(CALIBRATOR, {"heap": 302, "arena": 256, "python": 178}, True, id="numbers"),
        pytest.param(CALIBRATOR, {"heap": 4096, "arena": 256}, False, id="mostly other blocks"),
        pytest.param(CALIBRATOR, {"heap": 1024}, False, id="no outputs"),
        pytest.param("app.py:7", {"arena": 1024}, False, id="own outputs"),
    ],
)
def test_outputs_that_a_calibrator_keeps_are_told_as_such(
    site: str, growths: dict[GrowingOwner, int], *, is_told: bool
) -> None:
    judgement, _ = calibration(growths)
    observation = observed([owned_moment(90_000, 205 * MIB)], kept_from=site)
    assert is_of_calibration(judgement, observation) == is_told
    advice = growth_advice(judgement, observation, None)
    assert (advice == CALIBRATION_ADVICE) == is_told


class _Samples:
    """A reader that can be read in parts."""

    def __init__(self, samples: list[np.ndarray]) -> None:
        self._samples = samples
        self.set_range(0, len(samples))

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._rest = iter(self._samples[start_index:end_index])

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._rest, None)
        return None if sample is None else {"x": sample}


def test_the_advice_on_calibration_is_true_of_this_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, quantized = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    onnx.save(one_product(), model)
    samples = [np.full((1, 512), value, np.float32) for value in (9, 1, 2, 3, 4, 5)]
    kept: list[int] = []
    clear = MinMaxCalibrater.clear_collected_data

    def counting_clear(self: MinMaxCalibrater) -> None:
        kept.append(len(self.intermediate_outputs))
        clear(self)

    monkeypatch.setattr(MinMaxCalibrater, "clear_collected_data", counting_clear)

    def scales(**options: object) -> list[float]:
        kept.clear()
        quantize_static(model, quantized, _Samples(samples), extra_options=options)
        weights = sorted(onnx.load(quantized).graph.initializer, key=lambda weight: weight.name)
        scales = [weight for weight in weights if weight.name.endswith("_scale")]
        return [float(numpy_helper.to_array(scale).max()) for scale in scales]

    whole = scales()
    assert kept == [6]
    assert scales(CalibStridedMinMax=2) == whole
    assert kept == [2, 2, 2]
    assert scales(CalibMaxIntermediateOutputs=4) != whole  # without the largest sample


def patterned(run: int, patterns: int | None, arenas: int | None = None) -> Moment:
    nbytes = None if patterns is None else 1024 * patterns
    return owned_moment(run, 50 * MIB, patterns=patterns, pattern_bytes=nbytes, arenas=arenas)


@pytest.mark.parametrize(
    ("counts", "is_noted"),
    [
        ((1, 40, 81), True),
        ((1, None, 81), True),
        ((1, 5, 8), False),
        ((8, 8, 8), False),
        ((None, None, None), False),
    ],
)
def test_memory_patterns_are_noted_if_they_grow(
    counts: tuple[int | None, ...], is_noted: bool
) -> None:
    moments = [patterned(run, count) for run, count in enumerate(counts)]
    note = pattern_note(moments)
    assert note.startswith("80 KiB of memory patterns" if is_noted else "")
    assert ("of 1 KiB for each combination of input sizes (80 more)" in note) == is_noted
    assert ("enable_mem_pattern = False" in note) == bool(note) == is_noted
    # More sessions have more patterns, without new sizes.
    more_sessions = [
        msgspec.structs.replace(moment, arenas=run) for run, moment in enumerate(moments)
    ]
    assert pattern_note(more_sessions) == ""
