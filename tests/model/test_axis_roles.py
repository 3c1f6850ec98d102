from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from memdiag.errors import UsageError
from memdiag.model.axis_roles import axis_roles, dims_by_name
from memdiag.model.inputs import make_array, plan_inputs
from memdiag.model.model_file import open_model
from tests.builders import build, saved

BATCH, SEQUENCE = ("batch", 1), ("sequence", 128)
CHANNELS, HEIGHT, WIDTH = ("channels", 3), ("height", 224), ("width", 224)


def write(folder: Path, graph: str, weights: Mapping[str, Any] | None = None) -> Path:
    return saved(build(graph, weights=weights), folder)


def roles(
    folder: Path, graph: str, weights: Mapping[str, Any] | None = None
) -> dict[str, tuple[str, int]]:
    with open_model(write(folder, graph, weights)) as model:
        found = axis_roles(model.graph, model.functions)
    return {key: (role.name, role.size) for key, role in found.items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("int64[batch, sequence] x", {"batch": BATCH, "sequence": SEQUENCE}),
        ("int64[B, max_seqLength] x", {"B": BATCH, "max_seqLength": SEQUENCE}),
        ("int64[N, M] ids", {"N": BATCH, "M": SEQUENCE}),
        ("float[N, T, 80] x", {"N": BATCH, "T": SEQUENCE}),
        ("float[num_frames, 576] x", {"num_frames": SEQUENCE}),
        ("float[N, 80, M] x", {"N": BATCH, "M": SEQUENCE}),
        ("float[N, M] waveform", {"N": BATCH, "M": ("samples", 16000)}),
        ("float[N, M] x", {"N": BATCH, "M": ("size", 128)}),
        ("float[N, 3, H, W] x", {"N": BATCH, "H": HEIGHT, "W": WIDTH}),
        ("float[N, P, Q, 3] x", {"N": BATCH, "P": HEIGHT, "Q": WIDTH}),
        ("float[N, C, P, Q] x", {"N": BATCH, "C": CHANNELS, "P": HEIGHT, "Q": WIDTH}),
        ("float[N, 3, 640, Q] x", {"N": BATCH, "Q": ("width", 640)}),
        ("float[N, 3, 48, Q] x", {"N": BATCH, "Q": WIDTH}),
        ("float[N, 8, past_length, 64] k", {"N": BATCH, "past_length": ("past", 128)}),
        ("float[N, 8, M, 64] past_key", {"N": BATCH, "M": ("past", 128)}),
        ("float[N, 16, 3, P, Q] x", {"N": BATCH, "P": HEIGHT, "Q": WIDTH}),
        ("float[4, 5] x", {}),
    ],
)
def test_roles_by_name_rank_and_type(
    tmp_path: Path, value: str, expected: dict[str, tuple[str, int]]
) -> None:
    assert roles(tmp_path, f"({value}) => () {{ }}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Conv (x, image)", {"P": ("channels", 1)}),
        (
            "t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv (t, image)",
            {"P": HEIGHT, "Q": WIDTH, "R": ("channels", 1)},
        ),
        ("s = Sub (x, mean) y = Conv (s, image)", {"P": ("channels", 1)}),
        ("y = MatMul (x, dense)", {"R": ("features", 96)}),
        ("y = Abs (x)", {}),
        # An operand that adds axes: which axis of the sum is which of the input is not followed.
        ("s = Sub (x, deep) y = Conv (s, image)", {}),
    ],
)
def test_operators_say_what_an_axis_must_be(
    tmp_path: Path, body: str, expected: dict[str, tuple[str, int]]
) -> None:
    weights = {"image": np.ones((8, 1, 3, 3)), "dense": np.ones((96, 5)), "mean": np.ones(1)}
    weights["deep"] = np.ones((1, 1, 1, 1, 1))
    found = roles(tmp_path, f"(float[N, P, Q, R] x) => (y) {{ {body} }}", weights)
    assert found == {"N": BATCH, "P": CHANNELS, "Q": HEIGHT, "R": WIDTH} | expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "side"),
    [
        # Maps of the image, boxes by the number of anchors, and outputs called boxes or masks.
        ("float[N, 3, H, W] x", "float[N, 1, P, Q] y", 640),
        ("float[N, 3, H, W] x", "float[N, 1, H, W] y", 640),
        ("float[N, 1, H, W] x", "float[N, 1, H, W] y", 640),
        ("uint8[N, H, W, 3] x", "float[N, H, W, 2] y", 640),
        ("float[N, C, H, W] x", "float[N, 1, H, W] y", 640),
        ("float[3, height, width] x", "float[P, 4] boxes, int64[P] labels", 640),
        ("float[N, 3, H, W] x", "float[N, 84, anchors] y", 640),
        ("float[N, 3, H, W] x", "float[N, 1000] labels, float[N, 100, 4] detection_boxes", 640),
        # A classifier, one with a map of one pixel, and what says nothing of its outputs.
        ("float[N, 3, H, W] x", "float[N, 1000] y", 224),
        ("float[N, 3, H, W] x", "float[N, classes] y", 224),
        ("float[N, 3, H, W] x", "float[M, 1000, 1, 1] y", 224),
        # A transformer's tokens, and images next to texts, whose length is the output's.
        ("float[N, 3, H, W] x", "float[N, sequence_length, 768] y", 224),
        ("float[N, 3, H, W] x, int64[N, M] ids", "float[N, M, 768] y", 224),
        # A map of features; lines of text.
        ("float[N, 4, H, W] x", "float[N, 4, H, W] y", 224),
        ("float[N, 3, 48, W] x", "float[N, P, 18710] y", 224),
    ],
)
def test_an_image_with_a_map_or_objects_as_output_is_large(
    tmp_path: Path, inputs: str, outputs: str, side: int
) -> None:
    found = roles(tmp_path, f"({inputs}) => ({outputs}) {{ }}")
    assert {size for name, size in found.values() if name in ("height", "width")} == {side}


