"""The rewrites of products on real sessions: fewer copies, and they load on the oldest runtime."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites import rewriters
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.runner.job import Feed, Job, SessionConfig
from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import Bound, compare_outputs
from tests.rewrites.rewriting import finding, random
from tests.rewrites.tied_models import STORED, saved_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 1_000_000
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
        with SessionServer(
            Job(model=model, session=SessionConfig(python=python), runs=None), sets
        ) as server:
            assert server.onnxruntime == "1.20.1"
            outputs.append(
                [server.save(index, tmp_path / f"{name}-{index}") for index in range(len(sets))]
            )
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
