from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from memdiag.errors import UsageError
from memdiag.model.inputs import InputPlan, make_array, plan_inputs
from memdiag.model.model_file import open_model
from tests.builders import build, saved

Arrays = dict[str, np.ndarray]


def plans_of(
    model: ModelProto,
    folder: Path,
    *,
    dims: dict[str, int] | None = None,
    given: Arrays | None = None,
    free_dim: int = 1,
) -> tuple[InputPlan, ...]:
    with open_model(saved(model, folder)) as opened:
        return plan_inputs(opened, dims=dims or {}, given=given or {}, free_dim=free_dim)


def only(inputs: str, nodes: str, folder: Path, **weights: Any) -> InputPlan:
    """Return the plan of the only input of a graph of these nodes."""
    [plan] = plans_of(build(f"({inputs}) => () {{ {nodes} }}", weights=weights), folder)
    return plan


def single(folder: Path, element: int, shape: list[int | str] | None, **options: Any) -> InputPlan:
    """Return the plan of an input x, which no node reads."""
    value = helper.make_tensor_value_info("x", element, shape)
    [plan] = plans_of(helper.make_model(GraphProto(name="g", input=[value])), folder, **options)
    return plan


EMBEDDING = build(
    """(int64[batch, seq] ids, float[batch, seq] mask, int64 rate) => (float[batch, seq, 4] y) {
    fast = Constant <value_int = 16000> () slow = Constant <value_int = 8000> ()
    a = Equal (rate, fast) b = Equal (rate, slow) y = Gather (W, ids) }""",
    weights={"W": np.zeros((30, 4), np.float32)},
)


def test_a_plan_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    ids, mask, rate = plans_of(EMBEDDING, tmp_path, dims={"seq": 50})
    assert (ids.shape, ids.fill, ids.low, ids.high) == ((1, 50), "uniform", 0, 30)
    assert ids.note == "indices below 30 (rows of W)"
    assert (mask.shape, mask.dtype, mask.note) == ((1, 50), "float", "ones, of a mask")
    assert (rate.shape, rate.value) == ((), 16000)
    assert rate.note == "16000, which the model compares it with"
    made = make_array(ids, 0)
    assert made.dtype == np.int64
    assert made.min() >= 0
    assert 10 < made.max() < 30
    assert make_array(rate, 0) == np.int64(16000)


def test_a_table_of_unknown_size_is_indexed_at_its_start(tmp_path: Path) -> None:
    plan = only("int64 i", "y = Gather (h, i)", tmp_path)
    assert (plan.fill, plan.value) == ("constant", 0)
    assert plan.note == "0, an index into rows of h"


def test_a_table_of_one_row_is_indexed_there(tmp_path: Path) -> None:
    plan = only("int64[2] i", "y = Gather (W, i)", tmp_path, W=np.ones(1, np.float32))
    assert make_array(plan, 0).tolist() == [0, 0]


def test_a_table_larger_than_the_index_type_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    nodes = "j = Cast <to = 7> (i) y = Gather (W, j)"
    plan = only("uint8[200] i", nodes, tmp_path, W=np.zeros(1000, np.float32))
    assert plan.high == 256
    assert make_array(plan, 0).dtype == np.uint8


@pytest.mark.parametrize(
    ("inputs", "nodes", "value"),
    [
        # Only single numbers take what they are compared with, and only if they can hold it.
        ("int64 x", "c = Constant <value_int = 7> () e = Equal (x, c)", 7),
        ("int64[1] x", "c = Constant <value_int = 7> () e = Equal (x, c)", 7),
        ("int64[2] x", "c = Constant <value_int = 7> () e = Equal (x, c)", 1),
        ("int64[n] x", "c = Constant <value_int = 7> () e = Equal (x, c)", 1),
        (
            "int64 x",
            "c = Constant <value_float = 2.5> () f = Cast <to = 1> (x) e = Equal (f, c)",
            1,
        ),
        ("float x", "c = Constant <value_float = 2.5> () e = Equal (x, c)", 2.5),
    ],
)
def test_numbers_that_an_input_is_compared_with(
    tmp_path: Path, inputs: str, nodes: str, value: float
) -> None:
    assert only(inputs, nodes, tmp_path).value == value


