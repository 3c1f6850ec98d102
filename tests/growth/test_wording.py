"""The sentence of a verdict: which values and contents it names, and for which owner."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import quantize_static
from onnxruntime.quantization.calibrate import MinMaxCalibrater

from memdiag.growth.observation import GrowthObservation, KeptValues
from memdiag.growth.verdict import GrowthJudgement
from memdiag.growth.wording import (
    CALIBRATORS_HAVE,
    CALIBRATORS_KEEP,
    OWNER_LABELS,
    growth_advice,
    growth_sentence,
    pattern_note,
)
from memdiag.records.attribution import OwnerKind
from memdiag.records.growth import (
    GROWING_OWNERS,
    GrowingBlocks,
    GrowingOwner,
    LargestInput,
    Moment,
    OwnerBytes,
    Slope,
    Verdict,
)
from memdiag.units import MIB, format_size
from tests.programs.conftest import one_product

SLOPE = Slope(bytes_per_unit=1024.0, low=1024.0, high=1024.0)
BLOCKS = (GrowingBlocks(block_bytes=1040, blocks=90, blocks_per_run=1.0, content="output 'y'"),)


@pytest.mark.parametrize(
    ("verdict", "owner", "kept", "text"),
    [
        ("leak", "heap", "", "a leak: malloc blocks in use (output 'y') grow by 1 KiB a run; "),
        # The content of blocks says nothing on values in arenas.
        ("leak", "arena", "", "a leak: arena values in use grow by 1 KiB a run; "),
        (
            *("kept", "heap", "copies of output 'y'"),
            "the program keeps copies of output 'y': 1 KiB more after each run. Malloc",
        ),
        ("kept", "sessions", "output 'y'", "the program keeps its sessions: they grow by 1 KiB"),
        ("kept", "arena", "", "kept values: arena values in use grow by 1 KiB a run; "),
    ],
)
def test_a_sentence_names_kept_values_and_the_content_of_the_heap_only(
    verdict: Verdict, owner: GrowingOwner, kept: str, text: str
) -> None:
    observation = GrowthObservation(
        moments=(Moment(run=90, time_s=1.0, resident_bytes=1 << 20),),
        unit="run",
        warm_up=0,
        blocks=BLOCKS,
        caller_keeps_nothing=False,
    )
    judgement = GrowthJudgement(verdict, owner, SLOPE, kept=KeptValues(kept, 1024.0))
    assert growth_sentence(judgement, observation).startswith(text)


@pytest.mark.parametrize(
    ("verdict", "rise", "ending"),
    [
        ("flat", 0, ". Memory does not grow steadily with reloads"),
        ("retained", MIB, ". Each reload adds memory, which grows steadily"),
        ("retained", 0, ". Memory does not grow steadily with reloads"),
        ("leak", MIB, ". Each reload adds memory, which grows steadily"),
        ("undecided", MIB, "40 reloads"),
    ],
)
def test_of_reloads_a_sentence_says_whether_they_ratchet(
    verdict: Verdict, rise: int, ending: str
) -> None:
    # 8 MiB in the warm-up, and then `rise` bytes from moment to moment.
    sizes = [60 * MIB, *(68 * MIB + rise * number for number in range(12))]
    runs = [1, *(10 + 30 * number // 11 for number in range(12))]
    moments = tuple(
        Moment(run=run, time_s=1.0 * run, resident_bytes=size)
        for run, size in zip(runs, sizes, strict=True)
    )
    observation = GrowthObservation(
        moments=moments, unit="reload", warm_up=1, caller_keeps_nothing=True
    )
    judgement = GrowthJudgement(verdict, "allocator_retained", SLOPE)
    assert growth_sentence(judgement, observation).endswith(ending)
    of_runs = replace(observation, unit="run")
    assert "ratchet" not in growth_sentence(judgement, of_runs)


def test_every_kind_of_owner_has_an_owner_of_verdicts_with_a_label() -> None:
    assert set(GROWING_OWNERS) == set(get_args(OwnerKind))
    assert set(OWNER_LABELS) == set(get_args(GrowingOwner))


@pytest.mark.parametrize(
    ("heap_bytes", "owner", "advised"),
    [
        (
            None,
            "a leak: the heap, stacks and private mappings grow",
            "if the process is busy, observe it again with --pause",
        ),
        (MIB, "a leak: stacks and private mappings grow", "caches and globals of the program"),
    ],
)
def test_growth_without_a_name_may_be_a_heap_that_was_not_read(
    heap_bytes: int | None, owner: str, advised: str
) -> None:
    moments = tuple(
        Moment(run=0, time_s=float(number), resident_bytes=MIB, heap_bytes=heap_bytes)
        for number in range(10)
    )
    observation = GrowthObservation(
        moments=moments, unit="second", warm_up=1, caller_keeps_nothing=False
    )
    judgement = GrowthJudgement("leak", "other", SLOPE)
    assert growth_sentence(judgement, observation).startswith(owner)
    assert advised in growth_advice(judgement, observation, None)


@pytest.mark.parametrize(
    ("sessions", "ending"),
    [
        ((2, 9, 30), "growth, with 2 sessions at the first and 30 at the last"),
        ((1, 2, 2), "to judge growth"),
        ((None, None, None), "to judge growth"),
    ],
)
def test_too_few_readings_still_tell_the_numbers_of_sessions(
    sessions: tuple[int | None, ...], ending: str
) -> None:
    moments = tuple(
        Moment(run=run, time_s=1.0, resident_bytes=MIB, sessions=count)
        for run, count in enumerate(sessions)
    )
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False
    )
    assert growth_sentence(GrowthJudgement("undecided"), observation).endswith(ending)


def owned(run: int, resident: int, *, sessions: int | None = None, heap: int | None = 0) -> Moment:
    return Moment(
        run=run,
        time_s=run / 100,
        resident_bytes=resident,
        owners=(OwnerBytes(kind="other_heap", bytes=resident),),
        heap_bytes=heap,
        sessions=sessions,
    )


def observed(*moments: Moment) -> GrowthObservation:
    return GrowthObservation(moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False)


@pytest.mark.parametrize(
    ("late", "grown"),
    [
        ((213, 220, 261, 261, 261), "48 MiB"),
        ((213, 220, 220, 220, 261), "48 MiB"),  # one step before the end
        ((213, 220, *(261,) * 6, 211), "48 MiB"),  # freed for a moment
    ],
)
@pytest.mark.parametrize("verdict", ["plateau", "retained", "undecided"])
def test_the_growth_is_that_from_the_start_to_the_end_of_the_table(
    verdict: Verdict, late: tuple[int, ...], grown: str
) -> None:
    moments = [owned(100 * number, size * MIB) for number, size in enumerate(late)]
    moments.append(owned(1000, 300 * MIB, heap=None))  # which the table leaves out
    text = growth_sentence(GrowthJudgement(verdict, "arena_slack", SLOPE), observed(*moments))
    assert f"the resident set grew by {grown} since the start" in text


def test_kept_values_name_the_line_of_their_run() -> None:
    observation = replace(observed(owned(90, 50 * MIB)), kept_from="app.py:7")
    judgement = GrowthJudgement("kept", "heap", SLOPE, kept=KeptValues("output 'y'", 1024.0))
    text = growth_sentence(judgement, observation)
    assert text.startswith("the program keeps output 'y' of the run at app.py:7: 1 KiB more after")
    unknown = replace(judgement, kept=KeptValues("output 'y'"))
    text = growth_sentence(unknown, observation)
    assert text.startswith("the program keeps output 'y' of the run at app.py:7. Malloc blocks in")


CALIBRATOR = "onnxruntime/quantization/calibrate.py:698 (called from app.py:7)"


@pytest.mark.parametrize(
    ("site", "growths", "is_of_calibration"),
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
    site: str, growths: dict[GrowingOwner, int], *, is_of_calibration: bool
) -> None:
    (first, slope), *others = (
        (owner, Slope(bytes_per_unit=rate, low=rate, high=rate)) for owner, rate in growths.items()
    )
    judgement = GrowthJudgement("kept", first, slope, tuple(others))
    observation = replace(observed(owned(90_000, 205 * MIB)), kept_from=site)
    text = growth_sentence(judgement, observation)
    cause = f"{CALIBRATORS_KEEP}: about "
    assert text.startswith(cause) == is_of_calibration
    assert (
        "CalibStridedMinMax" in growth_advice(judgement, observation, None)
    ) == is_of_calibration
    if is_of_calibration:
        grow = f"The runs are at {site}. {OWNER_LABELS[first].capitalize()} grow by"
        assert grow in text
        assert "; 1 GiB after" in text
        # Of few samples little is kept.
        few = replace(observed(owned(150, 205 * MIB)), kept_from=site)
        kept = format_size(150 * sum(growths.values()))
        assert growth_sentence(judgement, few) == (
            f"{cause}{kept} in 150 runs, of 205 MiB of the process. The runs are at {site}"
            f". That is little of it. {CALIBRATORS_HAVE}"
        )
        assert growth_advice(judgement, few, None) == ""


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
        weights = onnx.load(quantized).graph.initializer
        return [
            float(numpy_helper.to_array(each).max())
            for each in sorted(weights, key=lambda each: each.name)
            if each.name.endswith("_scale")
        ]

    whole = scales()
    assert kept == [6]
    assert scales(CalibStridedMinMax=2) == whole
    assert kept == [2, 2, 2]
    assert scales(CalibMaxIntermediateOutputs=4) != whole  # without the largest sample


def test_undecided_growth_has_its_rate() -> None:
    moments = [owned(run, run * MIB) for run in range(100, 124)]
    observation = replace(observed(*moments), unit="second")
    slope = Slope(bytes_per_unit=7.5 * MIB, low=7 * MIB, high=8 * MIB)
    text = growth_sentence(GrowthJudgement("undecided", "heap", slope), observation)
    assert "(malloc blocks in use), by 7.5 MiB a second, and had not stopped after" in text


def test_kept_sessions_have_a_size() -> None:
    moments = [owned(run, (50 + run * 49 // 5) * MIB, sessions=run) for run in (1, 10, 20, 30)]
    text = growth_sentence(GrowthJudgement("kept", "sessions", SLOPE), observed(*moments))
    assert "sessions (1 at the start, 30 at the end), 9.8 MiB a session: they grow" in text
    same = [owned(run, 50 * MIB, sessions=2) for run in (1, 10)]
    assert "a session" not in growth_sentence(
        GrowthJudgement("kept", "sessions", SLOPE), observed(*same)
    )


def test_no_growth_states_what_would_not_be_seen() -> None:
    moments = [owned(run, 50 * MIB) for run in (1, 100, 200, 612)]
    text = growth_sentence(GrowthJudgement("flat"), observed(*moments))
    assert text == (
        "no growth: the resident set is 50 MiB after 612 runs. Growth below 1 KiB a run of Python"
        " objects, or 2 KiB of stacks and private mappings, would not be seen"
    )
    assert growth_sentence(GrowthJudgement("flat"), observed(moments[0])).endswith("after 1 run")


def test_all_owners_that_grow_are_named_and_count_until_1_gib() -> None:
    three = Slope(bytes_per_unit=3072.0, low=3072.0, high=3072.0)
    observation = observed(Moment(run=90, time_s=1.0, resident_bytes=MIB))
    alone = growth_sentence(GrowthJudgement("leak", "python", three), observation)
    assert alone.endswith("Python objects grow by 3 KiB a run; 1 GiB after 349,525 runs")
    both = growth_sentence(
        GrowthJudgement("leak", "python", three, (("heap", SLOPE),)), observation
    )
    assert both.endswith(
        "grow by 3 KiB a run, malloc blocks in use by 1 KiB a run; 1 GiB after 262,144 runs"
    )


def at_inputs(run: int, resident: int, slack: int, largest: LargestInput | None) -> Moment:
    return Moment(
        run=run,
        time_s=run / 100,
        resident_bytes=resident * MIB,
        owners=(
            OwnerBytes(kind="arena", bytes=slack * MIB),
            OwnerBytes(kind="other_heap", bytes=(resident - slack) * MIB),
        ),
        heap_bytes=0,
        arena_used_bytes=0,
        largest_input=largest,
    )


SHORT = LargestInput(run=1, bytes=800, shapes={"text": (1, 100)})
LONG = LargestInput(run=21, bytes=12_000, shapes={"text": (1, 1500)})


@pytest.mark.parametrize(
    ("sizes", "largest", "when"),
    [
        ((210, 230, 2040, 2040), LONG, "when the largest input came (run 21: text 1×1500)"),
        # The rise was before the largest input.
        ((210, 2000, 2040, 2040), LONG, "with new largest inputs (the last one in run 21: text"),
        ((210, 230, 2040, 2040), None, "with new largest inputs"),
    ],
)
def test_a_high_water_mark_names_the_run_that_caused_it(
    sizes: tuple[int, ...], largest: LargestInput | None, when: str
) -> None:
    moments = [
        at_inputs(10 * number, size, size - 190, largest if number > 1 else SHORT)
        for number, size in enumerate(sizes, 1)
    ]
    text = growth_sentence(GrowthJudgement("high_water", "arena_slack", SLOPE), observed(*moments))
    assert text.startswith(f"no leak: the process grew from 210 MiB to 1.99 GiB {when}")
    assert text.endswith(", and stays there: 1.81 GiB is free arena memory")


def patterned(run: int, patterns: int | None, resident: int = 50) -> Moment:
    return msgspec.structs.replace(
        owned(run, resident * MIB),
        patterns=patterns,
        pattern_bytes=None if patterns is None else 1024 * patterns,
    )


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (
            (1, 40, 81),
            "80 KiB of memory patterns: onnxruntime keeps one of 1 KiB for each combination of"
            " input sizes (80 more)",
        ),
        ((1, None, 81), "80 KiB of memory patterns"),
        ((1, 5, 8), ""),
        ((8, 8, 8), ""),
        ((None, None, None), ""),
    ],
)
def test_memory_patterns_are_noted_if_they_grow(counts: tuple[int | None, ...], text: str) -> None:
    note = pattern_note([patterned(run, count) for run, count in enumerate(counts)])
    assert note.startswith(text)
    assert bool(note) == bool(text)
    assert ("enable_mem_pattern = False" in note) == bool(text)


def test_memory_patterns_of_more_sessions_are_not_noted() -> None:
    moments = [
        msgspec.structs.replace(patterned(run, 40 * arenas), arenas=arenas)
        for run, arenas in ((1, 1), (2, 2))
    ]
    assert pattern_note(moments) == ""


@pytest.mark.parametrize(
    ("end", "other"),
    [
        (60, ". Most of the growth is other memory: arena slack grew by 60 MiB since the start"),
        (0, ""),
    ],
)
def test_a_leak_that_is_not_most_of_the_growth_names_what_is(end: int, other: str) -> None:
    moments = [at_inputs(run, 190 + slack, slack, None) for run, slack in ((1, 0), (90, end))]
    text = growth_sentence(GrowthJudgement("leak", "heap", SLOPE), observed(*moments))
    assert (
        text
        == f"a leak: malloc blocks in use grow by 1 KiB a run; 1 GiB after 1,048,576 runs{other}"
    )
