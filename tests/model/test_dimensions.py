import pytest
from onnx import helper

from memdiag.errors import UsageError
from memdiag.model.dimensions import InputAxis, axes_of, choose_sizes

Declared = dict[str, list[int | str | None] | None]


def axes(declared: Declared) -> dict[str, tuple[InputAxis, ...] | None]:
    return {
        name: axes_of(helper.make_tensor_value_info(name, 1, shape))
        for name, shape in declared.items()
    }


def sizes(
    declared: Declared,
    dims: dict[str, int] | None = None,
    given: dict[str, tuple[int, ...]] | None = None,
    free_dim: int = 9,
) -> dict[str, int]:
    return choose_sizes(axes(declared), dims=dims or {}, given=given or {}, free_dim=free_dim)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"x": ["n", "t"]}, {"n": 1, "t": 9}),
        ({"x": [None, None]}, {"x:0": 1, "x:1": 9}),
        ({"x": ["?", "?"]}, {"x:0": 1, "x:1": 9}),
        ({"x": [3, 4]}, {}),
        ({"x": [-1, 3, -1]}, {"x:0": 1, "x:2": 9}),
        ({"x": [2, "my_Batch", 4, 5]}, {"my_Batch": 1}),
        ({"x": [2, "n", 4, 5]}, {"n": 9}),
        ({"x": ["n", "t"], "y": [2, "n", 8]}, {"n": 1, "t": 9}),
        ({"x": ["n", "t"], "h": [2, None, 8]}, {"n": 1, "t": 9, "h:1": 1}),
        ({"x": [1, "t", 80]}, {"t": 9}),
        ({"x": ["n", "t"], "lengths": ["k"]}, {"n": 1, "t": 9, "k": 1}),
        ({"samples": ["k"]}, {"k": 9}),
        ({"x": None}, {}),
        ({"x": []}, {}),
    ],
)
def test_what_is_free_and_what_is_a_batch(declared: Declared, expected: dict[str, int]) -> None:
    assert sizes(declared) == expected


def test_dimensions_are_set_by_symbol_or_by_place() -> None:
    declared: Declared = {"x": ["n", "t"], "in:0": [None, "t"]}
    assert sizes(declared, {"t": 5, "in:0:0": 0}) == {"n": 1, "t": 5, "in:0:0": 0}


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"seq": 3}, "unknown dimension 'seq': the model has n, t, y:1."),
        ({"x:0": 3}, "that axis is called 'n', set it by this name"),
        ({"y:0": 3}, "that axis is fixed to 4"),
        ({"y:7": 3}, "the model has n, t, y:1"),
        ({"t": -1}, "dimension 't' must be 0 or greater, not -1"),
    ],
)
def test_dimensions_that_cannot_be_set(dims: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        sizes({"x": ["n", "t"], "y": [4, None]}, dims)
    assert words in str(caught.value)


def test_an_unknown_name_is_answered_with_roles_and_the_nearest_of_all() -> None:
    inputs = axes({"x": ["d.0", 3, "d.1", "width"]})
    roles = {"d.0": "batch", "d.1": "height", "width": "width"}
    for name, hint in (("btach", " Did you mean batch?"), ("with", " Did you mean width?")):
        with pytest.raises(UsageError) as caught:
            choose_sizes(inputs, dims={name: 4}, given={}, free_dim=1, roles=roles)
        assert str(caught.value) == (
            f"unknown dimension {name!r}: the model has d.0 (batch), d.1 (height), width.{hint}"
        )
    with pytest.raises(UsageError, match=r"the model has d\.0 \(batch\).*width\.$"):
        choose_sizes(inputs, dims={"tokens": 4}, given={}, free_dim=1, roles=roles)


def test_a_model_of_fixed_sizes_says_so() -> None:
    with pytest.raises(UsageError, match="are all fixed"):
        sizes({"x": [4]}, {"n": 1})


def test_the_name_of_an_input_without_free_sizes_is_answered_with_an_option_for_its_values() -> (
    None
):
    declared: Declared = {"image_size": [2], "x": ["n"]}
    with pytest.raises(UsageError, match=r"an input, .* --input image_size=FILE\.npy"):
        sizes(declared, dims={"image_size": 5})
    with pytest.raises(UsageError, match=r"the model has n\."):
        sizes(declared, dims={"x": 5})


def test_given_arrays_set_the_symbols_they_show() -> None:
    declared: Declared = {"x": ["n", "t"], "mask": ["n", "t"]}
    assert sizes(declared, given={"x": (2, 7)}) == {"n": 2, "t": 7}
    with pytest.raises(UsageError, match="'t' was set to 5, but the array for 'x' has 7"):
        sizes(declared, {"t": 5}, {"x": (2, 7)})
    assert sizes(declared, {"t": 7}, {"x": (2, 7)}) == {"n": 2, "t": 7}


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("past + 1", 10),
        ("past + seq", 13),
        ("2*past", 18),
        ("(past + 1) * 2 // 3", 6),
        ("past - 20", 0),
        ("past // zero", 9),
        ("past-length", 9),  # a name, as there is no dimension called length
        ("past + unknown", 9),
        ("past.1", 9),
        ("past + (", 9),
        ("past ** seq", 9),
    ],
)
def test_symbols_that_are_sums_of_others(symbol: str, expected: int) -> None:
    declared: Declared = {"p": [1, 1, 1, "past"], "s": [1, 1, 1, "seq"], "z": [1, 1, 1, "zero"]}
    chosen = sizes({**declared, "m": [1, 1, 1, symbol]}, {"seq": 4, "zero": 0})
    assert chosen[symbol] == expected


def test_an_expression_can_be_set_itself() -> None:
    assert sizes({"p": [1, 1, "past"], "m": [1, 1, "past + 1"]}, {"past + 1": 3})["past + 1"] == 3
