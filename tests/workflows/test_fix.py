"""Fixing models whose waste is known; what must not be written is not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import memdiag
from memdiag.errors import UsageError
from memdiag.records.finding import Finding
from memdiag.records.fix import Fix
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite, Rewriter
from memdiag.remedies.rewrites import rewriters_for
from memdiag.units import MIB

SampleModel = Callable[..., Path]


@pytest.fixture
def tied(sample_model: SampleModel, tmp_path: Path) -> Path:
    """A copy of the tied model of 24 MB in a folder of the test's own."""
    path = tmp_path / "tied.onnx"
    path.write_bytes(sample_model("tied_if", 24).read_bytes())
    return path


def statuses(fix: Fix) -> dict[str, str]:
    return {remedy.name: remedy.status for remedy in fix.remedies}


def run(path: Path, **feeds: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, feeds)
    assert isinstance(output, np.ndarray)
    return output


@pytest.fixture
def two_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave two of the rewrites for a tied weight, so that a test takes seconds."""

    def chosen(rule: str) -> tuple[Rewriter, ...]:
        wanted = ("overridable-weight", "gemm-transposed")
        return tuple(one for one in rewriters_for(rule) if one.rewrite.name in wanted)

    monkeypatch.setattr("memdiag.workflows.fix.rewriters_for", chosen)


@pytest.mark.usefixtures("two_rewrites")
def test_the_tied_weight_loses_its_copies(tied: Path) -> None:
    before = tied.read_bytes()
    fix = memdiag.fix(tied, max_slowdown=10, sizes=[1])
    assert fix.output == str(tied.with_name("tied.fixed.onnx"))
    assert fix.verified
    assert "applied" in statuses(fix).values()
    assert fix.before is not None
    assert fix.after is not None
    assert fix.before.steady_bytes - fix.after.steady_bytes > 20 * MIB
    assert fix.largest_difference is not None
    assert fix.bound is not None
    assert fix.largest_difference <= fix.bound
    assert {at.inputs for at in fix.latencies} == {"use_embedding true", "use_embedding false"}
    assert tied.read_bytes() == before
    assert sorted(path.name for path in tied.parent.iterdir()) == ["tied.fixed.onnx", "tied.onnx"]
    onnx.checker.check_model(fix.output)
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((3, 1024), np.float32)
    feeds = {"ids": np.array([1, 5, 7]), "hidden": hidden, "use_embedding": np.array(False)}
    one, other = run(tied, **feeds), run(Path(fix.output), **feeds)
    assert np.abs(one - other).max() <= 1e-4 * np.abs(one).max()
    assert np.array_equal(
        run(tied, **feeds | {"use_embedding": np.array(True)}),
        run(Path(fix.output), **feeds | {"use_embedding": np.array(True)}),
    )


def test_a_clean_model_is_left_alone(sample_model: SampleModel, tmp_path: Path) -> None:
    fix = memdiag.fix(sample_model("plain_mlp"), tmp_path / "out.onnx")
    assert (fix.output, fix.remedies) == (None, ())
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_be_tried_and_writes_nothing(tied: Path) -> None:
    fix = memdiag.fix(tied, dry_run=True)
    assert statuses(fix)["overridable-weight"] == "possible"
    assert fix.output is None
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]


def test_only_what_is_asked_for_is_tried(tied: Path) -> None:
    assert memdiag.fix(tied, only=["identical-weights"]).remedies == ()
    with pytest.raises(UsageError, match="there is no rule"):
        memdiag.fix(tied, only=["nonsense"])


@pytest.mark.parametrize("name", ["tied.onnx", "./tied.onnx"])
def test_the_original_is_never_the_output(tied: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the original's own file"):
        memdiag.fix(tied, tied.parent / name)


@pytest.mark.usefixtures("two_rewrites")
def test_a_limit_that_nothing_keeps_leaves_the_model_as_it_is(tied: Path) -> None:
    fix = memdiag.fix(tied, max_slowdown=1e-6, sizes=[1])
    assert {*statuses(fix).values()} <= {"rejected", "refused"}
    assert any("slower" in remedy.reason for remedy in fix.remedies)
    assert fix.output is None
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A rewrite for tied weights that saves all memory and computes something else."""

    def check(draft: Draft, finding: Finding) -> str | None:
        return None

    def apply(draft: Draft, finding: Finding) -> bool:
        for graph in draft.model.graphs():
            for node in graph:
                if node.op_type == "Gather":
                    node.op_type = "GatherElements"
                if node.op_type == "MatMul":
                    node.replace_input_with(0, node.inputs[0])
                    node.op_type = "MatMul"
                    for user in list(node.outputs[0].uses()):
                        user.node.replace_input_with(user.idx, node.inputs[0])
        return True

    rewrite = Rewrite(
        name="wrong", summary="x", rules=("shared-weight-transposed",), arithmetic="reordered"
    )
    monkeypatch.setattr(
        "memdiag.workflows.fix.rewriters_for",
        lambda rule: (Rewriter(rewrite, check, apply),) if rule in rewrite.rules else (),
    )
    return ["wrong"]


def test_a_wrong_rewrite_is_rejected(tied: Path, wrong: list[str]) -> None:
    fix = memdiag.fix(tied)
    assert statuses(fix) == {"wrong": "rejected"}
    assert fix.output is None


def test_a_model_that_does_not_run_is_fixed_only_unverified(tmp_path: Path) -> None:
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17, "custom" : 1]>'
        """g (float[n, 64] x, int64[n] i) => (float[n, 65536] y, float[n, 64] z) {
            h = custom.Odd(x)
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul(h, t)
            z = Gather(w, i)
        }"""
    )
    values = np.random.default_rng(0).standard_normal((65536, 64), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    refused = memdiag.fix(path)
    assert {*statuses(refused).values()} == {"refused"}
    assert "--unverified" in refused.remedies[0].reason
    assert refused.output is None
    fix = memdiag.fix(path, unverified=True)
    assert "unverified" in statuses(fix).values()
    assert not fix.verified
    assert fix.output is not None
    onnx.checker.check_model(fix.output)
