"""The largest size that fits: the search on known memory, and the sizes at which a model runs."""

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from memdiag.api.estimating.fit import NEAR, ProcessPeaks, find_fit, searched_dimensions
from memdiag.api.estimating.fit_trial import fit_at_running_sizes, with_next_size
from memdiag.api.estimating.sizes import SizeGrid
from memdiag.model.dimensions import InputAxis
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import Fit
from memdiag.runner.try_inputs import InputTrial
from memdiag.units import GIB, KIB, MIB


def grid(*names: str, first: int = 128, steps: Mapping[str, list[int]] | None = None) -> SizeGrid:
    """Return a grid whose dimensions each are an axis of an input; those called batch count it."""
    return SizeGrid(
        dimensions=tuple(
            Dimension(
                name=name,
                size=first,
                source="chosen",
                role="batch" if name.startswith("batch") else "sequence",
                reason="",
            )
            for name in names
        ),
        notes=(),
        steps=steps or {},
        inputs={
            name: (InputAxis(input=name, position=0, rank=1, size=None, symbol=name),)
            for name in names
        },
        totals={},
    )


def fit(peak: Callable[[int], int | None], limit: int, first: int = 128) -> Fit:
    """Return what fits if the most probable peak is `peak`, in an interval of 10 %."""

    def peaks_at(sizes: Mapping[str, int]) -> ProcessPeaks | None:
        usual = peak(sizes["n"])
        return None if usual is None else ProcessPeaks(usual * 9 // 10, usual, usual * 11 // 10)

    return find_fit(grid("n", first=first), limit, peaks_at)


def jump(size: int) -> int:
    """Return a peak of 1 MiB a size that doubles at 500."""
    return size * MIB * (1 + (size >= 500))


def dip(size: int) -> int:
    """Return a peak of 1 MiB a size that is 100 MiB higher from 180 to 189."""
    return (size + 100 * (180 <= size < 190)) * MIB


@pytest.mark.parametrize("first", [1, 128, 5000])
@pytest.mark.parametrize(
    ("peak", "limit", "surely", "probably", "too_large"),
    [
        # A size fits with a size that is 6 or 3 % larger, so that it does if growth comes earlier.
        (lambda n: n * MIB, GIB, 878, 995, 1207),
        (lambda n: 100 * MIB, 89 * MIB, None, None, 1),
        (lambda n: 100 * MIB, 91 * MIB, None, None, None),
        (lambda n: 100 * MIB, 101 * MIB, None, 1 << 20, None),
        (lambda n: 100 * MIB, 120 * MIB, 1 << 20, 1 << 20, None),
        # The jump comes at a size that is at most 6 % larger or smaller than 500.
        (jump, 700 * MIB, 471, 485, 530),
        # A size above one that does not fit is not called certain.
        (dip, 240 * MIB, 169, 174, 284),
        # The shapes are not known from 200 on.
        (lambda n: n * MIB if n < 200 else None, GIB, 199, 199, None),
    ],
)
def test_what_fits(
    peak: Callable[[int], int | None],
    limit: int,
    surely: int | None,
    probably: int | None,
    too_large: int | None,
    first: int,
) -> None:
    found = fit(peak, limit, first)
    assert (found.surely, found.probably, found.too_large) == (surely, probably, too_large)


def test_sizes_below_the_first_point_may_be_unknown() -> None:
    found = fit(lambda n: n * MIB if n >= 100 else None, GIB)
    assert (found.surely, found.probably, found.too_large) == (878, 995, 1207)


@pytest.mark.parametrize("at_once", [1, 1000])
def test_few_sizes_are_estimated_however_many_fit(at_once: int) -> None:
    """The peak is linear, or grows in steps; 300,000 and more sizes fit."""
    asked: Counter[int] = Counter()

    def peak(size: int) -> int:
        asked[size] += 1
        return -(-size // at_once) * at_once * 13 * KIB

    found = fit(peak, 4 * GIB)
    assert found.surely is not None
    assert found.surely * 1.1 * (1 + NEAR) == pytest.approx(4 * GIB / (13 * KIB), rel=1e-2)
    assert max(asked.values()) == 1
    assert len(asked) < 300


@pytest.mark.parametrize(
    ("names", "steps", "searched"),
    [
        (("tokens", "batch"), {}, ("batch",)),
        (("tokens", "batch_1", "batch_2"), {}, ("batch_1", "batch_2")),
        (("tokens", "past"), {}, ("tokens",)),
        (("batch", "tokens", "past"), {"past": [1], "tokens": [1, 2]}, ("tokens",)),
        ((), {}, ()),
    ],
)
def test_the_batch_is_searched_unless_another_dimension_has_several_sizes(
    names: tuple[str, ...], steps: dict[str, list[int]], searched: tuple[str, ...]
) -> None:
    assert searched_dimensions(grid(*names, steps=steps)) == searched


@pytest.mark.parametrize(
    ("runs", "surely", "probably", "fails_at"),
    [
        (lambda n: n <= 512, 512, 512, 513),  # as a table of positions
        (lambda n: n <= 514, 514, 514, 515),
        (lambda n: n <= 830, 800, 830, 831),
        (lambda n: n % 32 == 0, 800, 992, 993),  # as a network of several scales
        (lambda n: n % 64 == 0, 768, 960, 961),
        (lambda n: n == 1, 1, 1, 2),
    ],
)
def test_sizes_are_those_that_run(
    runs: Callable[[int], bool], surely: int, probably: int, fails_at: int
) -> None:
    asked = []

    def tried(size: int) -> bool:
        asked.append(size)
        return runs(size)

    found = Fit(limit_bytes=GIB, dims=("n",), surely=800, probably=1003, too_large=1100)
    found = fit_at_running_sizes(found, 1003, "an index is out of bounds", tried)
    assert (found.surely, found.probably, found.fails_at) == (surely, probably, fails_at)
    assert (found.trial, found.too_large) == ("ran", 1100)
    assert len(asked) < 25


def test_a_model_that_runs_at_no_size_fails() -> None:
    found = Fit(limit_bytes=GIB, dims=("n",), surely=800, probably=1003)
    found = fit_at_running_sizes(found, 1003, "an index is out of bounds", lambda size: False)
    assert (found.trial, found.problem) == ("fails", "an index is out of bounds")


@pytest.mark.parametrize(
    ("trial", "fails_at"),
    [
        (InputTrial("an index is out of bounds"), 513),
        (InputTrial(None), None),
        (InputTrial("killed", has_answer=False), None),
    ],
)
def test_the_size_after_the_last_known_one_is_tried(
    trial: InputTrial, fails_at: int | None
) -> None:
    found = with_next_size(Fit(limit_bytes=GIB, dims=("n",), surely=512, probably=512), trial)
    assert found.fails_at == fails_at
