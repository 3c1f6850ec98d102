"""Rewrites on real sessions: they take less memory, and run on the oldest release."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites import rewriters
from memdiag.rewrites.catalog import (
    constant_to_initializer,
    deduplicate,
    defer_expand,
    dequantize_to_matmulnbits,
    drop_unused,
    fp16_to_fp32,
    hoist_shallow_weights,
    hoist_subgraph_weights,
    keep_unfolded,
    pass_function_weights,
    raw_data,
    remove_identities,
)
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.runner.job import Feed, Job, SessionConfig
from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import Bound, compare_outputs
from tests.model_text import random, text_model
from tests.rewrites import (
    quantized_models,
    test_constant_to_initializer,
    test_deduplicate,
    test_drop_unused,
    test_hoist_shallow_weights,
    test_hoist_subgraph_weights,
    test_pass_function_weights,
    test_raw_data,
    test_remove_identities,
)
from tests.rewrites.rewriting import finding, rewrite, runs_on, taken
from tests.rewrites.tied_models import STORED, saved_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 1_000_000
MIB = 1 << 20
SIZE = 24
SHARED = finding("model.shared.weight")
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
LEFT = {
    "gemm-transposed": ["original", "packed"],
    "fused-matmul-transposed": ["original", "packed"],
    "transpose-small-side": ["original"],
    "overridable-weight": ["original"],
    "product-by-rows": ["original"],
}


class Spared(NamedTuple):
    """A rewrite and a large model, and what its sessions take less, in MiB at least."""

    module: ModuleType
    model: Callable[[], ModelProto]
    of: Finding | str
    steady_mib: float
    peak_mib: float
    storage: TargetStorage = "embedded"
    overridable: bool = False


def enlarged(text: str, before: str, after: str, **seeds: int) -> Callable[[], ModelProto]:
    """Return a function that builds the model of `text` with larger weights, equal for a seed."""

    def build() -> ModelProto:
        size = int(after)
        weights = {name: random((size, size), seed) for name, seed in seeds.items()}
        return text_model(text.replace(before, after), **weights)

    return build


def halves() -> ModelProto:
    """Return a chain of products by fp16 weights of 32 MiB in all."""
    names = [f"w{index}" for index in range(8)]
    nodes = " ".join(f"h{n} = MatMul({f'h{n - 1}' if n else 'x'}, w{n})" for n in range(8))
    declared = ", ".join(f"float16[1448, 1448] {name}" for name in names)
    return text_model(
        f"g (float16[n, 1448] x) => (float16[n, 1448] y) <{declared}>"
        f" {{ {nodes} y = Identity(h7) }}"
    )


def tables() -> ModelProto:
    """Return a model that looks up rows of eight tables of 8 MiB, each made of one row."""
    nodes = " ".join(f"t{n} = Expand(row{n}, shape) g{n} = Gather(t{n}, i)" for n in range(8))
    declared = ", ".join(f"float[1, 1024] row{n}" for n in range(8))
    gathered = ", ".join(f"g{n}" for n in range(8))
    text = f"<int64[2] shape, {declared}> {{ {nodes} y = Sum({gathered}) }}"
    return text_model(f"g (int64[n] i) => (float[n, 1024] y) {text}", shape=np.array([2048, 1024]))


def expanded() -> ModelProto:
    """Return a model that expands 16 MiB, fills 16 MiB and casts 16 MiB to 32."""
    return text_model(
        """g (int64[n] i, float[4096, 1024] x)
            => (float[n, 1024] y, float[n, 2048] e, float[4096, 1024] z)
            <float[1, 1024] row, int64[2] shape, float16[4096, 2048] w> {
            big = Expand(row, shape) g = Gather(big, i) f = Cast<to = 1>(w) e = Gather(f, i)
            y = Neg(g) fill = ConstantOfShape<value = float[1] {2}>(shape) z = Mul(x, fill) }""",
        shape=np.array([4096, 1024]),
    )


def typed_rows() -> ModelProto:
    weight = test_raw_data.typed("w", TensorProto.INT8, [4096, 4096])
    return test_raw_data.gathering(weight)


def identities() -> ModelProto:
    return test_remove_identities.branches("p = Gather(v, ids)", "q = Gather(w, ids)", rows=1 << 18)


CASES = {
    "constant-to-initializer": Spared(
        constant_to_initializer,
        enlarged(test_constant_to_initializer.BRANCHES, "32", "2048", w=0, v=1),
        "v If_1/then_branch/w",
        -1,
        -1,
    ),
    "deduplicate": Spared(
        deduplicate,
        enlarged(test_deduplicate.BRANCHES, "8", "2048", v=0, u=0),
        test_deduplicate.BOTH,
        30,
        12,
    ),
    "defer-expand": Spared(
        defer_expand,
        expanded,
        finding(nodes=("Expand_0", "Cast_2", "ConstantOfShape_5")),
        40,
        24,
    ),
    "dequantize-to-matmulnbits, fused": Spared(
        dequantize_to_matmulnbits,
        lambda: quantized_models.model(depth=4096, columns=16384),  # 32 MiB, 8 MiB of scales
        quantized_models.FUSED,
        -12,
        24,
        "external",
    ),
    "dequantize-to-matmulnbits, in each run": Spared(
        dequantize_to_matmulnbits,
        lambda: quantized_models.model(depth=2048, columns=4096, axis=-2),  # 32 MiB in fp32
        quantized_models.IN_EACH_RUN,
        24,
        24,
    ),
    "drop-unused": Spared(drop_unused, enlarged(test_drop_unused.DEAD, "8", "2048"), "u v", 30, 30),
    "fp16-to-fp32": Spared(fp16_to_fp32, halves, "w0 w1 w2 w3 w4 w5 w6 w7", -8, 16, "external"),
    "hoist-shallow-weights": Spared(
        # Of two weights of 4 MiB, a stale copy and an original next to the packed one.
        hoist_shallow_weights,
        enlarged(test_hoist_shallow_weights.NESTED, "8", "1024"),
        f"{test_hoist_shallow_weights.SHALLOW} {test_hoist_shallow_weights.DEEP}",
        12,
        0,
    ),
    "hoist-subgraph-weights": Spared(
        # Of each weight, a stale copy and an original next to the packed one.
        hoist_subgraph_weights,
        enlarged(test_hoist_subgraph_weights.BRANCHES, "8", "2048", v=1),
        test_hoist_subgraph_weights.NAMES,
        50,
        20,
    ),
    "keep-unfolded": Spared(
        # One result takes the place of the other.
        keep_unfolded,
        tables,
        finding(nodes=[f"Expand_{2 * n}" for n in range(8)]),
        24,
        24,
        overridable=True,
    ),
    "pass-function-weights": Spared(
        pass_function_weights,
        lambda: text_model(test_pass_function_weights.TWICE, k=random((1 << 18, 16))),
        "local::F/k",
        13,
        40,
    ),
    "raw-data": Spared(raw_data, typed_rows, "w", -1, 40),
    "remove-identities": Spared(remove_identities, identities, "w", 13, 12),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_memory_that_it_spares(tmp_path: Path, case: Spared) -> None:
    options: dict[str, Any] = {"storage": case.storage, "overridable": case.overridable}
    fixed = rewrite(case.module, case.model(), case.of, tmp_path, **options)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert before.steady_bytes - after.steady_bytes > case.steady_mib * MIB
    assert before.peak_bytes - after.peak_bytes > case.peak_mib * MIB
    assert runs_on("1.20.1", fixed)


def test_constants_are_there_twice_once_parsed(tmp_path: Path) -> None:
    text = "".join(f" w{n} = Constant() x{n + 1} = MatMul(x{n}, w{n})" for n in range(4))
    weights = {f"w{n}": random((2048, 2048), n) for n in range(4)}
    model = text_model(f"g (float[n, 2048] x0) => (float[n, 2048] x4) {{ {text} }}", **weights)
    fixed = rewrite(constant_to_initializer, model, " ".join(weights), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    # Initializers of the 64 MiB are there one at a time.
    assert before.parse_peak_bytes - after.parse_peak_bytes > 40 * MIB


def applied(name: str, path: Path, of: Finding, target: Path, external: bool) -> Path:
    rewriter = next(one for one in rewriters() if one.rewrite.name == name)
    with open_model(path) as file:
        editor = ModelEditor(file)
        assert rewriter.check(editor, of) is None
        assert rewriter.apply(editor, of)
        write_rewritten_model(editor, target, "external" if external else "embedded")
    return target


def anonymous(path: Path, **inputs: np.ndarray) -> tuple[list[str], int, int]:
    """Return the kinds of copies, and steady and peak private bytes above the baseline."""
    profile = memdiag.profile(path, runs=1, inputs=inputs, environment=PINNED)
    assert profile.attribution is not None
    assert profile.steady is not None
    assert profile.steady.anonymous_bytes is not None
    start = profile.phases[0].end.anonymous_bytes
    assert start is not None
    return (
        sorted(copy.kind for copy in profile.attribution.copies),
        profile.steady.anonymous_bytes - start,
        profile.peak_rss_bytes - profile.baseline_rss_bytes,
    )


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
def test_the_copies_that_are_left_are_the_memory_that_is_taken(
    sample_model: Callable[..., Path], tmp_path: Path, external: bool
) -> None:
    path = sample_model("tied_if", SIZE, external)
    inputs = {"use_embedding": np.array(False)}
    kinds, private, peak = anonymous(path, **inputs)
    assert kinds == ["original", "packed", "transposed"]
    for name, left in LEFT.items():
        target = applied(name, path, SHARED, tmp_path / f"{name}.onnx", external)
        kinds, private_after, peak_after = anonymous(target, **inputs)
        assert kinds == left, name
        # One copy less is the whole weight less, but for the runtime's own few MB.
        saved = (3 - len(left)) * SIZE * MB
        assert private - private_after == pytest.approx(saved, abs=4 * MB), name
        assert peak_after <= peak + MB, name


def test_a_stored_transpose_is_gone_from_the_file(tmp_path: Path) -> None:
    path = saved_pair(tmp_path / "pair.onnx", 4096, 512)
    before = path.stat().st_size
    inputs = {"ids": np.arange(3)}
    _, private, _ = anonymous(path, **inputs)
    for name in ("gemm-transposed", "merge-transposed", "product-by-rows"):
        target = applied(name, path, STORED, tmp_path / f"{name}.onnx", False)
        assert before - target.stat().st_size == pytest.approx(4096 * 512 * 4, rel=0.01)
        _, private_after, _ = anonymous(target, **inputs)
        saved = 4096 * 512 * 4 if name == "product-by-rows" else 0
        assert private - private_after == pytest.approx(saved, abs=3 * MB), name


def test_the_oldest_runtime_computes_the_same(
    sample_model: Callable[..., Path], tmp_path: Path
) -> None:
    try:
        python = runtime("1.20.1")
    except ProvisionError as error:
        pytest.skip(str(error))
    path = sample_model("tied_if", 1, False)
    sets = [_feeds(tmp_path, rows, flag) for rows in (1, 3, 130) for flag in (True, False)]
    outputs = []
    for name in (None, *LEFT):
        model = path
        if name is not None:
            model = applied(name, path, SHARED, tmp_path / f"{name}.onnx", False)
        job = Job(model=model, session=SessionConfig(python=python), runs=None)
        with SessionServer(job, sets) as server:
            assert server.onnxruntime == "1.20.1"
            folders = [tmp_path / f"{name}-{index}" for index in range(len(sets))]
            outputs.append([server.save(index, folder) for index, folder in enumerate(folders)])
    for after in outputs[1:]:
        for one, other in zip(outputs[0], after, strict=True):
            for difference in compare_outputs(one, other):
                assert difference.relative <= Bound.reordered(1024).relative


def _feeds(folder: Path, rows: int, flag: bool) -> list[Feed]:
    arrays = {
        "use_embedding": np.array(flag),
        "ids": np.arange(rows) % 100,
        "hidden": random((rows, 1024)),
    }
    feeds = []
    for name, array in arrays.items():
        file = folder / f"{name}-{rows}-{flag}.npy"
        np.save(file, array)
        feeds.append(Feed(name=name, files=(file,)))
    return feeds