@pytest.mark.parametrize(
    ("channels", "role"), [(1, ("samples", 16000)), (2, SEQUENCE)], ids=["sound", "words"]
)
def test_a_sound_behind_a_convolution_is_one_second_though_it_is_called_a_sequence(
    tmp_path: Path, channels: int, role: tuple[str, int]
) -> None:
    graph = "(float[batch, sequence] x) => (y) { u = Unsqueeze (x, one) y = Conv (u, w) }"
    weights = {"one": [1], "w": np.ones((2, channels, 2), np.float32)}
    assert roles(tmp_path, graph, weights)["sequence"] == role


DECODER = """(int64[batch, LENGTH] input_ids, MASK attention_mask,
    float[batch, 2, PAST, 4] past_key)
    => (float[batch, 2, n, m] scores)
{
    embedded = Gather (table, input_ids) split = Reshape (embedded, heads)
    new = Transpose <perm = [0, 2, 1, 3]> (split) keys = Concat <axis = 2> (past_key, new)
    turned = Transpose <perm = [0, 1, 3, 2]> (keys) dots = MatMul (new, turned)
    weights = Unsqueeze (attention_mask, axes) scores = Mul (dots, weights)
}"""
WEIGHTS = {"table": np.ones((10, 8), np.float32), "heads": [0, 0, 2, 4], "axes": [1, 2]}


