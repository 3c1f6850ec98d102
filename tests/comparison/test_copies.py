"""Copies of weights that one X-ray has and the other has not, in words."""

import pytest

from memdiag.comparison.copies import copy_change_text, copy_changes, phase_of_copy_change
from memdiag.records.attribution import Backing, Copy
from memdiag.records.comparison import CopyChange
from memdiag.units import MIB
from tests.reports.attributions import attribution, copy

Copies = tuple[Copy, ...]


def original(size: int = 64 * MIB, name: str = "w", **changes: object) -> Copy:
    return copy("original", size, name, **changes)


def packed(size: int = 64 * MIB, name: str = "w", node: str = "lm/MatMul") -> Copy:
    return copy("packed_fp32", size, name, made_by=f"prepack · {node}")


def mapped(name: str, file: str, offset: int) -> Copy:
    return original(name=name, backing=Backing(kind="file", file=file, offset=offset))


W, PACKED = original(), packed()
MAKER = "ConstantFolding · lm/Transpose"
TRANSPOSED = copy("transposed", 64 * MIB, "w", kind="transposed", made_by=MAKER)
BOTH = original(weights=("w", "w_again"))
MAPPED = mapped("w", "d", 64)
SMALL = tuple(packed(MIB // 4, f"s{index}", f"m{index}") for index in range(8))


def changes(before: Copies, after: Copies) -> tuple[CopyChange, ...]:
    pair = attribution(*before), attribution(*after)
    return copy_changes(*pair, labels=("a", "b"), min_bytes=MIB)


@pytest.mark.parametrize(
    ("before", "after", "count", "size", "text"),
    [
        ((W,), (W, PACKED), 1, 64, "lm/MatMul packs w in b"),
        ((W, PACKED), (W,), -1, -64, "lm/MatMul packs w in a"),
        ((PACKED,), (PACKED, W), 1, 64, "b keeps w as it is"),
        ((PACKED, W), (PACKED,), -1, -64, "a keeps w as it is"),
        ((W,), (W, TRANSPOSED), 1, 64, f"b has a transposed copy of w, made by {MAKER}"),
        ((W, TRANSPOSED), (W,), -1, -64, f"a has a transposed copy of w, made by {MAKER}"),
        ((W,), (W, W, W), 2, 128, "b keeps w as it is (and 1 more such copy)"),
        ((W, PACKED), (W, packed(96 * MIB)), 0, 32, "the packed copy of w is larger in b"),
        ((W, packed(96 * MIB)), (W, PACKED), 0, -32, "the packed copy of w is smaller in b"),
        ((W,), (original(in_use=False),), -1, -64, "a keeps w as it is"),
        # Equal content under a further name is told as that name.
        ((W,), (BOTH, BOTH), 1, 64, "b keeps w_again as it is, which is equal to w"),
        ((BOTH, BOTH), (W,), -1, -64, "a keeps w_again as it is, which is equal to w"),
    ],
)
def test_a_copy_that_came_or_went_is_told_with_who_made_it(
    before: Copies, after: Copies, count: int, size: int, text: str
) -> None:
    (change,) = changes(before, after)
    assert (change.from_, change.to) == ("a", "b")
    assert (change.count, change.bytes) == (count, size * MIB)
    assert copy_change_text(change) == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((W, PACKED), (PACKED, W), id="the order"),
        pytest.param((W, PACKED), (W, packed(64 * MIB + 4096)), id="nearly the same size"),
        pytest.param((W,), (W, original(in_use=False)), id="a freed copy"),
        pytest.param((W,), (W, SMALL[0]), id="a small copy"),
        pytest.param((W,), (original(name="renamed"),), id="another name"),
        pytest.param((W,), (BOTH,), id="a further name"),
        pytest.param((MAPPED,), (mapped("v", "e", 0),), id="another file"),
    ],
)
def test_what_is_no_change(before: Copies, after: Copies) -> None:
    assert changes(before, after) == ()


def test_large_groups_of_small_copies_are_joined() -> None:
    (change,) = changes((W,), (W, *SMALL))
    assert (change.kind, change.count, change.bytes) == ("packed", 8, 2 * MIB)
    assert sorted(change.weights) == [f"s{index}" for index in range(8)]


def test_a_weight_of_another_size_is_another_weight() -> None:
    renamed = original(65 * MIB, "renamed")
    assert {change.count for change in changes((W,), (renamed,))} == {1, -1}
    # Another kind of copy is another matter.
    assert len(changes((W,), (BOTH, BOTH, PACKED))) == 2


@pytest.mark.parametrize(
    ("made_by", "phase"),
    [
        ("parse", "parse"),
        ("ConstantFolding · n", "constant_fold"),
        ("prepack · n", "prepack"),
        ("kernel · n", "first_run"),
        ("NchwcTransformer · n", "optimize"),
        (None, None),
    ],
)
def test_phases_are_told_by_the_maker(made_by: str | None, phase: str | None) -> None:
    (change,) = changes((), (original(made_by=made_by),))
    assert phase_of_copy_change(change) == phase


def test_a_mapped_copy_is_another_copy_than_an_anonymous_one() -> None:
    found = changes((W,), (MAPPED,))
    assert {(one.bytes, one.file, copy_change_text(one)) for one in found} == {
        (-64 * MIB, "", "a keeps w as it is"),
        (64 * MIB, "d", "b maps w from d"),
    }
    # Pages become resident when they are read, in any phase.
    assert {phase_of_copy_change(one) for one in found} == {"parse", None}