def test_free_dimensions_grow_and_batches_do_not(tmp_path: Path) -> None:
    plans = plans_of(EMBEDDING, tmp_path, free_dim=8)
    assert [plan.shape for plan in plans] == [(1, 8), (1, 8), ()]
    assert single(tmp_path, 1, [2, 3], free_dim=8) == single(tmp_path, 1, [2, 3])


def test_inputs_with_a_default_are_left_out(tmp_path: Path) -> None:
    model = build("(float[2] x, float[2] w, float[2] s) => () <float[2] w = {1, 2}> { }")
    values = helper.make_tensor("s", 1, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("", 7, [1], [1]), [2])
    model.graph.sparse_initializer.append(sparse)
    assert [plan.name for plan in plans_of(model, tmp_path)] == ["x"]


def test_the_same_seed_makes_the_same_array_whatever_else_there_is(tmp_path: Path) -> None:
    alone = single(tmp_path, TensorProto.FLOAT, [100])
    other, beside = plans_of(build("(float[100] before, float[100] x) => () { }"), tmp_path)
    np.testing.assert_array_equal(make_array(alone, 0), make_array(beside, 0))
    assert not np.array_equal(make_array(alone, 0), make_array(alone, 1))
    assert not np.array_equal(make_array(other, 0), make_array(beside, 0))


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.COMPLEX64, np.complex64),
        (TensorProto.BFLOAT16, np.uint16),
    ],
)
def test_floats_are_standard_normal(tmp_path: Path, element: int, dtype: type) -> None:
    array = make_array(single(tmp_path, element, [4000]), 0)
    assert array.dtype == dtype
    if element == TensorProto.BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    assert abs(array.real.mean()) < 0.1
    assert abs(array.real.std() - 1) < 0.1


def test_float8_is_finite_and_near_one(tmp_path: Path) -> None:
    bits = make_array(single(tmp_path, TensorProto.FLOAT8E5M2, [500]), 0).astype(np.uint16)
    values = np.abs((bits << 8).view(np.float16))  # float8e5m2 is the upper half of float16
    assert values.min() >= 0.25
    assert values.max() <= 8


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (TensorProto.INT32, np.ones(3, np.int32)),
        (TensorProto.UINT8, np.ones(3, np.uint8)),
        (TensorProto.BOOL, np.ones(3, np.bool_)),
        (TensorProto.STRING, np.array(["a", "a", "a"])),
        (TensorProto.INT4, np.full(3, 0x11, np.uint8)),
        (TensorProto.FLOAT4E2M1, np.full(3, 0x22, np.uint8)),
        (TensorProto.FLOAT8E8M0, np.full(3, 0x7F, np.uint8)),
    ],
)
def test_everything_else_is_one(tmp_path: Path, element: int, expected: np.ndarray) -> None:
    array = make_array(single(tmp_path, element, [3]), 0)
    assert array.dtype == expected.dtype
    assert array.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.BFLOAT16, np.uint16),
        (TensorProto.FLOAT8E4M3FN, np.uint8),
        (TensorProto.FLOAT8E5M2FNUZ, np.uint8),
        (TensorProto.INT4, np.uint8),
    ],
)
def test_the_runtime_takes_the_bits_of_types_that_numpy_lacks(
    tmp_path: Path, element: int, dtype: type
) -> None:
    plan = single(tmp_path, element, [6, 2])
    array = make_array(plan, 0)
    assert plan.bits_type == element
    assert array.dtype == dtype
    assert array.shape == (6, 2)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, plan.bits_type)
    assert value.shape() == [6, 2]


def test_types_that_numpy_has_need_no_number(tmp_path: Path) -> None:
    assert single(tmp_path, TensorProto.FLOAT16, [1]).bits_type is None


def test_sequences_and_optionals_are_planned_as_their_tensor(tmp_path: Path) -> None:
    inputs = "seq(float[n, 3]) a, optional(float[n, 3]) b, optional(seq(float[n, 3])) c"
    plans = plans_of(build(f"({inputs}) => () {{ }}"), tmp_path)
    assert [plan.kind for plan in plans] == ["sequence", "optional", "sequence"]
    assert {plan.shape for plan in plans} == {(1, 3)}


