"""Fixing models whose waste is known; what must not be written is not."""

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper, numpy_helper, parser

import memdiag
from memdiag.errors import ReportError, UsageError
from memdiag.records.finding import Finding
from memdiag.records.fix import Fix
from memdiag.rewrites import rewriters_for
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, Rewriter
from memdiag.units import MIB

SampleModel = Callable[..., Path]
TWO = ("overridable-weight", "gemm-transposed")


@pytest.fixture
def tied(sample_model: SampleModel, tmp_path: Path) -> Path:
    """A copy of the tied model of 1 MB in a folder of the test's own."""
    path = tmp_path / "tied.onnx"
    path.write_bytes(sample_model("tied_if", 1).read_bytes())
    return path


@pytest.fixture
def large_tied(sample_model: SampleModel, tied: Path) -> Path:
    """The same with 8 MB, whose copies are large against what the runtime allocates."""
    tied.write_bytes(sample_model("tied_if", 8).read_bytes())
    return tied


def statuses(fix: Fix) -> dict[str, str]:
    return {remedy.name: remedy.status for remedy in fix.remedies}


def run(path: Path, **feeds: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    output = session.run(None, feeds)[0]
    assert isinstance(output, np.ndarray)
    return output


@pytest.mark.usefixtures("two_rewrites", "equal_latency")
@pytest.mark.measures
def test_the_tied_weight_loses_its_copies(large_tied: Path) -> None:
    before = large_tied.read_bytes()
    fix = memdiag.fix(large_tied, max_slowdown=10, sizes=[1], only=["gemm-transposed"])
    assert fix.output == str(large_tied.with_name("tied.fixed.onnx"))
    assert fix.chosen == ("rewrite",)
    assert "applied" in statuses(fix).values()
    assert fix.before is not None
    assert fix.after is not None
    assert fix.before.steady_bytes - fix.after.steady_bytes > 6 * MIB
    assert fix.largest_difference is not None
    assert fix.bound is not None
    assert fix.largest_difference <= fix.bound
    assert {at.inputs for at in fix.latencies} == {
        f"{size}, use_embedding {flag}"
        for size in ("tokens 128", "tokens 1")
        for flag in ("true", "false")
    } | {"all inputs in turn (sum)"}
    assert large_tied.read_bytes() == before
    assert sorted(path.name for path in large_tied.parent.iterdir()) == [
        "tied.fixed.onnx",
        "tied.onnx",
    ]
    onnx.checker.check_model(fix.output)
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((3, 1024), np.float32)
    feeds = {"ids": np.array([1, 5, 7]), "hidden": hidden, "use_embedding": np.array(False)}
    one, other = run(large_tied, **feeds), run(Path(fix.output), **feeds)
    assert np.abs(one - other).max() <= 1e-4 * np.abs(one).max()
    assert np.array_equal(
        run(large_tied, **feeds | {"use_embedding": np.array(True)}),
        run(Path(fix.output), **feeds | {"use_embedding": np.array(True)}),
    )


def test_a_clean_model_is_left_alone(sample_model: SampleModel, tmp_path: Path) -> None:
    fix = memdiag.fix(sample_model("plain_mlp"), tmp_path / "out.onnx", only=["stored-transpose"])
    assert (fix.output, fix.remedies, fix.is_conclusive) == (None, (), True)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_model_at_the_output_is_named_if_nothing_is_written(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    target = tmp_path / "out.onnx"
    target.write_text("from an earlier fix")
    only = ["stored-transpose"]
    assert f"{target} was there before, and the result does not use it" in (
        memdiag.fix(sample_model("plain_mlp"), target, only=only).notes
    )
    assert not memdiag.fix(sample_model("plain_mlp"), tmp_path / "other.onnx", only=only).notes


def test_only_what_is_asked_for_is_tried(tied: Path) -> None:
    def left(*only: str) -> Fix:
        """Return a fix that has no time for any of it."""
        return memdiag.fix(tied, only=only, time_limit_s=1e-3)

    assert {"arena-off", "onnxruntime-basic"} <= {*left().untried}
    assert left("identical-weights").remedies == ()
    one = left("overridable-weight", "model-to-fp32")
    assert statuses(one) == {"overridable-weight": "untried", "model-to-fp32": "refused"}
    assert (one.untried, one.only) == ((), ("overridable-weight", "model-to-fp32"))
    reasons = {remedy.name: remedy.reason for remedy in one.remedies}
    assert reasons["model-to-fp32"] == "no finding calls for it (half-precision-cast would)"
    options = left("options")
    assert (options.remedies, "onnxruntime-basic" in options.untried) == ((), False)
    rewrites = left("rewrites")
    assert ("arena-off" in rewrites.untried, bool(rewrites.remedies)) == (False, True)
    of_rule = left("MD103")
    assert of_rule.only == ("shared-weight-transposed",)
    assert {remedy.rule for remedy in of_rule.remedies} == {"shared-weight-transposed"}
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]
    with pytest.raises(UsageError, match="'nonsense' is not a rewrite, option, optimizer or rule"):
        memdiag.fix(tied, only=["nonsense"])


@pytest.mark.parametrize("name", ["tied.onnx", "./tied.onnx"])
def test_the_original_is_never_the_output(tied: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the original's own file"):
        memdiag.fix(tied, tied.parent / name)


@pytest.mark.slow
@pytest.mark.usefixtures("two_rewrites")
def test_a_limit_that_nothing_keeps_leaves_the_model_as_it_is(large_tied: Path) -> None:
    fix = memdiag.fix(
        large_tied, max_slowdown=1e-6, sizes=[1], only=["overridable-weight", "gemm-transposed"]
    )
    assert {*statuses(fix).values()} <= {"rejected", "refused"}
    assert any("slower" in remedy.reason for remedy in fix.remedies)
    assert fix.output is None
    assert [path.name for path in large_tied.parent.iterdir()] == ["tied.onnx"]


HANGING = """
import time

import onnxruntime


class Session(onnxruntime.InferenceSession):
    def __init__(self, source, options=None, *args, **more):
        if isinstance(source, str):
            with open(source, "rb") as file:
                if OPERATOR in file.read():
                    time.sleep(600)
        super().__init__(source, options, *args, **more)


onnxruntime.InferenceSession = Session
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function after which models with an operator take ten minutes to load, in children."""

    def hang(operator: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir()
        text = HANGING.replace("OPERATOR", repr(operator.encode()))
        (folder / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return hang


@pytest.mark.usefixtures("two_rewrites")
def test_a_time_limit_holds_while_the_original_loads(
    tied: Path, hanging: Callable[[str], None]
) -> None:
    hanging("Gather")
    fix = memdiag.fix(tied, sizes=[1], time_limit_s=1)
    assert {*statuses(fix).values()} == {"untried"}
    assert (fix.output, fix.before, fix.ended_by) == (None, None, "time_limit")
    assert "arena-off" in fix.untried
    assert not fix.is_conclusive
    assert "passed before the original itself was measured" in repr(fix)


@pytest.mark.usefixtures("two_rewrites", "halved_memory")
def test_ctrl_c_leaves_the_best_so_far(tied: Path) -> None:
    def interrupt(words: str) -> None:
        if "trying gemm-transposed" in words:
            raise KeyboardInterrupt

    fix = memdiag.fix(
        tied, sizes=[], on_progress=interrupt, only=["overridable-weight", "gemm-transposed"]
    )
    assert statuses(fix) == {"overridable-weight": "applied", "gemm-transposed": "untried"}
    assert fix.output is not None
    assert any("interrupted" in note for note in fix.notes)
    assert sorted(path.name for path in tied.parent.iterdir()) == ["tied.fixed.onnx", "tied.onnx"]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_limit_without_time_is_refused(tied: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="--time-limit must be greater than 0"):
        memdiag.fix(tied, time_limit_s=seconds)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A rewrite for tied weights that saves all memory and computes something else."""

    def check(editor: ModelEditor, finding: Finding) -> str | None:
        return None

    def apply(editor: ModelEditor, finding: Finding) -> bool:
        for graph in editor.model.graphs():
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
        name="product-by-rows",
        summary="x",
        rules=("shared-weight-transposed",),
        arithmetic="reordered",
    )
    monkeypatch.setattr(
        "memdiag.fixing.changes.rewriters_for",
        lambda rule: (Rewriter(rewrite, check, apply),) if rule in rewrite.rules else (),
    )
    return ["product-by-rows"]


@pytest.mark.usefixtures("one_process_each")
def test_a_wrong_rewrite_is_rejected(tied: Path, wrong: list[str]) -> None:
    fix = memdiag.fix(tied, sizes=[], only=["shared-weight-transposed"])
    assert statuses(fix) == {"product-by-rows": "rejected"}
    assert fix.output is None


@pytest.mark.slow
def test_a_weight_that_stays_in_the_original_is_counted_and_named(
    sample_model: SampleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "memdiag.fixing.changes.rewriters_for",
        lambda rule: [
            one for one in rewriters_for(rule) if one.rewrite.name == "overridable-weight"
        ],
    )
    built = sample_model("tied_if", 24, external=True)
    model, data = tmp_path / built.name, tmp_path / f"{built.name}.data"
    model.write_bytes(built.read_bytes())
    data.write_bytes(Path(f"{built}.data").read_bytes())
    fix = memdiag.fix(model, max_slowdown=10, sizes=[1], only=["overridable-weight"])
    assert fix.output is not None
    assert fix.after is not None
    output = Path(fix.output)
    assert output.stat().st_size < 2000
    assert fix.output_files == (str(output), str(data))
    assert fix.kept_files == (str(data),)
    assert 24_000_000 - 4096 < fix.kept_bytes <= data.stat().st_size
    assert fix.after.disk_bytes == output.stat().st_size + data.stat().st_size
    assert fix.is_valid
    assert fix.onnxruntime == onnxruntime.__version__
    assert fix.oldest_onnxruntime == "1.20.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [model.name, data.name, output.name]
    )


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_measured(
    tied: Path,
) -> None:
    steps: list[str] = []
    with pytest.raises(ReportError, match="cannot be written"):
        memdiag.fix(tied, tied / "out.onnx", on_progress=steps.append)
    assert not any("measuring" in step for step in steps)


def many_files(folder: Path, rows: int = 65536) -> Path:
    """Write a tied weight and another one, each in an external file of its own."""
    proto = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 64] x, int64[i] ids) => (float[n, {rows}] y, float[i, 64] z) {{
            h = MatMul(x, v)
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul(h, t)
            z = Gather(w, ids)
        }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (rows, 64)), ("v", (64, 64))):
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
        external_data_helper.set_external_data(proto.graph.initializer[-1], f"{name}.bin")
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("two_rewrites", "halved_memory")
def test_several_external_files(tmp_path: Path) -> None:
    fix = memdiag.fix(many_files(tmp_path), max_slowdown=10, sizes=[1], only=["gemm-transposed"])
    assert fix.output is not None
    assert {*fix.kept_files} == {str(tmp_path / "w.bin"), str(tmp_path / "v.bin")}
    assert fix.kept_bytes == 65536 * 64 * 4 + 64 * 64 * 4
    onnx.checker.check_model(fix.output)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("two_rewrites", "halved_memory")
def test_more_than_two_gigabytes_of_weights(tmp_path: Path) -> None:
    # All zeros, and no bytes on disk: a sparse file of 2.5 GB.
    rows, columns = 10240, 65536
    proto = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 64] x, int64[i] ids) => (float[n, 65536] y, float[i, 64] z,
           float[i, {columns}] b) {{
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul(x, t)
            z = Gather(w, ids)
            b = Gather(big, ids)
        }}"""
    )
    values = np.random.default_rng(0).standard_normal((65536, 64)).astype(np.float32)
    values.tofile(tmp_path / "w.bin")
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(rows * columns * 4)
    for name, shape in (("w", values.shape), ("big", (rows, columns))):
        made = proto.graph.initializer.add()
        made.name, made.data_type = name, onnx.TensorProto.FLOAT
        made.dims.extend(shape)
        made.data_location = onnx.TensorProto.EXTERNAL
        made.external_data.add(key="location", value=f"{name}.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fix = memdiag.fix(path, max_slowdown=10, sizes=[1], only=["gemm-transposed"])
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * MIB
    assert fix.output is not None
    assert {*fix.kept_files} == {str(tmp_path / "big.bin"), str(tmp_path / "w.bin")}
    assert fix.kept_bytes == (rows * columns + values.size) * 4
    assert fix.is_valid
    assert run(Path(fix.output), x=values[:2], ids=np.array([1])).shape == (2, 65536)
