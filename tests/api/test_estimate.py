"""Estimates of models whose memory is known by construction."""

import os
from collections.abc import Callable, Mapping
from math import floor
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

import memdiag
from memdiag.api import estimate as module
from memdiag.api.check import RuleSelection, check_models
from memdiag.errors import ModelError, UsageError
from memdiag.ort import overheads
from memdiag.ort.runtime import Runtime
from memdiag.records.estimate import Estimate, Fit, Reduction
from memdiag.units import GIB, KIB, MIB
from tests.api.small_models import model_of, save_model

RELEASE = "1.32.0"
WIDTH = 4096
ROW = 4 * WIDTH  # bytes of a value at size 1

CHAIN = """g (float[n, 4096] x) => (float[n, 4096] y)
    { a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Add(a, c) }"""
PRODUCT = """g (float[batch, tokens, 1024] x) => (float[batch, tokens, 1024] y)
    { y = MatMul(x, w) }"""


def estimate(model: Path, **arguments: object) -> Estimate:
    return memdiag.estimate(model, for_onnxruntime=RELEASE, **arguments)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_overheads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a session nor the process before it takes anything of its own."""
    monkeypatch.setattr(overheads, "SESSION_OVERHEADS", {Runtime(1, 24): {}})
    monkeypatch.setattr(module, "_runtime_baseline", lambda runtime: None)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A model without weights whose values have 16 KiB a row."""
    return save_model(tmp_path / "chain.onnx", CHAIN)


@pytest.fixture
def weighted(tmp_path: Path) -> Path:
    """A MatMul with 4 MiB of weights, and an input of two free dimensions."""
    return save_model(tmp_path / "weighted.onnx", PRODUCT, w=np.ones((1024, 1024), np.float32))


def test_parts_of_a_phase_add_up_to_it(weighted: Path) -> None:
    point = estimate(weighted).point
    assert [phase.name for phase in point.phases] == [
        *("parse", "optimize", "constant_fold", "initialize", "prepack", "first_run", "steady")
    ]
    for phase in point.phases:
        assert sum(term.bytes for term in phase.peak_terms) == phase.peak_bytes
        assert sum(term.bytes for term in phase.kept_terms) == phase.kept_bytes
    assert point.peak_bytes == point.peak.peak_bytes
    assert point.steady_bytes == point.phases[-1].kept_bytes
    assert point.low_bytes < point.peak_bytes < point.high_bytes
    weights = next(term for term in point.phases[2].kept_terms if term.name == "weights")
    assert (weights.bytes, weights.largest) == (4 * MIB, "w")


