"""What a profile says can be rewritten is what a fix would try."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import memdiag
from memdiag.fixing import applicable
from memdiag.fixing.applicable import findings_with_rewrites
from memdiag.fixing.changes import changes_by_rule
from memdiag.fixing.model_writer import ModelWriter
from memdiag.fixing.state import FixState
from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites import merge_weights
from tests.model_text import random, with_weights


def possible(path: Path) -> set[str]:
    """Return the names of the rewrites that a fix would build, verify and measure."""
    findings = memdiag.check(path, min_bytes=0)
    with open_model(path) as file:
        state = FixState(writer=ModelWriter(file, path.with_suffix(".fixed.onnx")))
        changes = chain.from_iterable(changes_by_rule(findings))
        return {one.name for one in changes if state.possible(one) is not None}


def checked(path: Path) -> tuple[Finding, ...]:
    findings = memdiag.check(path, min_bytes=0)
    with open_model(path) as file:
        return findings_with_rewrites(findings, file)


def twins(path: Path) -> Path:
    """A model with two equal weights of 256 KiB."""
    text = "g (float[n, 256] x) => (float[n, 256] y) { a = MatMul(x, v) y = MatMul(a, w) }"
    weight = random((256, 256))
    onnx.save(with_weights(text, v=weight, w=weight), path)
    return path


@pytest.mark.parametrize(
    "name",
    ["expand_bomb", "plain_mlp", "qdq_matmul", "subgraph_weights", "tied_if", "denormal_conv"],
)
def test_it_agrees_with_a_fix(sample_model: Callable[..., Path], name: str) -> None:
    path = sample_model(name, 4)
    findings = checked(path)
    assert {rewrite for one in findings for rewrite in one.rewrites or ()} == possible(path)
    for one in findings:
        assert one.rewrites is not None
        assert set(one.rewrites) <= set(one.remedies)
        assert bool(one.refusal) <= (not one.rewrites)


def test_what_cannot_be_rewritten_says_why_and_keeps_its_options(tmp_path: Path) -> None:
    made = " ".join(f"w{n} = ConstantOfShape<value=float[1]{{0.{n + 1}}}>(s)" for n in range(8))
    read = " ".join(f"a{n} = Add(x, w{n}) r{n} = ReduceMax(a{n})" for n in range(8))
    total = ", ".join(f"r{n}" for n in range(8))
    text = f"""g (float[1, 1, 8] x, int64[3] s) => (float[a, b, c] y)
        {{ {made} {read} y = Sum({total}) }}"""
    onnx.save(with_weights(text, 3, 17, s=np.array([64, 900, 8])), tmp_path / "m.onnx")
    (one,) = [one for one in checked(tmp_path / "m.onnx") if one.name == "folding-grows"]
    assert one.refusal == "defer-expand: no other operand of Add is known to have the whole shape"
    assert one.rewrites == ()
    assert not possible(tmp_path / "m.onnx")
    assert "folding-size-limit" in one.remedies


def test_no_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = twins(tmp_path / "m.onnx")
    assert "deduplicate" in possible(path)
    findings = memdiag.check(path, min_bytes=0)

    def read(*_: object) -> None:
        raise AssertionError("a weight was read")

    with open_model(path) as file:
        monkeypatch.setattr(merge_weights, "iter_tensor_chunks", read)
        monkeypatch.setattr("onnx_ir.ExternalTensor.numpy", read)
        monkeypatch.setattr("onnx_ir.ExternalTensor.tobytes", read)
        found = findings_with_rewrites(findings, file)
    assert [one.rewrites for one in found if one.name == "identical-weights"] == [("deduplicate",)]


def test_a_large_graph_and_refuted_findings_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = twins(tmp_path / "m.onnx")
    findings = memdiag.check(path, min_bytes=0)
    refuted = tuple(msgspec.structs.replace(one, evidence="refuted") for one in findings)
    with open_model(path) as file:
        assert findings_with_rewrites(refuted, file) == refuted
        monkeypatch.setattr(applicable, "MAX_CHECKED_NODES", file.node_count)
        assert all(one.rewrites is not None for one in findings_with_rewrites(findings, file))
        monkeypatch.setattr(applicable, "MAX_CHECKED_NODES", file.node_count - 1)
        assert findings_with_rewrites(findings, file) == findings
