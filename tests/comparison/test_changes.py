"""What differs between two columns, what may be chance, and what makes it certain.

The causes of a difference are in test_causes.py.
"""

import msgspec
import pytest

from memdiag.comparison.changes import column_changes, interleaved_ratio, is_decided, undecided_note
from memdiag.comparison.comparable import ComparableFigures
from memdiag.defaults import PINNED_ENVIRONMENT
from memdiag.records.comparison import ColumnFigures, ColumnGrowth, ComparisonColumn, GraphSize
from memdiag.units import MIB
from tests.comparison.columns import (
    changes_between,
    column,
    growth,
    measured,
    mib,
    phase,
    retaining,
    seconds,
    with_profile,
    with_session,
)
from tests.reports.attributions import attribution, copy

W = copy("original", 500 * MIB, "w")
PACKED = copy("packed_fp32", 500 * MIB, "w", made_by="prepack · lm/MatMul")


def total(peak: float = 1000, steady: float = 500, **more: object) -> ColumnFigures:
    """Return figures without phases."""
    return measured(peak, steady, **{"phases": (), **more})  # type: ignore[arg-type]


def once(peak: float = 1000, steady: float = 500) -> ColumnFigures:
    return total(peak, steady, times=1, spread=0)


def metrics(before: ComparisonColumn, after: ComparisonColumn) -> list[str]:
    return [change.metric for change in changes_between(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(measured(), measured(), [], id="itself"),
        pytest.param(total(spread=60), total(1100, 600, spread=60), [], id="ranges overlap"),
        pytest.param(total(), total(1019, 519), [], id="below 2 % of the peak"),
        pytest.param(total(), total(1025, 525), ["steady", "peak"], id="above 2 % of the peak"),
        pytest.param(once(), once(1000, 530), [], id="once: below 5 % of the peak"),
        # 6 MiB of these profiles are retained by malloc: as much may be chance.
        pytest.param(once(), once(1000, 560), ["steady"], id="once: above 5 % and malloc"),
        pytest.param(
            measured(phases=(phase("parse", 500, 500),)),
            measured(phases=(phase("prepack", 500, 500),)),
            [],
            id="phases that only one has",
        ),
        pytest.param(measured(), measured(load=1.05), [], id="5 % slower to load"),
        pytest.param(measured(), measured(load=2.0), ["load"], id="twice as slow to load"),
        pytest.param(measured(), measured(load=2.0, times=1), [], id="loaded once"),
    ],
)
def test_figures_differ_beyond_chance(
    before: ColumnFigures, after: ColumnFigures, expected: list[str]
) -> None:
    assert metrics(column("a", before), column("b", after)) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"ratio": (1.5, 1.2, 1.8)}, ["latency"]),
        ({"ratio": (0.5, 0.3, 0.8)}, ["latency"]),
        ({"ratio": (1.5, 0.9, 2.5)}, []),
        ({"ratio": (1.05, 1.04, 1.06)}, []),
        ({"largest_difference": 1e-6}, []),
        ({"figures": msgspec.structs.replace(measured(), load=seconds(2.0, 1.5))}, []),
    ],
)
def test_a_column_differs_beyond_doubt(after: dict[str, object], expected: list[str]) -> None:
    assert metrics(column("a"), column("b", **after)) == expected  # type: ignore[arg-type]


def test_a_difference_has_its_size_its_ratio_and_its_copies() -> None:
    before = column("1.24.4", measured(1500, 1000), attribution=attribution(W))
    after = column("1.31.1", measured(1500, 1500), attribution=attribution(W, PACKED))
    (steady, kept), copies = column_changes(before, after, ComparableFigures())
    assert (steady.metric, steady.bytes, steady.ratio) == ("steady", 500 * MIB, 1.5)
    assert (steady.from_, steady.to) == ("1.24.4", "1.31.1")
    assert (kept.metric, kept.phase, kept.bytes) == ("kept", "prepack", 500 * MIB)
    assert [change.weights for change in copies] == [("w",)]
    assert changes_between(after, before)[0].bytes == -500 * MIB
    (load,) = changes_between(column("a"), column("b", measured(load=2.0)))
    assert (load.ratio, load.bytes, load.why) == (2.0, 0, "mostly in parse")