def test_half_precision_that_is_in_memory_in_fp32_is_named_with_its_remedy(
    weighted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("enable_mem_pattern=0", "graph_optimization_level=extended")
    less = tuple(Reduction(change=name, peak_bytes=MIB, run_bytes=MIB) for name in options)
    monkeypatch.setattr("memdiag.api.estimate.peak_reductions", lambda *_: less)
    assert not estimate(weighted).findings
    assert tuple(each.change for each in estimate(weighted).reductions) == options
    text = PRODUCT.replace("float[", "float16[")
    path = save_model(tmp_path / "half.onnx", text, w=np.ones((1024, 1024), np.float16))
    half = estimate(path)
    (found,) = half.findings
    assert (found.name, found.remedies[0]) == ("half-precision-cast", "model-to-fp32")
    # It lowers the peak alone: each run casts the weights then.
    assert tuple(each.change for each in half.reductions) == options[:1]
    # At lower levels the casts are others.
    assert not estimate(path, session_options={"graph_optimization_level": "basic"}).findings


def test_sizes_are_those_of_a_profile_unless_given(weighted: Path) -> None:
    [checked] = check_models([weighted], selection=RuleSelection()).models
    assert estimate(weighted).dimensions == checked.dimensions
    found = estimate(weighted, dims={"tokens": 7})
    assert [(each.name, each.size, each.source) for each in found.dimensions] == [
        ("batch", 1, "chosen"),
        ("tokens", 7, "given"),
    ]
    assert found.point.dims == {"batch": 1, "tokens": 7}


RECOGNISER = """g (float[batch, 3, height, width] image) => (float[SHAPE] y) {
    c = Conv <strides = [16, 4], pads = [1, 1, 1, 1]> (image, k)
    p = MaxPool <kernel_shape = [3, 1], strides = [3, 1]> (c)
    s = AFTER
    y = Relu(s)
}"""


@pytest.mark.parametrize(
    ("shape", "after", "side"),
    [("a, b, w", "Squeeze(p, axis)", 64), ("a, b", "Flatten <axis = 2> (p)", 224)],
)
def test_sizes_that_contradict_the_graph_are_not_taken(
    tmp_path: Path, shape: str, after: str, side: int
) -> None:
    """The sides are free in the file, but after the pooling a height of 1 has to be left."""
    text = RECOGNISER.replace("SHAPE", shape).replace("AFTER", after)
    weights = {"k": np.ones((4, 3, 3, 3), np.float32), "axis": np.array([2])}
    path = save_model(tmp_path / "recogniser.onnx", text, opset=17, ir_version=8, **weights)
    found = estimate(path)
    assert found.point.dims == {"batch": 1, "height": side, "width": side}
    assert not found.is_floor
    assert any("contradict each other" in note for note in found.notes) == (side == 64)
    profile = memdiag.profile(path, runs=1, xray="none")
    assert profile.outcome.status == "completed"
    assert profile.dimensions == found.dimensions
    # A size that was given stays as it is.
    assert estimate(path, dims={"height": 48}).point.dims["height"] == 48


def test_there_is_a_point_for_each_combination(weighted: Path) -> None:
    found = estimate(weighted, dims={"batch": [1, 8], "tokens": (16, 64)})
    assert [tuple(point.dims.values()) for point in found.points] == [
        *((1, 16), (1, 32), (1, 64), (8, 16), (8, 32), (8, 64))
    ]
    assert found.varied == ("batch", "tokens")


def test_a_dimension_that_follows_from_others_does_so_at_each_point(tmp_path: Path) -> None:
    model = model_of("g (float[n, 8] x, float[m, 8] z) => (float[n, 8] y) { y = Relu(x) }")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n + 1"
    path = tmp_path / "sum.onnx"
    onnx.save(model, path)
    found = estimate(path, dims={"n": [2, 5]}, fit_bytes=1 << 40)
    assert [point.dims["n + 1"] for point in found.points] == [3, 6]
    assert found.fit is not None
    assert found.fit.dims == ("n",)


def fit_of(model: Path, limit: int, **arguments: object) -> Fit:
    """Return what fits, without a run."""
    found = estimate(model, fit_bytes=limit, **{"run": False, **arguments}).fit
    assert found is not None
    return found


@pytest.mark.parametrize("options", [{}, {"enable_mem_pattern": "0"}])
def test_what_fits_agrees_with_the_points(chain: Path, options: Mapping[str, str]) -> None:
    limit = 12 * MIB
    found = fit_of(chain, limit, session_options=options)
    assert found.surely is not None
    assert found.probably is not None
    assert found.too_large is not None
    assert 1 < found.surely < found.probably < found.too_large
    # The sizes that were given for the table change nothing.
    assert fit_of(chain, limit, session_options=options, dims={"n": (16, 4096)}) == found
    sizes = [found.surely, found.probably, floor(1.03 * (found.probably + 1)), found.too_large]
    table = estimate(chain, dims={"n": sizes}, session_options=options)
    sure, probable, next_one, too_large = table.points
    assert sure.high_bytes <= limit
    assert probable.usual_bytes <= limit < next_one.usual_bytes
    assert too_large.low_bytes > limit
    assert [table.fits(point, limit) for point in table.points] == [
        *("yes", "probably", "probably not", "no")
    ]
    assert (found.low_bytes, found.usual_bytes, found.high_bytes) == (
        probable.low_bytes,
        probable.usual_bytes,
        probable.high_bytes,
    )


def test_the_limit_includes_the_process_if_its_size_is_known(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_runtime_baseline", lambda runtime: 50 * MIB)
    found = fit_of(chain, 54 * MIB)
    assert found.probably is not None
    point = estimate(chain, dims={"n": found.probably}).point
    # A run has one input of 4,096 floats for each n.
    assert point.input_bytes == 4 * 4096 * found.probably
    assert found.usual_bytes == 50 * MIB + point.input_bytes + point.usual_bytes <= 54 * MIB


def test_a_model_without_free_dimensions_fits_or_does_not(tmp_path: Path) -> None:
    path = save_model(tmp_path / "fixed.onnx", CHAIN.replace("[n,", "[256,"))
    assert fit_of(path, GIB).dims == ()
    found = estimate(path)
    assert [found.fits(found.point, limit) for limit in (GIB, MIB)] == ["yes", "no"]


POSITIONS = """g (int64[batch, tokens] ids) => (float[batch, tokens, 64] y) {
    zeros = Sub(ids, ids)
    one = Constant <value = int64[1] {1}>()
    ones = Add(zeros, one)
    positions = CumSum(ones, one)
    p = Gather(table, positions)
    e = Gather(words, ids)
    a = Add(e, p)
    y = Relu(a)
}"""


def test_the_largest_size_is_run(tmp_path: Path, chain: Path) -> None:
    """There are 48 positions, from 0, but the first token has position 1. No shape says so."""
    tables = {name: np.ones((n, 64), np.float32) for name, n in (("table", 48), ("words", 100))}
    path = save_model(tmp_path / "positions.onnx", POSITIONS, **tables)
    dims = {"batch": 1, "tokens": [8, 16]}
    unknown = fit_of(path, 8 * MIB, dims=dims)
    assert unknown.trial == "not run"
    assert (unknown.probably or 0) > 100
    found = fit_of(path, 8 * MIB, dims=dims, run=True)
    assert (found.trial, found.surely, found.probably, found.fails_at) == ("ran", 47, 47, 48)
    batch = fit_of(path, 8 * MIB, dims={"tokens": 48}, run=True)
    assert batch.trial == "fails"
    assert "indices element out of data bounds" in batch.problem
    # A model without such a table runs.
    found = fit_of(chain, 12 * MIB, run=True)
    assert (found.trial, found.fails_at) == ("ran", None)


def test_a_size_that_needs_more_than_the_machine_has_is_not_run(chain: Path) -> None:
    found = fit_of(chain, 1 << 60, run=True)
    assert found.trial == "not run"
    assert found.problem.startswith("1,048,576 may take")
    assert found.problem.endswith("are available")


def test_options_of_the_session_change_the_estimate(weighted: Path, chain: Path) -> None:
    def terms(model: Path, **arguments: object) -> set[str]:
        phases = estimate(model, **arguments).point.phases
        return {term.name for phase in phases for term in phase.peak_terms}

    unpacked = {"session.disable_prepacking": "1"}
    assert "packed weights" in terms(weighted)
    assert "packed weights" not in terms(weighted, session_options=unpacked)
    sizes, unplanned = {"n": 512}, {"enable_mem_pattern": "False"}
    assert "planned block" in terms(chain, dims=sizes)
    assert "planned block" not in terms(chain, dims=sizes, session_options=unplanned)
    by_bytes = estimate(weighted, load_from="bytes").point
    assert by_bytes.phases[0].peak_bytes > estimate(weighted).point.phases[0].peak_bytes


def test_the_last_subgraph_is_initialized_when_others_are_packed(
    weighted: Path, sample_model: Callable[..., Path]
) -> None:
    def packed(path: Path) -> tuple[int, int]:
        phases = {phase.name: phase for phase in estimate(path).point.phases}
        found = [
            sum(term.bytes for term in phases[name].peak_terms if term.name == "packed weights")
            for name in ("initialize", "prepack")
        ]
        return found[0], found[1]

    # The branch that packs comes first; without subgraphs all tensors are there before packing.
    initialize, prepack = packed(sample_model("tied_if"))
    assert initialize == prepack > 0
    initialize, prepack = packed(weighted)
    assert (initialize, prepack) == (0, 4 * MIB)


def test_what_lowers_the_peak_is_listed_with_its_bytes(chain: Path) -> None:
    found = estimate(chain, dims={"n": 512})
    lower = {each.change: each.peak_bytes for each in found.reductions}
    assert lower["n=256"] == estimate(chain, dims={"n": 256}).point.peak_bytes
    unplanned = {"enable_mem_pattern": "0"}
    other = estimate(chain, dims={"n": 512}, session_options=unplanned)
    assert lower["enable_mem_pattern=0"] == other.point.peak_bytes
    assert list(lower.values()) == sorted(lower.values())
    assert "enable_mem_pattern=0" not in {each.change for each in other.reductions}
    # Size 1 cannot be halved, and less than 1 MiB is not worth a line.
    assert estimate(chain, dims={"n": 1}).reductions == ()


def test_a_peak_of_loading_is_not_lowered_by_smaller_sizes(weighted: Path) -> None:
    found = estimate(weighted, dims={"tokens": 2})
    assert found.point.peak_phase in ("optimize", "prepack", "initialize", "constant_fold")
    assert {each.change for each in found.reductions} <= {"session.disable_prepacking=1"}


def test_live_tensors_state_how_they_grow(tmp_path: Path) -> None:
    text = """g (float[batch, n, 2] x) => (float[batch, n, n] y)
        { t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, t) y = Sin(s) }"""
    path = save_model(tmp_path / "square.onnx", text)
    found = estimate(path, dims={"n": [64, 128]})
    growth = {tensor.name: tensor.growth for tensor in found.point.live}
    assert growth["s"] == growth["y"] == {"batch": 2.0, "n": 4.0}
    # Of the other points only figures are listed.
    assert not any(tensor.growth for tensor in found.points[1].live)


def test_other_options_are_named_in_a_note(weighted: Path) -> None:
    found = estimate(
        weighted,
        session_options={"session.intra_op.allow_spinning": "0"},
        disabled_optimizers=["ConstantFolding", "MatMulAddFusion"],
    )
    assert found.notes == (
        "session.intra_op.allow_spinning, MatMulAddFusion are not considered: the estimate is the"
        " same without them",
    )
    known = {"session.disable_prepacking": "1"}
    assert estimate(weighted, session_options=known).notes == ()


def test_upper_bounds_are_the_upper_ends(weighted: Path) -> None:
    usual, upper = estimate(weighted), estimate(weighted, upper=True)
    assert upper.is_upper
    assert upper.point.peak_bytes == usual.point.high_bytes
    assert upper.point.steady_bytes > usual.point.steady_bytes


def saved(tmp_path: Path, body: str, inputs: str = "float[n, 64] x") -> Path:
    """Save a model whose output y is what `body` computes."""
    model = model_of(
        f"""g ({inputs}, int64 m) => (float y) <int64[1] zero = {{0}}, int64[1] one = {{1}},
        int64 i = {{0}}, int64 j = {{1}}, float[2] onoff = {{0, 1}}> {{ {body} }}"""
    )
    model.graph.output[0].type.Clear()
    path = tmp_path / "data.onnx"
    onnx.save(model, path)
    return path


NON_ZERO = "p = NonZero(x) t = Transpose<perm = [1, 0]>(p) v = GatherND(x, t) y = Sin(v)"
ROWS = "s = Shape(x) r = Slice(s, zero, one) k = ReduceSum<keepdims = 0>(r) "
LOOP = """<body = b (int64 i2, bool c, float[p, 64] a) => (bool d, float[q, 64] e) {
    d = Identity(c) e = Concat<axis = 0>(a, u) }>"""


def test_values_of_computed_sizes_count(tmp_path: Path) -> None:
    body = f"{ROWS} t = Range(i, k, j) h = OneHot(t, r, onoff) a = Neg(h) y = Exp(a)"
    found = estimate(saved(tmp_path, body), dims={"n": 1024})
    assert not found.point.unknown_values
    assert [tensor.bytes for tensor in found.point.live] == [4 * MIB] * 2
    fit = fit_of(saved(tmp_path, body), GIB, dims={"n": 1024})
    # Two matrices of n times n floats, in powers of two.
    assert fit.probably is not None
    assert 8 * fit.probably**2 <= GIB < 16 * 8 * fit.probably**2


def test_a_loop_that_grows_counts_as_its_last_iteration(tmp_path: Path) -> None:
    path = saved(tmp_path, f"{ROWS} u = Slice(x, zero, one) y = Loop(k, , u) {LOOP}")
    point = estimate(path, dims={"n": 4096}).point
    assert not point.unknown_values
    # The rows before the last iteration, after it, and their copy in the output.
    assert {tensor.name: tensor.bytes for tensor in point.live[:3]} == {
        "a": 4096 * 256,
        "e": 4097 * 256,
        "y": 4097 * 256,
    }
    # The chunks of earlier iterations are too small for later ones.
    activations = sum(tensor.bytes for tensor in point.live)
    assert point.phase("first_run") is not None
    assert point.peak_bytes > 1.3 * activations


def test_what_a_loop_puts_out_is_there_twice_at_its_end(tmp_path: Path) -> None:
    body = """<body = b (int64 i2, bool c, float[n, 64] a) =>
        (bool d, float[n, 64] e, float[n, 64] f) { d = Identity(c) e = Sin(a) f = Cos(a) }>"""
    many, few = (
        estimate(saved(tmp_path, f"k = Constant<value_int = {count}>() v, y = Loop(k, , x) {body}"))
        for count in (33, 1)
    )
    rows = many.dimensions[0].size
    # Of 33 iterations, 32 are kept until the last one ends, and all are in the output.
    assert sum(tensor.bytes for tensor in many.point.live) >= (32 + 33) * rows * 256
    assert sum(tensor.bytes for tensor in few.point.live) <= 5 * rows * 256


def test_what_depends_on_the_data_may_have_an_upper_end(tmp_path: Path) -> None:
    found = estimate(saved(tmp_path, NON_ZERO), dims={"n": 65536}, fit_bytes=GIB, run=False)
    point = found.point
    assert (point.unknown_values, point.is_bounded, found.is_floor) == (4, True, False)
    # At most there are indices of 16 bytes, twice, and two values of 4 bytes an element.
    assert point.pinned_high_bytes >= 65536 * 64 * 32 > 10 * point.peak_bytes
    (note,) = found.notes
    assert note.startswith("4 values have sizes that only a run shows, from NonZero_0 on; they")
    fit = found.fit
    assert fit is not None
    # No figure below the upper end is probable.
    assert fit.probably is not None
    assert fit.surely == pytest.approx(fit.probably, rel=0.04)
    at = estimate(saved(tmp_path, NON_ZERO), dims={"n": fit.probably}).point
    assert at.high_bytes <= GIB < 16 * at.high_bytes


@pytest.mark.parametrize(
    ("body", "count", "first"),
    [
        ("h = OneHot(c, m1, onoff) a = Neg(h) y = Exp(a)", 3, "OneHot_2"),
        ("t = Range(i, m, j) f = Cast<to = 1>(t) y = Neg(f)", 3, "Range_2"),
        (f"u = Slice(x, zero, one) t = Add(m, j) y = Loop(t, , u) {LOOP}", 2, "Loop_4"),
    ],
)
def test_what_nothing_limits_makes_a_floor(
    tmp_path: Path, body: str, count: int, first: str
) -> None:
    start = "m1 = Reshape(m, one) c = Cast<to = 7>(x) "
    found = estimate(saved(tmp_path, start + body), dims={"n": 64}, fit_bytes=GIB)
    assert (found.point.unknown_values, found.is_floor) == (count, True)
    assert f", from {first} on; " in found.notes[0]
    assert found.fit is not None
    assert found.fit.problem.endswith(f"{count} values is not known before a run")
    assert found.fit.probably is None


def test_what_a_run_shows_at_one_size_is_not_known_at_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "m1 = Reshape(m, one) c = Cast<to = 7>(x) h = OneHot(c, m1, onoff) y = Neg(h)"
    path, dims = saved(tmp_path, body), {"n": [64, 128, 256, 512]}
    monkeypatch.setattr(module, "_measured_peak", lambda path, sizes, *rest: sizes["n"] * MIB)
    before = memdiag.estimate(path, dims=dims)
    found = memdiag.estimate(path, dims=dims, measure=True)
    assert [point.is_floor for point in found.points] == [False, True, False, False]
    assert found.points[1] == before.points[1]
    assert [found.points[0].peak_phase, found.points[3].peak_phase] == ["steady"] * 2
    assert found.largest.dims == {"n": 512}


RESIZED = 'z = Concat<axis = 0>(one, side) y = Resize<mode = "linear">(x, , , z)'


@pytest.mark.parametrize(
    ("body", "inputs", "named"),
    [
        (RESIZED, "float[n, 64] x, int64[1] side", {"side": "ones"}),
        ("t = Shape(side) u = Add(t, m1) y = ConstantOfShape(u)", "int64[4] side", {"m": "ones"}),
        # These sizes depend on numbers that are not the same in all elements.
        (NON_ZERO, "float[n, 64] x", {}),
        ("v, i1 = TopK(x, k) y = Sin(v)", "float[n, 64] x, int64[1] k", {}),
    ],
)
def test_inputs_whose_numbers_decide_sizes_are_named(
    tmp_path: Path, body: str, inputs: str, named: dict[str, str]
) -> None:
    found = estimate(saved(tmp_path, f"m1 = Reshape(m, one) {body}", inputs))
    assert found.size_inputs == named
    assert bool(found.point.unknown_values) == ("TopK" not in body)


def test_an_unknown_operator_leaves_its_values_out(tmp_path: Path) -> None:
    model = model_of(CHAIN.replace("Sigmoid(a)", "Thing(a)"))
    model.graph.node[1].domain = "other"
    model.opset_import.add(domain="other", version=1)
    path = tmp_path / "unknown.onnx"
    onnx.save(model, path)
    found = estimate(path)
    assert found.notes
    assert found.point.peak_bytes > 0


def test_measured_points_correct_the_others(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = estimate(chain, dims={"n": [64, 256, 512]})
    known = {point.dims["n"]: point.peak_bytes for point in before.points}
    asked = []

    def measured(path: Path, sizes: Mapping[str, int], *rest: object) -> int:
        asked.append(sizes["n"])
        return 2 * known[sizes["n"]] + MIB

    monkeypatch.setattr(module, "_measured_peak", measured)
    found = memdiag.estimate(chain, dims={"n": [64, 256, 512]}, measure=True)
    assert asked == [64, 512, 256]
    assert [point.peak_bytes for point in found.points] == [
        pytest.approx(2 * size + MIB, abs=2) for size in known.values()
    ]
    held_out = [each for each in found.calibration if each.is_held_out]
    assert [each.dims["n"] for each in held_out] == [256]
    assert held_out[0].corrected_bytes == pytest.approx(held_out[0].measured_bytes, abs=2)
    assert held_out[0].estimated_bytes == known[256]
    # The measured processes had what malloc keeps: nothing is added for it.
    assert [point.high_bytes for point in found.points] == [
        point.pinned_high_bytes for point in found.points
    ]


def test_a_line_that_misses_a_measured_point_corrects_nothing_else(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [64, 128, 256, 512]
    before = estimate(chain, dims={"n": sizes})
    known = {point.dims["n"]: point.peak_bytes for point in before.points}
    taken = {64: known[64], 256: known[256] + MIB, 512: known[512] + 100 * MIB}
    monkeypatch.setattr(module, "_measured_peak", lambda path, sizes, *rest: taken[sizes["n"]])
    found = memdiag.estimate(chain, dims={"n": sizes}, measure=True)
    assert [point.peak_bytes for point in found.points] == [
        *(taken[64], known[128], taken[256], taken[512])
    ]
    assert all(p.low_bytes <= p.peak_bytes <= p.high_bytes for p in found.points)
    assert any("only measured points are corrected" in note for note in found.notes)


def test_one_point_is_measured_for_real(chain: Path) -> None:
    found = memdiag.estimate(chain, dims={"n": 512}, measure=True)
    (point,) = found.calibration
    assert not point.is_held_out
    assert found.point.peak_bytes == point.measured_bytes == point.corrected_bytes
    # An input of 8 MiB is read before; the first value and the sum are 8 MiB each at least.
    assert point.measured_bytes > 16 * MIB


def test_a_point_that_does_not_fit_into_the_machine_is_not_run(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_measured_peak", lambda *arguments: pytest.fail("it was run"))
    with pytest.raises(UsageError, match="Give smaller sizes"):
        memdiag.estimate(chain, dims={"n": [1, 1 << 30]}, measure=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dims": {"m": 1}}, "unknown dimension 'm': the model has n"),
        ({"dims": {"n": -1}}, "'n' must be 0 or greater, not -1"),
        ({"dims": {"n": [1, -1]}}, "'n' must be 0 or greater, not -1"),
        ({"dims": {"n": (8, 1)}}, "8..1 is not a range of sizes"),
        ({"dims": {"n": []}}, "has no size"),
        ({"dims": {"n": [1, "x"]}}, "dims must be numbers by name"),
        ({"dims": {"n": list(range(1, 66))}}, "65 combinations of sizes are too many"),
        ({"dims": ["n"]}, "dims must be sizes by name"),
        ({"fit_bytes": 0}, "fit_bytes must be greater than 0"),
        ({"run": False}, "run=False has no effect without fit_bytes"),
        ({"runs": -1}, "runs must be 0 or greater"),
        (
            {"session_options": {"graph_optimization_level": "most"}},
            "there is no optimization level 'most'",
        ),
        (
            {"session_options": {"enable_mem_pattern": "maybe"}},
            "must be true or false, not 'maybe'",
        ),
        ({"load_from": "url"}, "load_from cannot be 'url'"),
        ({"disabled_optimizers": "ConstantFolding"}, "must be a list of names"),
    ],
)
def test_bad_arguments_are_refused(
    chain: Path, arguments: Mapping[str, object], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        estimate(chain, **arguments)
    assert words in str(refused.value)


def test_measurements_are_of_the_installed_release(chain: Path) -> None:
    with pytest.raises(UsageError, match="Leave out for_onnxruntime"):
        memdiag.estimate(chain, for_onnxruntime="1.24.0", measure=True)


def test_a_damaged_file_is_an_error(chain: Path) -> None:
    chain.write_bytes(chain.read_bytes()[:-20])
    with pytest.raises(ModelError):
        estimate(chain)


def test_the_size_of_the_weights_does_not_matter(tmp_path: Path) -> None:
    side, count = 16384, 60
    products = " ".join(f"h{index + 1} = MatMul(h{index}, w{index})" for index in range(count))
    model = model_of(f"g (float[n, {side}] h0) => (float[n, {side}] h{count}) {{ {products} }}")
    for index in range(count):
        weight = model.graph.initializer.add(name=f"w{index}", data_type=1, dims=[side, side])
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": "w.bin", "offset": index * GIB, "length": GIB}.items():
            weight.external_data.add(key=key, value=str(value))
    path = tmp_path / "large.onnx"
    onnx.save(model, path)
    with (tmp_path / "w.bin").open("wb") as file:
        os.truncate(file.fileno(), count * GIB)  # sparse
    process = psutil.Process()
    before = process.memory_info().rss
    found = estimate(path)
    assert process.memory_info().rss - before < 100 * MIB
    assert found.duration_s < 1
    assert found.point.peak_bytes >= count * GIB


def test_sample_models_have_estimates(sample_model: Callable[..., Path]) -> None:
    found = estimate(sample_model("tied_if"))
    assert found.point.peak_bytes > 500 * KIB
