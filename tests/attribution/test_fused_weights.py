"""When the tensors that onnxruntime computed from weights are searched for."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.attribution import fused_weights
from memdiag.attribution.fused_weights import fused_search_targets
from memdiag.attribution.search_target import missing_bytes
from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.records.attribution import Attribution, Copy, Owner, ScanTiming, SearchedModel
from memdiag.runner.job import Job, SessionConfig
from memdiag.runner.optimized_model import save_optimized_model
from tests.attribution.provenance_models import Models, copy
from tests.builders import build, noise, saved

SMALL, LARGE = 512, 49 * 512  # bytes, of which the small one is 2 %


def xray(*copies: Copy, models: int = 1) -> Attribution:
    return Attribution(
        schema="memdiag.attribution/1",
        pid=1,
        resident_bytes=1,
        baseline_bytes=None,
        named_share=0.0,
        owners=(Owner(kind="unnamed", name="unnamed", bytes=1, private_bytes=1),),
        copies=copies,
        indistinct=(),
        partial=False,
        notes=(),
        timing=ScanTiming(total_s=0, scan_s=0, verify_s=0, scanned_bytes=0, verified_bytes=0),
        models=(SearchedModel(name="m.onnx", weight_bytes=SMALL + LARGE),) * models,
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


BODY = "z = Mul (x, small) y = Mul (z, large)"
WEIGHTS = {"small": noise(SMALL // 4), "large": noise(LARGE // 4)}


@pytest.mark.parametrize(
    ("copies", "is_saved"),
    [
        pytest.param(["small", "large"], False, id="nothing is fused"),
        pytest.param(["large"], False, id="2 % are missing"),
        pytest.param(["small"], True, id="98 % are missing"),
    ],
)
def test_the_model_is_optimized_only_if_weights_are_missing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stack: ExitStack,
    copies: list[str],
    is_saved: bool,
) -> None:
    target = Models(tmp_path, stack).target(BODY, **WEIGHTS)
    fused = noise(LARGE // 4, seed=1)
    written: list[Path] = []

    def save(_: Job, path: Path) -> None:
        graph = onnx.load(target.model_file.path)
        graph.graph.initializer[1].raw_data = fused.tobytes()
        onnx.save(graph, path)
        written.append(path)

    monkeypatch.setattr(fused_weights, "save_optimized_model", save)
    found = xray(*(copy("original", name) for name in copies))
    job = Job(model=target.model_file.path)
    targets = fused_search_targets(target, found, [job, job], tmp_path, stack)
    assert len(written) == len(targets) == 2 * is_saved
    for each in targets:
        assert each.fused_from is target.model_file
        (content,) = each.weights  # not the weight that the model has as well
        assert np.array_equal(content.values, fused)


def test_a_model_that_is_not_written_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stack: ExitStack
) -> None:
    target = Models(tmp_path, stack).target(BODY, **WEIGHTS)
    monkeypatch.setattr(fused_weights, "save_optimized_model", lambda _job, _path: "no room")
    jobs = [Job(model=target.model_file.path)]
    assert fused_search_targets(target, xray(), jobs, tmp_path, stack) == []


def test_copies_of_another_model_with_the_same_names_are_not_found(
    tmp_path: Path, stack: ExitStack
) -> None:
    target = Models(tmp_path, stack).target(BODY, **WEIGHTS)
    copies = [copy("original", name, models=(0,)) for name in ("small", "large")]
    found = xray(*copies, models=2)
    assert missing_bytes(target, found, index=0) == 0
    assert missing_bytes(target, found, index=1) == SMALL + LARGE


def test_weights_on_a_device_are_not_missing(tmp_path: Path, stack: ExitStack) -> None:
    target = Models(tmp_path, stack).target(BODY, **WEIGHTS)
    assert missing_bytes(target, xray(), on_device={"large", "another"}) == SMALL
    on_device = {"small", "large"}
    jobs = [Job(model=target.model_file.path)]
    assert fused_search_targets(target, xray(), jobs, tmp_path, stack, on_device=on_device) == []


def test_the_graph_that_another_provider_receives_is_saved(tmp_path: Path) -> None:
    # A Sigmoid and the Mul of its input become one node only in optimizations beyond the basic
    # ones, and the Transpose is folded by these.
    graph = """(float[4, 8] x) => (float[4, 4] y)
        { t = Transpose(w) p = MatMul(x, t) s = Sigmoid(p) y = Mul(p, s) }"""
    source = saved(build(graph, weights={"w": noise(4, 8)}), tmp_path)
    operators = []
    for number, providers in enumerate((("MyProvider", "CPUExecutionProvider"), DEFAULT_PROVIDERS)):
        options = {"MyProvider": {"key": "value"}} if number == 0 else {}
        session = SessionConfig(providers=providers, provider_options=options)
        target = tmp_path / f"{number}.onnx"
        assert save_optimized_model(Job(model=source, session=session), target) is None
        operators.append([node.op_type for node in onnx.load(target).graph.node])
    assert operators == [["MatMul", "Sigmoid", "Mul"], ["MatMul", "QuickGelu"]]
