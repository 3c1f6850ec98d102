"""memdiag.fix: the rewritten model, the models of optimizers, and options, as one search.

Real processes measure in the first test and in those marked slow; the evaluator of the others has
figures that a test sets.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import memdiag
from memdiag.comparison.optimizers import Optimizer
from memdiag.comparison.run_optimizer import OptimizerResult
from memdiag.errors import MeasurementError
from memdiag.fixing.candidates import RewrittenModel
from memdiag.fixing.changes import Change
from memdiag.fixing.rewrite_search import RewriteSearch
from memdiag.records.fix import Fix
from memdiag.records.measured_change import SearchEnd
from memdiag.reports.fix import REPORT
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.tuning.record import fix_record
from memdiag.units import MIB
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.model_evaluator import ModelEvaluation
from tests.api.small_models import model_of, save_model
from tests.fixing.renamed import finding, renaming
from tests.reports import fix_records

SampleModel = Callable[..., Path]
Only = Callable[..., None]
Stage = Callable[..., None]

# Each reads a model and writes another one: of the same values, of others, or nothing.
OPTIMIZERS = """
import os
from types import SimpleNamespace

def smaller(source, target, large):
    import numpy as np
    import onnx
    model = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["": 17]>
        g (int64[n] ids) => (float[n,1024] y) { zero = Sub(ids, ids) y = Gather(w, zero) }''')
    row = onnx.numpy_helper.from_array(np.zeros((1, 1024), np.float32), "w")
    model.graph.initializer.append(row)
    location = os.path.basename(target) + ".data"
    onnx.save(model, target, save_as_external_data=large, location=location, size_threshold=0)

def another(source, target, large):
    import onnx
    model = onnx.load(source)
    model.graph.node[0].op_type = "Identity"
    del model.graph.node[0].input[0]
    onnx.save(model, target)

def crashing(source, target, large):
    os.abort()

OPTIMIZERS = {
    name: SimpleNamespace(packages=("onnx",), optimize=optimize)
    for name, optimize in (("smaller", smaller), ("another", another), ("crashing", crashing))
}
"""

ALL_ROWS = [4096]
"""Runs with so many numbers read most rows of the table: which pages of a mapped file are there
depends on the page cache otherwise."""

GATHER = "g (int64[n] ids) => (float[n, 1024] y) { y = Gather(w, ids) }"
SMALLER = "g (int64[n] ids) => (float[n, 1024] y) { zero = Sub(ids, ids) y = Gather(w, zero) }"


def gathering(folder: Path) -> Path:
    """Write a model that gathers rows of a table of zeros, of 16 MiB."""
    return save_model(folder / "m.onnx", GATHER, w=np.zeros((4096, 1024), np.float32))


def know_optimizers(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    known = {name: Optimizer((package,), lambda *_: None) for name, package in packages.items()}
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", known)


@pytest.fixture
def no_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    know_optimizers(monkeypatch)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelProto], None]:
    """A function (model) that sets what the only optimizer, `smaller`, writes."""
    know_optimizers(monkeypatch, smaller="onnx")

    def write(model: ModelProto) -> None:
        def run(name: str, source: Path, path: Path, **_: object) -> OptimizerResult:
            path.parent.mkdir()
            onnx.save(model, path)
            return OptimizerResult(status="completed", message="", path=path)

        monkeypatch.setattr("memdiag.api.optimizer_outputs.run_optimizer", run)

    return write


@pytest.fixture
def smaller(written: Callable[[ModelProto], None], halved_memory: None, only: Only) -> None:
    """Try nothing but the optimizer `smaller`, which writes the model of one row."""
    only()
    written(model_of(SMALLER, w=np.zeros((1, 1024), np.float32)))


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A function after which rewriting stages the unchanged model, and leaves `target` alone.

    It claims that the model takes 1 MiB and is as fast.
    """
    change = Change(renaming("renamed", "_1"), (finding(),))

    def stage(target: Path, ended_by: SearchEnd = "completion") -> None:
        equal = LatencyComparison(1e-3, 1e-3, LatencyRatio(1.0, 1.0, 1.0, 15))
        evaluation = ModelEvaluation(problem=None, comparisons=(("size 1", equal),))

        def run(search: RewriteSearch, rules: object) -> RewrittenModel:
            before = target.read_bytes() if target.exists() else None
            writer = search.state.writer
            with writer.built(ModelEditor(writer.file)) as built:
                output = writer.stage(built)
            assert (target.read_bytes() if target.exists() else None) == before
            search.state.ended_by = ended_by
            search.state.record(change, "applied", "peak 2 MiB → 1 MiB")
            return RewrittenModel(
                output=output,
                evaluation=evaluation,
                figures=fix_records.figures(1, 1, 0, 1),
                is_valid=True,
                same_kernels=True,
            )

        monkeypatch.setattr("memdiag.api.fix.changes_by_rule", lambda findings: [[change]])
        monkeypatch.setattr("memdiag.api.new_models.RewriteSearch.run", run)

    return stage


def tried(fix: Fix) -> list[Sequence[str]]:
    return [point.option_names for point in fix.points]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def raising_once(error: BaseException, then: Callable[..., Any]) -> Callable[..., Any]:
    errors = [error]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return then(*arguments, **options)

    return fail_once


@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_the_best_model_of_an_optimizer_is_the_result(
    staged: Stage, only: Only, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "optimizers.py"
    table.write_text(OPTIMIZERS)
    monkeypatch.setattr("memdiag.comparison.run_optimizer.OPTIMIZER_TABLE", table)
    present = dict.fromkeys(("smaller", "another", "crashing"), "onnx")
    know_optimizers(monkeypatch, **present, absent="no_such_package")
    only("patterns-off")
    model, target = gathering(tmp_path), tmp_path / "m.fixed.onnx"
    for path in (target, Path(f"{target}.data")):
        path.write_text("from an earlier search")
    staged(target)
    fix = memdiag.fix(model, sizes=ALL_ROWS)
    assert {*fix.chosen} - {"patterns-off"} == {"smaller"}  # which may save a little by chance
    assert fix.before is not None
    assert fix.after is not None
    assert fix.before.peak_bytes - fix.after.peak_bytes > 12 * MIB
    assert fix.output_files == (str(target), f"{target}.data")
    assert not any("was there before" in note for note in fix.notes)
    assert repr(str(target)) in fix.program
    assert not list(tmp_path.glob(".memdiag*"))
    subprocess.run([sys.executable, "-c", fix.program], check=True, timeout=60)
    # Of the others one computes something else, and two wrote nothing.
    problems = {point.option_names: point.problem for point in fix.points if point.problem}
    assert ("another",) in problems
    assert any(
        note.startswith("crashing wrote no model: the optimizer was ended by") for note in fix.notes
    )
    assert any(note.startswith("absent is not installed and is not tried") for note in fix.notes)
    # Two models are never combined.
    assert not any({"smaller", "rewrite"} <= {*names} for names in tried(fix))


@pytest.mark.usefixtures("smaller")
def test_an_error_after_a_model_was_published_leaves_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.fix.fix_record", raising(ValueError("a defect")))
    with pytest.raises(ValueError, match="a defect") as raised:
        memdiag.fix(gathering(tmp_path), sizes=[1])
    target = tmp_path / "m.fixed.onnx"
    assert raised.value.__notes__ == [f"The new model is at {target}."]
    assert [node.op_type for node in onnx.load(target).graph.node] == ["Sub", "Gather"]
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("unchanged_memory", "no_optimizers")
def test_a_rewritten_model_that_is_not_chosen_is_removed(
    staged: Stage, sample_model: SampleModel, only: Only, tmp_path: Path
) -> None:
    only("patterns-off")
    model, target = tmp_path / "m.onnx", tmp_path / "m.fixed.onnx"
    model.write_bytes(sample_model("plain_mlp").read_bytes())
    target.write_text("from an earlier search")
    staged(target)
    fix = memdiag.fix(model, sizes=[1])
    assert ("rewrite",) in tried(fix)
    assert fix.chosen == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.fixed.onnx", "m.onnx"]
    assert target.read_text() == "from an earlier search"
    assert fix.output_files == ()
    assert [remedy.status for remedy in fix.remedies] == ["rejected"]
    assert f"{target} was there before, and the result does not use it" in fix.notes


@pytest.mark.slow
@pytest.mark.usefixtures("no_optimizers")
def test_what_is_rewritten_is_measured_beside_the_original(
    sample_model: SampleModel, only: Only, tmp_path: Path
) -> None:
    only("disable-prepacking")
    model = tmp_path / "m.onnx"
    model.write_bytes(sample_model("tied_if", 16).read_bytes())
    fix = memdiag.fix(model, max_slowdown=100, dims={"tokens": 1}, sizes=[1])
    assert fix.output == str(tmp_path / "m.fixed.onnx")
    assert any(remedy.status == "applied" for remedy in fix.remedies)
    assert tried(fix)[:2] == [(), ("rewrite",)]
    assert "rewrite" in fix.chosen
    assert not fix.measured_once
    assert fix.points[0].figures is not None
    assert fix.points[1].figures is not None
    assert fix.points[0].figures.peak_bytes - fix.points[1].figures.peak_bytes > 8 * MIB
    assert fix.model == str(model)
    assert repr(fix.output) in fix.program


@pytest.mark.usefixtures("unchanged_memory", "no_optimizers")
def test_without_a_rewrite_options_are_tried(sample_model: SampleModel, only: Only) -> None:
    only("patterns-off")
    fix = memdiag.fix(sample_model("plain_mlp"), sizes=[1])
    assert (fix.output, fix.remedies) == (None, ())
    assert tried(fix) == [(), ("patterns-off",)]


@pytest.mark.usefixtures("halved_memory")
@pytest.mark.parametrize(
    ("ended_by", "name", "interrupted"),
    [
        ("interrupt", None, None),
        ("completion", "new_models.OptimizerOutputs.write", raising(KeyboardInterrupt())),
        ("interrupt", "fix.fix_record", raising_once(KeyboardInterrupt(), fix_record)),
    ],
    ids=["while rewriting", "while an optimizer works", "while the record is made"],
)
def test_ctrl_c_leaves_the_rewritten_model(
    ended_by: SearchEnd,
    name: str | None,
    interrupted: Callable[..., Any] | None,
    only: Only,
    staged: Stage,
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")
    target = tmp_path / "new.onnx"
    staged(target, ended_by)
    if name is not None:
        monkeypatch.setattr(f"memdiag.api.{name}", interrupted)
    fix = memdiag.fix(sample_model("plain_mlp"), target, budget={"peak": MIB}, sizes=[1])
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    onnx.checker.check_model(target)
    assert fix.output_files == (str(target),)
    assert (tried(fix), fix.chosen) == ([(), ("rewrite",)], ("rewrite",))
    assert (fix.ended_by, fix.measured_once) == ("interrupt", True)
    assert (fix.budget, fix.write_problem) == ({"peak": MIB}, "")
    assert {"arena-off", "onnxruntime-all"} <= {*fix.untried}
    assert fix.is_conclusive
    assert repr(str(target)) in fix.program
    assert "memory measured once, latency 1.00 × (1.00–1.00)" in repr(fix)


@pytest.mark.usefixtures("halved_memory", "no_optimizers")
@pytest.mark.parametrize(
    "where", ["rewrite_search.RewriteSearch._try_change", "state.FixState.possible"]
)
def test_ctrl_c_before_anything_was_rewritten_leaves_the_figures_of_the_original(
    only: Only,
    where: str,
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")
    monkeypatch.setattr(f"memdiag.fixing.{where}", raising(KeyboardInterrupt()))
    fix = memdiag.fix(sample_model("tied_if"), tmp_path / "new.onnx", sizes=[1])
    assert (tried(fix), fix.ended_by) == ([()], "interrupt")
    assert fix.before is not None
    assert not fix.is_conclusive
    assert "nothing was verified before the interruption" in repr(fix)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize(
    ("error", "problem"),
    [(OSError(28, "No space left on device"), "No space left"), (KeyboardInterrupt(), "Ctrl-C")],
)
def test_a_model_that_cannot_be_written_at_the_end_loses_no_record(
    error: BaseException, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.fixing.model_writer.shutil.copyfile", raising(error))
    fix = memdiag.fix(gathering(tmp_path), sizes=[1])
    assert fix.chosen == ("smaller",)
    assert problem in fix.write_problem
    assert fix.program == ""
    assert "Run it again where the new model can be written: " in REPORT.markdown(fix)
    assert ": the new model was not written; with it peak " in repr(fix)
    assert not list(tmp_path.glob("*.fixed.*"))
    assert not list(tmp_path.glob(".memdiag*"))


def move_and_interrupt(source: Path, to: Path, replace: Callable[..., None] = os.replace) -> None:
    replace(source, to)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize(
    ("name", "interrupted"),
    [
        ("shutil.copyfile", raising_once(KeyboardInterrupt(), shutil.copyfile)),
        ("os.replace", move_and_interrupt),
    ],
    ids=["copied", "moved"],
)
def test_one_ctrl_c_while_the_model_is_written_loses_nothing(
    name: str, interrupted: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"memdiag.fixing.model_writer.{name}", interrupted)
    fix = memdiag.fix(gathering(tmp_path), sizes=[1])
    assert (fix.chosen, fix.write_problem) == (("smaller",), "")
    assert fix.program
    assert fix.output_files
    assert [path for path in fix.output_files if not Path(path).exists()] == []
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.slow
@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_weights_of_fewer_bits_are_tried_where_a_difference_is_accepted(
    sample_model: SampleModel, only: Only, tmp_path: Path
) -> None:
    only()
    model = tmp_path / "m.onnx"
    model.write_bytes(sample_model("plain_mlp", 32).read_bytes())
    names = ["quantize-int8", "quantize-int4"]
    fix = memdiag.fix(model, only=names, max_difference=0.05, sizes=[1])
    assert fix.chosen == ("quantize-int8",)
    assert fix.before is not None
    assert fix.after is not None
    assert fix.after.steady_bytes < 0.5 * fix.before.steady_bytes
    assert fix.bound == 0.05
    assert fix.largest_difference is not None
    assert 1e-4 < fix.largest_difference < 0.05
    assert any("give real ones with --input" in note for note in fix.notes)
    # 4 bits differ by more, which a larger bound would accept.
    (problem,) = (point.problem for point in fix.points if point.problem)
    assert re.search(
        r"0\.05 is allowed \(--max-difference\)\. --max-difference 0\.\d+ accepts it$", problem
    )


@pytest.mark.usefixtures("halved_memory", "no_optimizers")
def test_a_rewritten_model_that_cannot_be_moved_leaves_the_earlier_one_and_the_record(
    sample_model: SampleModel, only: Only, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only()
    model, target = tmp_path / "m.onnx", tmp_path / "m.fixed.onnx"
    model.write_bytes(sample_model("tied_if", 1).read_bytes())
    for path in (target, Path(f"{target}.data")):
        path.write_text("from an earlier search")
    replace = os.replace

    def failing(source: Path, to: Path) -> None:
        if Path(to) == target:
            raise OSError(30, "Read-only file system")
        replace(source, to)

    monkeypatch.setattr("memdiag.fixing.model_writer.os.replace", failing)
    fix = memdiag.fix(model, sizes=[1])
    assert "rewrite" in fix.chosen
    assert "Read-only file system" in fix.write_problem
    assert fix.program == ""
    assert not any(str(target) in note for note in fix.notes)
    assert target.read_text() == "from an earlier search"
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("halved_memory")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MeasurementError("no room"), MeasurementError),
        (OSError(28, "No space left on device"), MeasurementError),
        (ValueError("a defect"), ValueError),
    ],
)
def test_an_error_after_the_fix_leaves_its_model(
    staged: Stage,
    error: Exception,
    expected: type[Exception],
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "new.onnx"
    staged(target)
    monkeypatch.setattr("memdiag.api.new_models.OptimizerOutputs.write", raising(error))
    with pytest.raises(expected) as raised:
        memdiag.fix(sample_model("plain_mlp"), target, sizes=[1])
    assert raised.value.__notes__ == [f"The rewritten model is at {target}."]
    onnx.checker.check_model(target)


@pytest.mark.usefixtures("smaller")
def test_optimizers_are_left_out_where_their_models_would_fill_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_optimizers(monkeypatch, smaller="onnx", another="onnx")
    room = SimpleNamespace(free=30 * MIB)  # the model has 16 MiB
    monkeypatch.setattr("memdiag.api.optimizer_outputs.shutil.disk_usage", lambda _: room)
    fix = memdiag.fix(gathering(tmp_path), sizes=[1])
    assert tried(fix) == [()]
    assert fix.untried == ()  # more time would not help
    assert fix.is_conclusive
    expected = "smaller, another: not tried, since each needs 32 MiB of free"
    assert any(note.startswith(expected) for note in fix.notes)


@pytest.mark.usefixtures("smaller")
def test_optimizers_for_which_there_was_no_time_are_named_as_untried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_optimizers(monkeypatch, smaller="onnx", another="onnx")
    monkeypatch.setattr("memdiag.api.optimizer_outputs.MAX_OPTIMIZERS_SHARE", 0.0)
    fix = memdiag.fix(gathering(tmp_path), sizes=[1], time_limit_s=120)
    assert fix.untried == ("smaller", "another")
    assert tried(fix) == [()]


@pytest.mark.usefixtures("halved_memory")
@pytest.mark.parametrize(("seconds", "first"), [(None, "patterns-off"), (300, "model-to-fp32")])
def test_in_limited_time_the_rewrite_that_promises_most_is_tried_before_options(
    tmp_path: Path, seconds: float | None, first: str
) -> None:
    weight = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float16)
    text = "g (float16[n, 2048] x) => (float16[n, 2048] y) { y = MatMul (x, w) }"
    path = save_model(tmp_path / "m.onnx", text, w=weight)
    steps: list[str] = []
    names = ["model-to-fp32", "patterns-off"]
    fix = memdiag.fix(path, only=names, sizes=[1], time_limit_s=seconds, on_progress=steps.append)
    order = [name for step in steps for name in names if f"trying {name}" in step]
    assert order[0] == first
    assert [(remedy.name, remedy.status) for remedy in fix.remedies] == [
        ("model-to-fp32", "applied")
    ]


@pytest.mark.usefixtures("halved_memory")
def test_what_an_optimizer_still_lists_as_an_input_is_not_asked_for(
    written: Callable[[ModelProto], None], only: Only, tmp_path: Path
) -> None:
    only()
    text = "g (float[2] x, float[2] unused, float[2] w) => (float[2] y) { y = Add(x, w) }"
    ones = np.ones(2, np.float32)
    model = model_of(text, opset=9, ir_version=3, unused=ones, w=ones)
    onnx.save(model, tmp_path / "m.onnx")
    del model.graph.initializer[:1]  # folded away, while the input remains
    written(model)
    fix = memdiag.fix(tmp_path / "m.onnx", sizes=[1])
    assert fix.chosen == ("smaller",)
    assert fix.output is not None
    assert [value.name for value in onnx.load(fix.output).graph.input] == ["x"]