@pytest.mark.parametrize(
    ("steady", "retained", "is_undecided", "is_change"),
    [
        (530, 6, False, False),
        (553, 6, False, True),  # both retain as much: it is something else
        (553, 20, True, False),
        (575, 20, False, True),
    ],
)
def test_a_difference_that_may_be_memory_that_malloc_retains_is_noted(
    steady: float, retained: int, *, is_undecided: bool, is_change: bool
) -> None:
    before = column("a", once())
    after = retaining(column("b", once(1000, steady)), retained)
    note = undecided_note(before, after, ComparableFigures())
    start = "a, b: they differ in steady by +53 MiB. This may be chance"
    assert note.startswith(start) == bool(note) == is_undecided
    assert not undecided_note(before, after, ComparableFigures(excluded={"steady": "of a reason"}))
    assert metrics(before, after) == ["steady"] * is_change


@pytest.mark.parametrize(
    ("times", "steady", "said"),
    [((5, 5), 515, ""), ((1, 5), 553, "a was measured once"), ((1, 1), 553, "each was measured")],
)
def test_only_what_was_measured_once_is_said_to_have_been(
    times: tuple[int, int], steady: float, said: str
) -> None:
    before = column("a", total(times=times[0], spread=0))
    after = column("b", total(1000, steady, times=times[1], spread=0))
    note = undecided_note(before, retaining(after, 20), ComparableFigures())
    assert bool(note) is bool(said)
    assert said in note


@pytest.mark.parametrize(
    ("steady", "spread", "load", "decided"),
    [
        (500, 1, 1.0, True),
        (510, 1, 1.0, True),
        (519, 1, 1.0, False),  # 2 % of the peak are 20 MiB
        (519, 19, 1.0, True),  # the ranges overlap
        (540, 1, 1.0, False),
        (600, 1, 1.0, True),
        (600, 30, 1.0, False),
        (500, 1, 2.0, False),
        (500, 1, 1.05, True),
    ],
)
def test_further_processes_are_needed_where_they_may_change_what_differs(
    steady: float, spread: float, load: float, decided: bool
) -> None:
    after = msgspec.structs.replace(total(1000, steady, load=load), steady=mib(steady, spread))
    assert is_decided(column("a", total()), column("b", after)) is decided


@pytest.mark.parametrize("pinned", [True, False])
def test_malloc_retains_nothing_by_chance_where_its_setting_differs(*, pinned: bool) -> None:
    first = with_session(retaining(column("a", once()), 20), environment={})
    environment = PINNED_ENVIRONMENT if pinned else {}
    second = with_session(column("b", once(947, 447)), environment=environment)
    assert metrics(first, second) == ["steady", "peak"] * pinned
    assert bool(undecided_note(first, second, ComparableFigures())) is not pinned


def test_what_malloc_hides_is_no_change_of_the_sum() -> None:
    before, after = (
        retaining(column(label, once()), size) for label, size in (("a", 0), ("b", 80))
    )
    assert metrics(before, after) == []  # 80 MiB less without what malloc retains, but not in all
    assert metrics(before, retaining(column("b", once(1000, 440)), 20)) == ["steady"]


@pytest.mark.parametrize(
    ("are_saved", "command", "certain"),
    [
        (
            True,
            ("memdiag", "profile", "a b.onnx", "--out", "b", "-q"),
            "memdiag profile 'a b.onnx' --env MALLOC_MMAP_THRESHOLD_=131072 --out a-pinned; memdiag"
            " profile 'a b.onnx' --env MALLOC_MMAP_THRESHOLD_=131072 --out b-pinned",
        ),
        (True, (), "Profile both again with MALLOC_"),
        (False, ("memdiag", "profile"), "Measure more often: with --repeats 2"),
    ],
)
def test_a_doubted_difference_has_causes_and_what_makes_it_certain(
    are_saved: bool, command: tuple[str, ...], certain: str
) -> None:
    before = retaining(column("a", once(), attribution=attribution(W, PACKED)), 20)
    after = column("b", once(1000, 447), attribution=attribution(W))
    unpacked = {"session.disable_prepacking": "1"}
    pair = (with_session(before, options={}), with_session(after, options=unpacked))
    first, second = (with_profile(each, command=command) for each in pair)
    note = undecided_note(first, second, ComparableFigures(), are_saved=are_saved)
    assert "-500 MiB, lm/MatMul packs w in a, because of session.disable_prepacking" in note
    assert certain in note
    assert "Compare the models" not in note


