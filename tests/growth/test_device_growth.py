"""Verdicts on the memory of a GPU: histories whose growth is known, and what nearly looks alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memdiag.growth.device_growth import device_growth, device_notes
from memdiag.growth.growth_record import growth_record
from memdiag.growth.observation import GrowthObservation
from memdiag.records.growth import DeviceGrowth, LargestInput
from memdiag.units import GIB, KIB, MIB
from tests.growth.histories import (
    ALL_SOURCES,
    CONTEXT_BYTES,
    device_moment,
    moment,
    observed,
    owned_moment,
)
from tests.snapshots import assert_approved

APPROVED = Path(__file__).parent / "approved"
RUNS = [1, *range(100, 1001, 75)]  # 14 moments; the warm-up ends at 100
WITHOUT_NVML = ALL_SOURCES - {"NVML"}
ARENA_ONLY = {"arena"}
DEVICE_ONLY = {"cudaMemGetInfo"}

Figure = Callable[[int], int]


def history(
    *,
    caller_keeps_nothing: bool = True,
    sources: Any = ALL_SOURCES,
    largest: Figure | None = None,
    sessions: Figure | None = None,
    new_largest: frozenset[int] = frozenset(),
    unit: str = "run",
    **figures: Figure,
) -> GrowthObservation:
    """Return an observation whose `figures` of `device_moment` are functions of the run."""
    moments = (
        owned_moment(
            run,
            60 * MIB,
            device=device_moment(
                sources=sources, **{name: value(run) for name, value in figures.items()}
            ),
            sessions=None if sessions is None else sessions(run),
            largest_input=largest and LargestInput(run=1, bytes=largest(run), shapes={}),
        )
        for run in RUNS
    )
    return observed(
        moments, caller_keeps_nothing=caller_keeps_nothing, new_largest=new_largest, unit=unit
    )


def judged(**options: Any) -> DeviceGrowth:
    growth = device_growth(history(**options))
    assert growth is not None
    return growth


def step(size: int, at: int) -> Figure:
    return lambda run: 128 * MIB + size * (run >= at)


def steps(size: int) -> Figure:
    return lambda run: 128 * MIB + size * (run // 75)


def sawtooth(run: int) -> int:
    return 128 * MIB + 64 * MIB * ((run // 75 + 1) % 2)


@pytest.mark.parametrize(
    ("figures", "verdict", "part"),
    [
        pytest.param({}, "flat", None, id="steady"),
        pytest.param({"arena": sawtooth}, "flat", None, id="sawtooth"),
        pytest.param(
            {"arena": lambda run: sawtooth(run) + MIB * run},
            "leak",
            "arena",
            id="sawtooth that rises",
        ),
        # One region came, or one comes each time; neither is in use.
        pytest.param({"empty": step(256 * MIB, 300)}, "plateau", "empty_arena", id="region"),
        pytest.param({"empty": steps(32 * MIB)}, "undecided", "empty_arena", id="regions"),
        # A handle of another thread, once or of each thread.
        pytest.param({"cublas": step(72 * MIB, 2)}, "plateau", "libraries", id="thread"),
        pytest.param({"cublas": steps(72 * MIB)}, "leak", "libraries", id="threads that stay"),
        pytest.param({"arena": lambda run: 4 * KIB * run}, "leak", "arena", id="values"),
        pytest.param({"arena": lambda run: 256 * run}, "leak", "arena", id="small values"),
        pytest.param(
            {"arena": lambda run: MIB * min(run, 400)}, "plateau", "arena", id="values until 400"
        ),
        pytest.param({"rest": lambda run: 64 * KIB * run}, "leak", "rest", id="other memory"),
        pytest.param({"rest": step(MIB, 400)}, "flat", None, id="a page of other memory"),
        pytest.param({"others": lambda run: MIB * run}, "flat", None, id="another process"),
    ],
)
@pytest.mark.parametrize("sources", [ALL_SOURCES, WITHOUT_NVML], ids=["NVML", "CUPTI"])
def test_the_part_of_the_growth_decides(
    figures: dict[str, Figure], verdict: str, part: str | None, sources: Any
) -> None:
    growth = judged(sources=sources, **figures)
    assert (growth.verdict, growth.part) == (verdict, part)
    assert growth.basis == ("process" if "NVML" in sources else "allocations")
    assert growth.library == ("cuBLAS" if part == "libraries" else "")
    assert growth.is_leak_or_kept == (verdict == "leak")


def test_the_slope_is_that_of_the_part_after_the_warm_up() -> None:
    growth = judged(arena=lambda run: 4096 * run, cublas=lambda run: 128 * MIB + MIB * (run > 50))
    assert growth.slope is not None
    assert growth.slope.bytes_per_unit == 4096
    assert growth.grown_bytes == 4096 * 924 + MIB  # the last third counts, not the last moment


def test_the_library_that_grows_after_the_warm_up_is_named() -> None:
    moments = [
        owned_moment(run, 60 * MIB, device=device_moment(cublas=128 * MIB + 512 * run))
        for run in RUNS
    ]
    for index, reading in enumerate(moments):
        assert reading.device is not None
        assert reading.device.libraries is not None
        reading.device.libraries["cuDNN"] = 100 * MIB * (index > 0)  # a lot, in the warm-up
    growth = device_growth(observed(moments))
    assert growth is not None
    assert (growth.verdict, growth.library) == ("leak", "cuBLAS")


@pytest.mark.parametrize(
    ("keeps_nothing", "sessions", "verdict", "part"),
    [
        (True, None, "leak", "arena"),
        (False, None, "kept", "arena"),
        (False, lambda run: 1, "kept", "arena"),
        (False, lambda run: 1 + run // 75, "kept", "sessions"),
    ],
    ids=["model", "program", "one session", "more and more sessions"],
)
@pytest.mark.parametrize("sources", [ALL_SOURCES, ARENA_ONLY], ids=["all", "arena"])
def test_values_and_sessions_of_a_program_are_kept(
    keeps_nothing: bool, sessions: Figure | None, verdict: str, part: str, sources: Any
) -> None:
    growth = judged(
        arena=lambda run: 128 * MIB + 4096 * run,
        caller_keeps_nothing=keeps_nothing,
        sessions=sessions,
        sources=sources,
    )
    assert (growth.verdict, growth.part) == (verdict, part)


LARGEST = frozenset({1, 175, 460, 710})  # one is the run of a moment


@pytest.mark.parametrize(
    ("empty", "options", "verdict", "is_advised"),
    [
        # Regions at new largest inputs: of a model these are runs, of a program figures of moments.
        (lambda run: sum(run >= at for at in LARGEST), {"new_largest": LARGEST}, "high_water", 1),
        (lambda run: run // 250, {"largest": lambda run: 9 + run // 250}, "high_water", 1),
        # Pieces do not fit inputs that are no larger.
        (lambda run: sum(run >= at for at in (300, 520)), {"new_largest": LARGEST}, "plateau", 1),
        (lambda run: run // 250, {"new_largest": frozenset({1})}, "undecided", 1),
        (lambda run: run // 250, {"largest": lambda run: 9 + run // 800}, "undecided", 1),
        (lambda run: sum(run >= at for at in (300, 520)), {}, "plateau", 0),
    ],
    ids=[
        "new largest inputs",
        "new largest inputs of a program",
        "pieces that do not fit",
        "regions again and again",
        "regions again and again of a program",
        "inputs of one size",
    ],
)
def test_regions_of_the_arena_are_told_apart_by_the_inputs_with_which_they_come(
    empty: Figure, options: dict[str, Any], verdict: str, is_advised: int
) -> None:
    growth = judged(empty=lambda run: 128 * MIB * (1 + empty(run)), **options)
    assert (growth.verdict, growth.part) == (verdict, "empty_arena")
    assert ("gpu:0" in growth.advice) == bool(is_advised)
    assert ("did not fit" in growth.sentence) == bool(is_advised and verdict != "high_water")


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({}, "flat"),
        ({"others": lambda run: MIB * run}, "undecided"),
        ({"arena": lambda run: MIB * run}, "undecided"),  # looks the same
        ({"others": step(300 * MIB, 300)}, "plateau"),
    ],
    ids=["steady", "another process", "a leak", "another process once"],
)
def test_the_whole_device_is_never_a_leak(figures: dict[str, Figure], verdict: str) -> None:
    growth = judged(sources=DEVICE_ONLY, **figures)
    assert (growth.basis, growth.verdict) == ("device", verdict)
    assert not growth.is_leak_or_kept
    assert "all processes" in growth.sentence
    assert ("Other processes" in growth.sentence) == (verdict == "undecided")
    assert ("NVML or CUPTI" in growth.advice) == (verdict == "undecided")


def test_of_the_arena_alone_the_rest_is_noted_and_not_judged() -> None:
    growing = history(sources={"arena", "cudaMemGetInfo"}, cublas=lambda run: MIB * run)
    growth = device_growth(growing)
    assert growth is not None
    assert (growth.basis, growth.verdict) == ("arena", "flat")
    (note,) = device_notes(growing)
    assert "only onnxruntime's arena is judged" in note
    assert note.endswith("All processes had 829 MiB there at the start, and 1.79 GiB at the end")
    (note,) = device_notes(history(sources=ARENA_ONLY))
    assert "All processes" not in note
    assert device_notes(history(sources=WITHOUT_NVML)) == ()


@pytest.mark.parametrize(
    ("process", "verdict"),
    [(lambda run: 0, "flat"), (lambda run: 30 * MIB * (run // 75), "leak")],
    ids=["back to the same", "more after each"],
)
def test_reloads_that_return_to_the_same_memory_are_flat(process: Figure, verdict: str) -> None:
    growth = judged(
        unit="reload",
        arena=lambda run: 0,
        empty=lambda run: 0,
        cublas=lambda run: 0,
        rest=process,
        sources=ALL_SOURCES - {"arena"},  # no arena is there between reloads
    )
    assert growth.verdict == verdict
    assert "reload" in growth.sentence
    if verdict == "flat":
        assert "560 MiB" in growth.sentence
        assert CONTEXT_BYTES == 560 * MIB


def test_without_a_gpu_nothing_is_judged() -> None:
    nothing = observed([moment(run) for run in RUNS])
    assert device_growth(nothing) is None
    assert device_notes(nothing) == ()
    assert device_growth(history(sources=())) is None


def test_few_moments_are_undecided() -> None:
    short = observed([moment(run, device=device_moment(arena=MIB * run)) for run in RUNS[:5]])
    growth = device_growth(short)
    assert growth is not None
    assert (growth.verdict, growth.part, growth.slope) == ("undecided", None, None)
    assert "too few readings in 325 runs" in growth.sentence


def test_a_record_has_both_verdicts_and_states_a_leak_of_the_gpu_first() -> None:
    arguments: dict[str, Any] = {
        "subject": "m.onnx",
        "kind": "model",
        "runs": 1000,
        "warm_up_runs": 100,
        "warm_up_s": 1.0,
        "onnxruntime": None,
    }
    leak = growth_record(history(arena=lambda run: 4096 * run), **arguments)
    assert leak.verdict == "flat"
    assert leak.device is not None
    assert leak.stated_first is leak.device
    assert (leak.is_leak_or_kept, leak.is_host_leak_or_kept) == (True, False)
    clean = growth_record(history(), **arguments)
    assert clean.device is not None
    assert clean.stated_first is clean
    assert not clean.is_leak_or_kept
    no_gpu = growth_record(observed([owned_moment(run, 60 * MIB) for run in RUNS]), **arguments)
    assert no_gpu.device is None
    assert no_gpu.stated_first is no_gpu
    assert not no_gpu.is_leak_or_kept


CASES: dict[str, dict[str, Any]] = {
    "flat, by NVML": {},
    "flat, by CUPTI": {"sources": WITHOUT_NVML},
    "flat, by the arena": {"sources": ARENA_ONLY},
    "flat, of the whole device": {"sources": DEVICE_ONLY},
    "a handle of another thread": {"cublas": step(72 * MIB, 2)},
    "a region, with inputs of one size": {"empty": step(256 * MIB, 300)},
    "a region, as pieces did not fit": {"empty": step(256 * MIB, 300), "new_largest": LARGEST},
    "a region at a new largest input": {"empty": step(256 * MIB, 175), "new_largest": LARGEST},
    "regions again and again": {"empty": steps(32 * MIB)},
    "the whole device grows": {"others": lambda run: MIB * run, "sources": DEVICE_ONLY},
    "a leak of the model": {"arena": lambda run: 4096 * run},
    "a leak of two parts": {"arena": lambda run: 4096 * run, "rest": lambda run: 2 * MIB * run},
    "a leak of memory that is not told apart": {
        "rest": lambda run: 2 * MIB * run,
        "sources": {"NVML"},
    },
    "kept values": {"arena": lambda run: 4096 * run, "caller_keeps_nothing": False},
    "kept sessions": {
        "arena": lambda run: GIB // 75 * run,
        "sessions": lambda run: 1 + run // 75,
        "caller_keeps_nothing": False,
    },
}


def test_sentences_and_advice_are_those_that_were_approved() -> None:
    lines = []
    for name, options in CASES.items():
        growth = judged(**options)
        lines += ["", f"[{name}]", growth.sentence, growth.advice or "-"]
    assert_approved("\n".join(lines[1:]), APPROVED / "device_sentences.txt")
