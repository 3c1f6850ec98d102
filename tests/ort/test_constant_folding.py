from pathlib import Path

import pytest
from onnx import ModelProto, helper

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from tests.builders import build, saved
from tests.ort.folding_cases import CASES, VALUES, W
from tests.ort.optimizing import (
    NEWEST,
    kinds,
    made_by_nodes,
    new_constants,
    optimized,
    predicted,
)


def folded(model: ModelProto, folder: Path, version: str = NEWEST, **sizes: int) -> list[str]:
    """Return the outputs of the folded nodes; those that do not stay in brackets."""
    folds = predicted(saved(model, folder), version, **sizes)
    return [fold.output if fold.stays else f"({fold.output})" for fold in folds]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelProto]:
    """What the installed runtime makes of all cases."""
    folder = tmp_path_factory.mktemp("cases")
    paths = [saved(model, folder, f"{name}.onnx") for name, (model, _) in CASES.items()]
    return dict(zip(CASES, optimized(paths), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_what_is_folded(tmp_path: Path, real: dict[str, ModelProto], case: str) -> None:
    model, expected = CASES[case]
    assert folded(model, tmp_path) == expected
    found = predicted(tmp_path / "model.onnx")
    assert kinds(found) == new_constants(real[case], tmp_path / "model.onnx")
    assert not {fold.output for fold in found} & made_by_nodes(real[case])


def test_what_a_fold_tells(tmp_path: Path) -> None:
    model = build(
        f"(float[2,8,4] x) => (float[2,8,4] y) <{W}, float[4,8] V = {{{VALUES}}}, "
        "int64[3] k = {2, 8, 4}> "
        "{ a = Add(W, V) t = Transpose(a) e = Expand(t, k) y = Add(x, e) }"
    )
    last = predicted(saved(model, tmp_path))[-1]
    assert (last.output, last.dtype, last.shape, last.nbytes) == ("e", "float", (2, 8, 4), 256)
    assert [weight.name for weight in last.weights] == ["W", "V", "k"]
    assert last.node.op_type == "Expand"


def test_sizes_that_a_user_gives_are_not_the_runtimes(tmp_path: Path) -> None:
    assert folded(CASES["shape of a free input"][0], tmp_path, n=8) == []


LARGE = (
    "(int64[4] i) => (float[4,1024] y) <int64[2] k = {%s, 1024}> "
    "{ c = ConstantOfShape(k) y = Gather(c, i) }"
)
UNKNOWN = (
    "(int64[2,4] x) => (int64[2,4] y) <float[4] W = {1, 2, 3, 4}> "
    "{ a = NonZero(W) b = Concat<axis=0>(a, a) y = Add(x, b) }"
)


@pytest.mark.parametrize(
    ("graph", "version", "count"),
    [
        (LARGE % 262145, "1.26.0", 1),
        (LARGE % 262145, "1.27.0", 0),
        (LARGE % 262145, NEWEST, 0),
        (LARGE % 262144, "1.26.0", 1),
        (LARGE % 262144, "1.27.0", 1),
        (LARGE % 262144, NEWEST, 1),
        (UNKNOWN, "1.26.0", 2),
        (UNKNOWN, NEWEST, 0),
    ],
)
def test_what_is_large_or_of_no_known_size_is_not_folded_since_1_27(
    tmp_path: Path, graph: str, version: str, count: int
) -> None:
    assert len(folded(build(graph), tmp_path, version)) == count


@pytest.mark.parametrize(
    ("version", "opset", "expected"),
    [("1.24.4", 17, []), ("1.24.4", 21, ["t"]), ("1.28.0", 21, []), (NEWEST, 21, [])],
)
def test_transposing_for_gemm_by_version(
    tmp_path: Path, version: str, opset: int, expected: list[str]
) -> None:
    graph = f"(float[3,8] x) => (float[3,4] y) <{W}> {{ t = Transpose(W) y = Gemm(x, t) }}"
    assert folded(build(graph, opset=opset, ir=10), tmp_path, version) == expected


def test_nodes_out_of_order(tmp_path: Path) -> None:
    graph = (
        f"(float[8,4] x) => (float[8,4] y) <{W}> {{ n = Neg(t) t = Transpose(W) y = Add(x, n) }}"
    )
    assert folded(build(graph), tmp_path) == ["(t)", "n"]


def test_nodes_that_make_each_others_inputs(tmp_path: Path) -> None:
    model = build(f"(float[4,8] x) => (float[4,8] y) <{W}> {{ y = Add(x, W) }}")
    model.graph.node.extend(
        [helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    )
    assert folded(model, tmp_path) == []


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    again = "again (w) => (o) { a = f.again(w) b = f.again(a) o = Neg(b) }"
    model = build(
        f"(float[4,8] x) => (float[4,8] y) <{W}> {{ y = f.again(W) }}",
        functions=f'<domain: "f", opset_import: ["":17, "f":1]> {again}',
        domains={"f": 1},
    )
    assert set(folded(model, tmp_path)) <= {"o", "(o)"}


@pytest.mark.slow
def test_what_1_24_folds(tmp_path: Path) -> None:
    try:
        python = runtime("1.24.4")
    except ProvisionError as error:
        pytest.skip(str(error))
    # 1.24.4 cannot save a model whose If it has put in place.
    models = {
        key: model for key, (model, _) in CASES.items() if key != "condition that is constant"
    }
    paths = [saved(model, tmp_path, f"{name}.onnx") for name, model in models.items()]
    for path, real in zip(paths, optimized(paths, str(python)), strict=True):
        assert kinds(predicted(path, "1.24.4")) == new_constants(real, path), path.stem


@pytest.mark.slow
def test_what_is_folded_of_real_models(real_models: dict[str, Path], tmp_path: Path) -> None:
    names = ["silero_vad", "silero_vad_half", "silero_vad_openvino", "silero_vad_sequence"]
    paths = [tmp_path / f"{name}.onnx" for name in names]
    for path in paths:
        path.write_bytes(real_models[path.stem].read_bytes())
    for path, real in zip(paths, optimized(paths), strict=True):
        assert kinds(predicted(path)) == new_constants(real, path), path.name