def test_a_race_that_the_latencies_contradict_is_not_believed() -> None:
    faster = column("b", ratio=(0.5, 0.3, 0.8))
    assert faster.latency is not None
    as_slow = msgspec.structs.replace(faster.latency, median_s=0.01)
    assert metrics(column("a"), msgspec.structs.replace(faster, latency=as_slow)) == []


def test_two_that_raced_with_the_first_have_the_quotient() -> None:
    before, after = column("b", ratio=(2.0, 1.0, 4.0)), column("c", ratio=(4.0, 3.0, 6.0))
    assert interleaved_ratio(before, after) == (2.0, 0.75, 6.0)
    assert interleaved_ratio(column("a"), before) == (2.0, 1.0, 4.0)
    assert interleaved_ratio(column("a"), column("a")) is None
    assert interleaved_ratio(before, column("c")) is None  # one that could not race


@pytest.mark.parametrize(
    ("largest", "difference", "why"),
    [
        (0.5, "", "an output differs by 5.0e-01 of its largest value"),
        (None, "output y has the shape (1,)", "output y has the shape (1,)"),
        (0.0, "only b has the output z", "only b has the output z"),
        (0.5, "only b has z", "an output differs by 5.0e-01 of its largest value; only b has z"),
    ],
)
def test_outputs_that_differ_are_told(largest: float | None, difference: str, why: str) -> None:
    after = column("b", largest_difference=largest, difference=difference)
    (outputs,) = changes_between(column("a"), after)
    assert (outputs.metric, outputs.why) == ("outputs", why)


def test_a_larger_file_is_told() -> None:
    graph = GraphSize(nodes=12, initializers=4, parameters=2000, saved_bytes=1000 * MIB)
    (disk,) = changes_between(column("a"), column("b", graph=graph))
    assert (disk.metric, disk.bytes) == ("disk", 500 * MIB)
    assert disk.why == "1,000 parameters in a, 2,000 in b"


def test_a_column_that_was_not_measured_has_no_differences() -> None:
    dead = column("a", measured=None)
    for pair in ((dead, column("b")), (column("b"), dead)):
        assert column_changes(*pair, ComparableFigures()) == ((), ())


def test_what_may_not_be_compared_is_not() -> None:
    after = column("b", measured(2000, 1500, load=9.0))
    barred = ComparableFigures(excluded={"load": "they were taken elsewhere"})
    left = {change.metric for change in column_changes(column("a"), after, barred)[0]}
    assert {*metrics(column("a"), after)} - left == {"load"}


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (growth(), growth(1000), (1000, None)),
        (growth(1000), growth(verdict="plateau"), (-1000, None)),
        (growth(1000), growth(1600), (600, 1.6)),
        (growth(1600), growth(1000), (-600, 0.625)),
        # The intervals do not overlap, but malloc may take a little more for each block.
        (growth(1000), growth(1400), None),
        (growth(1000), growth(1000), None),
        (growth(), growth(verdict="high_water"), None),
        (growth(1000), growth(verdict="undecided"), None),
        (growth(1000), None, None),
    ],
)
def test_growth_differs_where_memory_in_use_grows_otherwise(
    before: ColumnGrowth, after: ColumnGrowth | None, change: tuple[int, float | None] | None
) -> None:
    pair = (column("1.20.1", growth=before), column("1.21.0", growth=after))
    expected = [("growth", *change)] if change else []
    assert [(each.metric, each.bytes, each.ratio) for each in changes_between(*pair)] == expected