def test_an_input_of_unknown_rank_has_one_axis(tmp_path: Path) -> None:
    assert single(tmp_path, TensorProto.FLOAT, None, free_dim=4).shape == (4,)


def test_maps_cannot_be_made(tmp_path: Path) -> None:
    value = ValueInfoProto(name="x")
    value.type.map_type.key_type = TensorProto.INT64
    with pytest.raises(UsageError, match="input 'x' is of the kind map"):
        plans_of(helper.make_model(GraphProto(name="g", input=[value])), tmp_path)


def test_given_arrays_are_used_and_set_dimensions(tmp_path: Path) -> None:
    plan, mask, _ = plans_of(EMBEDDING, tmp_path, given={"ids": np.zeros((2, 9), np.int64)})
    assert (plan.source, plan.fill, plan.shape) == ("given", "given", (2, 9))
    assert (mask.source, mask.shape) == ("generated", (2, 9))
    with pytest.raises(UsageError, match="was given"):
        make_array(plan, 0)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("idz", np.zeros(1), "unknown input 'idz'. The model's inputs are: ids, mask, rate"),
        ("ids", np.zeros((2, 3), np.int32), "is int32, but the model expects int64"),
        ("ids", np.zeros(3, np.int64), "has the shape [3], but the model expects [batch, seq]"),
        ("rate", np.zeros(1, np.int64), "the model expects []"),
    ],
)
def test_given_arrays_that_do_not_fit(
    tmp_path: Path, name: str, array: np.ndarray, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plans_of(EMBEDDING, tmp_path, given={name: array})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("element", "shape", "array", "words"),
    [
        (TensorProto.FLOAT, ["n", 3], np.zeros((2, 3), np.float32), ""),
        (TensorProto.FLOAT, ["n", 3], np.zeros((2, 4), np.float32), "expects [n, 3]"),
        (TensorProto.BFLOAT16, [2], np.zeros(2, np.uint16), ""),
        (
            *(TensorProto.BFLOAT16, [2], np.zeros(2, np.float32)),
            "expects uint16, the bits of bfloat16",
        ),
        (TensorProto.STRING, [2], np.array(["a", "bc"]), ""),
        (TensorProto.STRING, [2], np.zeros(2), "expects text"),
    ],
)
def test_given_arrays_must_have_the_fixed_sizes_and_the_type(
    tmp_path: Path, element: int, shape: list[int | str], array: np.ndarray, words: str
) -> None:
    if words:
        with pytest.raises(UsageError) as caught:
            single(tmp_path, element, shape, given={"x": array})
        assert words in str(caught.value)
    else:
        plan = single(tmp_path, element, shape, given={"x": array})
        assert plan.shape == array.shape
        assert plan.bits_type == (element if element == TensorProto.BFLOAT16 else None)


@pytest.mark.parametrize("shape", [[1 << 50], [1 << 40, 1 << 40]], ids=["large", "absurd"])
def test_an_input_that_does_not_fit_in_memory(tmp_path: Path, shape: list[int | str]) -> None:
    plan = single(tmp_path, TensorProto.FLOAT, shape)
    with pytest.raises(UsageError, match="does not fit in memory"):
        make_array(plan, 0)


def test_the_runtime_runs_with_what_is_made(tmp_path: Path) -> None:
    model = ModelProto.FromString(EMBEDDING.SerializeToString())
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in "ab"
    )
    plans = plans_of(model, tmp_path, dims={"batch": 3, "seq": 5})
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    y, fast, slow = session.run(None, {plan.name: make_array(plan, 0) for plan in plans})
    assert y.shape == (3, 5, 4)
    assert (bool(fast), bool(slow)) == (True, False)


@pytest.mark.slow
def test_real_models_run_with_what_is_made(real_models: dict[str, Path]) -> None:
    for path in real_models.values():
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        with open_model(path) as model:
            assert any(
                runs(session, plan_inputs(model, dims={}, given={}, free_dim=size))
                for size in (1, 32, 256)
            ), path


def runs(session: onnxruntime.InferenceSession, plans: tuple[InputPlan, ...]) -> bool:
    """Tell whether the runtime accepts the inputs; it raises no common class where it does not."""
    try:
        session.run(None, {plan.name: make_array(plan, 0) for plan in plans})
    except Exception:
        return False
    return True