@pytest.mark.parametrize(
    ("length", "past", "mask"),
    [
        ("sequence", "past", "float[batch, total_sequence_length]"),
        ("sequence", "past", "float[batch, own]"),
        ("s", "past_sequence_length", "float[batch, mask_length]"),
    ],
)
@pytest.mark.parametrize("dims", [{}, {"LENGTH": 7}, {"PAST": 0}, {"LENGTH": 3, "PAST": 5}])
def test_a_mask_covers_past_and_new_tokens(
    tmp_path: Path, length: str, past: str, mask: str, dims: dict[str, int]
) -> None:
    text = DECODER.replace("LENGTH", length).replace("PAST", past).replace("MASK", mask)
    path = write(tmp_path, text, WEIGHTS)
    named = {{"LENGTH": length, "PAST": past}[name]: size for name, size in dims.items()}
    with open_model(path) as model:
        plans = plan_inputs(model, dims=named, given={})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {plan.name: make_array(plan, 0) for plan in plans})
    new, before = dims.get("LENGTH", 128), dims.get("PAST", 128)
    assert scores.shape == (1, 2, new, new + before)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("float speed", [1.0]),
        ("float[1] length_scale", [1.0]),
        ("float[3] scales", [1.0] * 3),
        ("float[1, 1] temperature", [1.0]),
        ("float score_threshold", [0.5]),
        ("float[4] attention_mask", [1.0] * 4),
        ("int64[4] mask", [1] * 4),
        ("int64[1, 4] position_ids", [0, 1, 2, 3]),
        ("int64[2, 1, 3] positions", [0, 1, 2, 0, 1, 2]),
        ("int64 sample_rate", [16000]),
        ("int64 sr", [16000]),
        ("int64[1] max_length", [1]),
    ],
)
def test_values_by_the_name_of_an_input(tmp_path: Path, value: str, expected: list[float]) -> None:
    with open_model(write(tmp_path, f"({value}) => () {{ }}")) as model:
        [plan] = plan_inputs(model, dims={}, given={})
    assert make_array(plan, 0).reshape(-1).tolist() == expected


def test_a_large_tensor_is_data_whatever_it_is_called(tmp_path: Path) -> None:
    with open_model(write(tmp_path, "(float[100] speed) => () { }")) as model:
        [plan] = plan_inputs(model, dims={}, given={})
    assert plan.fill == "normal"


def test_a_length_is_that_of_the_sequence(tmp_path: Path) -> None:
    text = "(int64[batch, phonemes] x, int64[batch] x_lengths) => () { }"
    with open_model(write(tmp_path, text)) as model:
        for dims, size in (({}, 128), ({"phonemes": 9}, 9)):
            _, lengths = plan_inputs(model, dims=dims, given={})
            assert make_array(lengths, 0).tolist() == [size]


def test_positions_stay_in_their_table(tmp_path: Path) -> None:
    text = """(int64[batch, n] position_ids) => (y) <float[3, 1] w = {1, 2, 3}>
    { y = Gather (w, position_ids) }"""
    with open_model(write(tmp_path, text)) as model:
        [plan] = plan_inputs(model, dims={"n": 5}, given={})
    assert make_array(plan, 0).tolist() == [[0, 1, 2, 0, 1]]


@pytest.mark.parametrize(
    ("value", "dims", "expected"),
    [
        ("float[D0, 3, 48, D1] x", {"batch": 6, "width": 640}, {"D0": 6, "D1": 640}),
        ("float[D0, 3, 48, D1] x", {"D0": 6, "width": 640}, {"D0": 6, "D1": 640}),
        # The name of a dimension is this dimension, whatever its role is.
        ("float[D0, 3, 48, batch] x", {"batch": 6}, {"batch": 6}),
        # Not a role, or no dimension has it; the role of M is not known.
        (
            "float[N, M] x",
            {"size": 6, "height": 7, "other": 8},
            {"size": 6, "height": 7, "other": 8},
        ),
    ],
)
def test_a_role_that_one_dimension_has_names_it(
    tmp_path: Path, value: str, dims: dict[str, int], expected: dict[str, int]
) -> None:
    path = write(tmp_path, f"({value}) => (float[n] z) {{ z = Identity(x) }}")
    with open_model(path) as model:
        assert dims_by_name(model.graph, model.functions, dims) == expected


def test_dimensions_that_share_a_role_have_to_be_named(tmp_path: Path) -> None:
    text = "(int64[N, seq_a] x, int64[N, seq_b] y) => (float[n] z) { z = Identity(x) }"
    with (
        open_model(write(tmp_path, text)) as model,
        pytest.raises(UsageError, match=r"2 dimensions have .* --dim seq_a=N,seq_b=N\.$"),
    ):
        dims_by_name(model.graph, model.functions, {"sequence": 6})


def test_a_dimension_cannot_be_named_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "(float[D0, 8] x) => (float[n] z) { z = Identity(x) }")
    with (
        open_model(path) as model,
        pytest.raises(UsageError, match="dimension 'D0' is also given as 'batch'"),
    ):
        dims_by_name(model.graph, model.functions, {"D0": 1, "batch": 2})
