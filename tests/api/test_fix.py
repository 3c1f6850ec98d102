"""Fixing models whose waste is known; what must not be written is not."""

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper

import memdiag
from memdiag.errors import MeasurementError, ReportError, UsageError
from memdiag.records.finding import Finding
from memdiag.records.fix import Fix
from memdiag.rewrites import rewriters_among
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, Rewriter
from memdiag.runner.job import TimeLimitReached
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB
from tests.api.small_models import model_of, save_model

SampleModel = Callable[..., Path]


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


def files_beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def run(path: Path, **feeds: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    output = session.run(None, feeds)[0]
    assert isinstance(output, np.ndarray)
    return output


@pytest.mark.usefixtures("two_rewrites", "equal_latency", "one_process_each")
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
    assert files_beside(large_tied) == ["tied.fixed.onnx", "tied.onnx"]
    onnx.checker.check_model(fix.output)
    hidden = np.random.default_rng(1).standard_normal((3, 1024), np.float32)
    feeds = {"ids": np.array([1, 5, 7]), "hidden": hidden, "use_embedding": np.array(False)}
    one, other = run(large_tied, **feeds), run(Path(fix.output), **feeds)
    assert np.abs(one - other).max() <= 1e-4 * np.abs(one).max()
    feeds["use_embedding"] = np.array(True)
    assert np.array_equal(run(large_tied, **feeds), run(Path(fix.output), **feeds))


@pytest.mark.usefixtures("unchanged_memory")
def test_a_clean_model_is_left_alone_and_an_earlier_output_is_named(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    def fixed(name: str) -> Fix:
        return memdiag.fix(sample_model("plain_mlp"), tmp_path / name, only=["stored-transpose"])

    fix = fixed("out.onnx")
    assert (fix.output, fix.remedies, fix.is_conclusive) == (None, (), True)
    assert (fix.notes, list(tmp_path.iterdir())) == ((), [])
    target = tmp_path / "earlier.onnx"
    target.write_text("from an earlier fix")
    assert f"{target} was there before, and the result does not use it" in fixed(target.name).notes


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
    assert files_beside(tied) == ["tied.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "tied.onnx"}, "the original's own file"),
        ({"output": "./tied.onnx"}, "the original's own file"),
        ({"output": "m.ort"}, "is in ONNX format. Choose a name with .onnx"),
        ({"only": ["nonsense"]}, "'nonsense' is not a rewrite, option, optimizer or rule"),
        ({"only": ["onnxslin"]}, "Did you mean onnxslim?"),
        ({"only": ["denormal-as-zero"]}, "it changes values. Allow that with --max-difference"),
        ({"only": ["map-ort-file"]}, "it makes no difference to this model"),
        ({"only": ["mimalloc"]}, "(it needs the library libmimalloc.so.2)"),
        ({"only": ["onnxsim"]}, "onnxsim: it is not installed"),
        ({"only": ["quantize-int8"]}, "quantize-int8 changes outputs"),
        ({"max_difference": 0.0}, "max_difference must be between 0 and 1"),
        ({"max_difference": 1.0}, "max_difference must be between 0 and 1"),
        ({"max_difference": float("nan")}, "max_difference must be between 0 and 1"),
        ({"max_slowdown": 0}, "max_slowdown must be a number greater"),
        ({"budget": {"speed": 1}}, "unknown budget 'speed'"),
        ({"time_limit_s": 0}, "time_limit_s must be greater than 0"),
        ({"time_limit_s": -1}, "time_limit_s must be greater than 0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_measured(
    tied: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    options = [
        replace(option, is_available=lambda _: False) if option.name == "mimalloc" else option
        for option in tuning_options()
    ]
    monkeypatch.setattr("memdiag.api.fix_scope.tuning_options", lambda: options)
    if arguments == {"only": ["onnxsim"]}:
        monkeypatch.setattr("memdiag.api.optimizer_outputs._is_installed", lambda name: False)
    monkeypatch.chdir(tied.parent)
    steps: list[str] = []
    with pytest.raises(UsageError) as refused:
        memdiag.fix("tied.onnx", on_progress=steps.append, **arguments)
    assert message in str(refused.value)
    assert not steps


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_measured(tied: Path) -> None:
    steps: list[str] = []
    with pytest.raises(ReportError, match="cannot be written"):
        memdiag.fix(tied, tied / "out.onnx", on_progress=steps.append)
    assert not any("measuring" in step for step in steps)


def test_a_model_without_a_session_is_an_error(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { y = Odd(x) }")
    with pytest.raises(MeasurementError, match=r"session cannot be created \(.*Odd"):
        memdiag.fix(path)


@pytest.mark.slow
@pytest.mark.usefixtures("two_rewrites")
def test_a_limit_that_nothing_keeps_leaves_the_model_as_it_is(large_tied: Path) -> None:
    fix = memdiag.fix(
        large_tied, max_slowdown=1e-6, sizes=[1], only=["overridable-weight", "gemm-transposed"]
    )
    assert {*statuses(fix).values()} <= {"rejected", "refused"}
    assert any("slower" in remedy.reason for remedy in fix.remedies)
    assert fix.output is None
    assert files_beside(large_tied) == ["tied.onnx"]


@pytest.mark.usefixtures("two_rewrites")
def test_a_time_limit_holds_while_the_original_loads(
    tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach_time_limit(*_: object, **__: object) -> None:
        raise TimeLimitReached

    monkeypatch.setattr("memdiag.api.original_model.find_comparison_inputs", reach_time_limit)
    fix = memdiag.fix(tied, sizes=[1], time_limit_s=100)
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

    only = ["overridable-weight", "gemm-transposed"]
    fix = memdiag.fix(tied, sizes=[], on_progress=interrupt, only=only)
    assert statuses(fix) == {"overridable-weight": "applied", "gemm-transposed": "untried"}
    assert fix.output is not None
    assert any("interrupted" in note for note in fix.notes)
    assert files_beside(tied) == ["tied.fixed.onnx", "tied.onnx"]


@pytest.mark.usefixtures("one_process_each")
def test_a_wrong_rewrite_is_rejected(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves memory, and computes something else."""

    def check(editor: ModelEditor, finding: Finding) -> str | None:
        return None

    def apply(editor: ModelEditor, finding: Finding) -> bool:
        for node in (node for graph in editor.model.graphs() for node in graph):
            if node.op_type == "Gather":
                node.op_type = "GatherElements"
            if node.op_type == "MatMul":
                for use in list(node.outputs[0].uses()):
                    use.node.replace_input_with(use.idx, node.inputs[0])
        return True

    rewrite = Rewrite(name="product-by-rows", summary="x", arithmetic="reordered")
    monkeypatch.setattr(
        "memdiag.fixing.changes.rewriters_among",
        lambda remedies: (Rewriter(rewrite, check, apply),) if rewrite.name in remedies else (),
    )
    fix = memdiag.fix(tied, sizes=[], only=["shared-weight-transposed"])
    assert statuses(fix) == {"product-by-rows": "rejected"}
    assert fix.output is None


@pytest.mark.slow
def test_a_weight_that_stays_in_the_original_is_counted_and_named(
    sample_model: SampleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = "overridable-weight"
    monkeypatch.setattr(
        "memdiag.fixing.changes.rewriters_among",
        lambda remedies: rewriters_among(name for name in remedies if name == only),
    )
    built = sample_model("tied_if", 24, external=True)
    model, data = tmp_path / built.name, tmp_path / f"{built.name}.data"
    model.write_bytes(built.read_bytes())
    data.write_bytes(Path(f"{built}.data").read_bytes())
    fix = memdiag.fix(model, max_slowdown=10, sizes=[1], only=[only])
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
    assert files_beside(model) == sorted([model.name, data.name, output.name])


TIED = """g (float[n, 64] x, int64[i] ids) => (float[n, 65536] y, float[i, 64] z, float[i, m] b) {
    h = MatMul(x, v) t = Transpose <perm = [1, 0]> (w) y = MatMul(h, t)
    z = Gather(w, ids) b = Gather(big, ids) }"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("two_rewrites", "halved_memory")
def test_several_external_files_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    # All zeros, and no bytes on disk: a sparse file of 2.5 GB.
    shapes = {"w": (65536, 64), "v": (64, 64), "big": (10240, 65536)}
    model = model_of(TIED)
    for name, shape in shapes.items():
        if name == "big":
            with (tmp_path / "big.bin").open("wb") as file:
                file.truncate(4 * shape[0] * shape[1])
        else:
            values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            values.tofile(tmp_path / f"{name}.bin")
        weight = model.graph.initializer.add(name=name, data_type=1, dims=shape, raw_data=b"")
        external_data_helper.set_external_data(weight, f"{name}.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fix = memdiag.fix(path, max_slowdown=10, sizes=[1], only=["gemm-transposed"])
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * MIB
    assert fix.output is not None
    assert {*fix.kept_files} == {str(tmp_path / f"{name}.bin") for name in shapes}
    assert fix.kept_bytes == sum(4 * rows * columns for rows, columns in shapes.values())
    assert fix.is_valid
    onnx.checker.check_model(fix.output)
    x = np.ones((2, 64), np.float32)
    assert run(Path(fix.output), x=x, ids=np.array([1])).shape == (2, 65536)
