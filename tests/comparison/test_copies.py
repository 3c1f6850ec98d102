from memdiag.comparison.copies import copy_change_text, copy_changes, phase_of_copy_change
from memdiag.records.attribution import Attribution, Backing, Copy
from memdiag.records.comparison import CopyChange
from memdiag.units import MIB
from tests.reports.attributions import attribution, copy

W = copy("original", 64 * MIB, "w")
PACKED = copy("packed_fp32", 64 * MIB, "w", made_by="prepack · lm/MatMul")
TRANSPOSED = copy(
    "transposed", 64 * MIB, "w", kind="transposed", made_by="ConstantFolding · lm/Transpose"
)


def found(before: Attribution, after: Attribution, min_bytes: int = MIB) -> tuple[CopyChange, ...]:
    return copy_changes(before, after, labels=("a", "b"), min_bytes=min_bytes)


def words(*copies: tuple[tuple[Copy, ...], tuple[Copy, ...]]) -> list[str]:
    ((before, after),) = copies
    return [copy_change_text(one) for one in found(attribution(*before), attribution(*after))]


def test_the_same_copies_are_no_change() -> None:
    assert found(attribution(W, PACKED), attribution(PACKED, W)) == ()


def test_a_copy_that_came_is_told_with_who_made_it() -> None:
    (one,) = found(attribution(W), attribution(W, PACKED))
    assert (one.from_, one.to, one.kind, one.count) == ("a", "b", "packed", 1)
    assert (one.bytes, one.weights) == (64 * MIB, ("w",))
    assert copy_change_text(one) == "lm/MatMul packs w in b"
    assert phase_of_copy_change(one) == "prepack"


def test_a_copy_that_went_is_told() -> None:
    (one,) = found(attribution(W, PACKED), attribution(W))
    assert (one.count, one.bytes) == (-1, -64 * MIB)
    assert copy_change_text(one) == "lm/MatMul packs w in a"


def test_every_kind_has_its_words() -> None:
    assert words(((PACKED,), (PACKED, W))) == ["b keeps w as it is"]
    assert words(((PACKED, W), (PACKED,))) == ["a keeps w as it is"]
    assert words(((W,), (W, TRANSPOSED))) == [
        "b has a transposed copy of w, made by ConstantFolding · lm/Transpose"
    ]
    assert words(((W, TRANSPOSED), (W,))) == [
        "a has a transposed copy of w, made by ConstantFolding · lm/Transpose"
    ]


def test_another_copy_of_the_same_is_a_change() -> None:
    (one,) = found(attribution(W), attribution(W, W, W))
    assert (one.count, one.bytes) == (2, 128 * MIB)
    assert copy_change_text(one) == "b keeps w as it is (and 1 more such copy)"


def test_copies_of_another_size_are_a_change() -> None:
    larger = copy("packed_fp32", 96 * MIB, "w", made_by="prepack · lm/MatMul")
    (one,) = found(attribution(W, PACKED), attribution(W, larger))
    assert (one.count, one.bytes) == (0, 32 * MIB)
    assert copy_change_text(one) == "the packed copy of w is larger in b"
    assert phase_of_copy_change(one) == "prepack"
    (one,) = found(attribution(W, larger), attribution(W, PACKED))
    assert copy_change_text(one) == "the packed copy of w is smaller in b"
    nearly = copy("packed_fp32", 64 * MIB + 4096, "w", made_by="prepack · lm/MatMul")
    assert found(attribution(W, PACKED), attribution(W, nearly)) == ()


def test_freed_copies_are_gone() -> None:
    freed = copy("original", 64 * MIB, "w", in_use=False)
    assert found(attribution(W), attribution(W, freed)) == ()
    (one,) = found(attribution(W), attribution(freed))
    assert one.count == -1


def test_small_groups_are_left_out_and_large_ones_are_joined() -> None:
    small = [copy("packed_fp32", MIB // 4, f"s{i}", made_by=f"prepack · m{i}") for i in range(8)]
    assert found(attribution(W), attribution(W, small[0])) == ()
    (one,) = found(attribution(W), attribution(W, *small))
    assert (one.count, one.bytes) == (8, 2 * MIB)
    assert len(one.weights) == 8


def test_a_weight_of_another_name_is_the_same_weight() -> None:
    renamed = copy("original", 64 * MIB, "renamed")
    assert found(attribution(W), attribution(renamed)) == ()
    larger = copy("original", 65 * MIB, "renamed")
    assert {one.count for one in found(attribution(W), attribution(larger))} == {1, -1}


def test_equal_content_under_a_further_name_is_told_as_that_name() -> None:
    both = copy("original", 64 * MIB, weights=("w", "w_again"))
    (added,) = found(attribution(W), attribution(both, both))
    assert (added.weights, added.count, added.bytes) == (("w_again",), 1, 64 * MIB)
    assert copy_change_text(added) == "b keeps w_again as it is, which is equal to w"
    (removed,) = found(attribution(both, both), attribution(W))
    assert (removed.count, removed.bytes, removed.equal_to) == (-1, -64 * MIB, "w")
    # Another kind of copy is another matter, and so are as many copies under more names.
    assert len(found(attribution(W), attribution(both, both, PACKED))) == 2
    assert found(attribution(W), attribution(both)) == ()


def test_phases_are_told_by_the_maker() -> None:
    makers = {
        "parse": "parse",
        "ConstantFolding · n": "constant_fold",
        "prepack · n": "prepack",
        "kernel · n": "first_run",
        "NchwcTransformer · n": "optimize",
        None: None,
    }
    for made_by, expected in makers.items():
        (one,) = found(attribution(), attribution(copy("original", MIB, "w", made_by=made_by)))
        assert phase_of_copy_change(one) == expected


def test_a_mapped_copy_is_another_copy_than_an_anonymous_one() -> None:
    mapped = copy("original", 64 * MIB, "w", backing=Backing(kind="file", file="d", offset=64))
    changes = found(attribution(W), attribution(mapped))
    assert {(one.bytes, one.file, copy_change_text(one)) for one in changes} == {
        (-64 * MIB, "", "a keeps w as it is"),
        (64 * MIB, "d", "b maps w from d"),
    }
    # Pages become resident when they are read, in any phase.
    assert {phase_of_copy_change(one) for one in changes} == {"parse", None}
    # The name of the file does not matter, nor the name of the weight.
    moved = copy("original", 64 * MIB, "v", backing=Backing(kind="file", file="e", offset=0))
    assert found(attribution(mapped), attribution(moved)) == ()
