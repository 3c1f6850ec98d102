"""The placement: what is on a machine fits, and as many models as possible are placed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.errors import UsageError
from memdiag.records.sweep import PlacedModel, Placement, Sweep, SweepPoint, SweepSeries
from memdiag.sweeps.placement import machine_needed_bytes, parse_machines, place_models
from memdiag.units import GIB

BASELINE = 1


def series(name: str, steady: int, peak: int | None, dims: str = "") -> SweepSeries:
    point = SweepPoint(
        key=f"{name}{dims}",
        digest=name,
        onnxruntime="1.32.0",
        started_s=0.0,
        status="completed",
        peak_bytes=peak,
        steady_bytes=None if peak is None else steady,
    )
    return SweepSeries(model=name, address=name, machine="m", dims=dims, points=(point,))


def place(machines: list[int], *models: SweepSeries, margin: float = 0.0) -> Placement:
    sweep = Sweep(store="store", series=models)
    baselines = {each.points[0].key: BASELINE for each in models}
    return place_models(sweep, machines, baselines, margin=margin)


def names(models: tuple[PlacedModel, ...]) -> list[str]:
    return sorted(model.model for model in models)


def test_all_steady_memory_and_the_largest_rise_must_fit() -> None:
    models = series("a", 9, 19), series("b", 19, 24)
    # (9 + 1) + (19 + 1) steady, and the rise of 10 of a.
    fits = place([40], *models)
    assert fits.machines[0].needed_bytes == 40
    assert names(fits.machines[0].models) == ["a", "b"]
    assert fits.unplaced == ()
    too_small = place([39], *models)
    assert len(too_small.unplaced) == 1


def test_a_margin_is_left_free() -> None:
    assert place([100], series("a", 89, 89), margin=0.1).unplaced == ()
    assert names(place([100], series("a", 90, 90), margin=0.1).unplaced) == ["a"]


def test_the_sizes_with_the_largest_peak_count_and_models_without_figures_do_not() -> None:
    larger = series("a", 49, 79, "batch=8")
    placement = place([100], series("a", 9, 9, "batch=1"), larger, series("failed", 0, None))
    (model,) = placement.machines[0].models
    assert (model.key, model.peak_bytes, model.steady_bytes) == ("abatch=8", 80, 50)


def test_only_requested_models_are_placed() -> None:
    requested, other = series("a", 9, 9), series("b", 9, 9)
    earlier = msgspec.structs.replace(requested.points[0], key="old", peak_bytes=99)
    newer = msgspec.structs.replace(requested.points[0], key="newer", is_requested=False)
    unrequested = msgspec.structs.replace(other.points[0], is_requested=False)
    placement = place(
        [100],
        msgspec.structs.replace(requested, points=(earlier, *requested.points, newer)),
        msgspec.structs.replace(other, points=(unrequested,)),
    )
    assert [model.key for model in placement.machines[0].models] == ["a"]
    assert placement.unplaced == ()


def test_where_not_all_fit_more_small_models_are_placed() -> None:
    models = series("large", 99, 99), *(series(name, 24, 24) for name in "abcd")
    placement = place([100], *models)
    assert names(placement.unplaced) == ["large"]
    assert names(placement.machines[0].models) == list("abcd")


def test_machines_keep_their_order_and_the_largest_is_filled_first() -> None:
    placement = place([50, 100], series("a", 79, 79), series("b", 9, 9))
    assert [names(machine.models) for machine in placement.machines] == [[], ["a", "b"]]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=12),
    machines=st.lists(st.integers(1, 120), min_size=1, max_size=4),
)
def test_what_is_placed_fits_and_nothing_is_lost(
    sizes: list[tuple[int, int]], machines: list[int]
) -> None:
    models = [series(f"m{n}", steady, steady + rise) for n, (steady, rise) in enumerate(sizes)]
    placement = place(machines, *models)
    placed = [model.model for machine in placement.machines for model in machine.models]
    assert sorted((*placed, *names(placement.unplaced))) == sorted(m.model for m in models)
    for machine in placement.machines:
        assert machine.needed_bytes == machine_needed_bytes(machine.models) <= machine.memory_bytes
        for model in placement.unplaced:
            assert machine_needed_bytes([*machine.models, model]) > machine.memory_bytes


def test_machines_are_read_from_text() -> None:
    assert parse_machines("2x8GiB,16 GiB") == (8 * GIB, 8 * GIB, 16 * GIB)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a size"),
        ("0x8GiB", "give 1 to"),
        ("9999x8GiB", "give 1 to"),
        ("2x0", "has no memory"),
        ("2xlarge", "is not a size"),
    ],
)
def test_what_is_no_machine_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_machines(text)
