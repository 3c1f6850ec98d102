"""memdiag.fix: the rewritten model, the models of optimizers, and options, as one search."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import memdiag
from memdiag.comparison.optimizers import Optimizer
from memdiag.errors import MeasurementError, ReportError, UsageError
from memdiag.fixing.candidates import RewrittenModel
from memdiag.fixing.changes import Change
from memdiag.fixing.rewrite_search import RewriteSearch
from memdiag.records.fix import Fix
from memdiag.records.measured_change import SearchEnd
from memdiag.reports.fix import REPORT
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.tuning.record import fix_record
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.model_evaluator import ModelEvaluation
from tests.fixing.renamed import finding, renaming
from tests.reports import fix_records

SampleModel = Callable[..., Path]

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


def gathering(path: Path) -> Path:
    """Write a model that gathers rows of a table of zeros, of 16 MiB."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (int64[n] ids) => (float[n,1024] y) { y = Gather(w, ids) }""")
    table = np.zeros((4096, 1024), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "w"))
    onnx.save(model, path)
    return path


@pytest.fixture
def optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the optimizers above, and one whose package is not installed, in place of all others."""
    table = tmp_path / "optimizers.py"
    table.write_text(OPTIMIZERS)
    monkeypatch.setattr("memdiag.comparison.run_optimizer.OPTIMIZER_TABLE", table)
    packages = {name: ("onnx",) for name in ("smaller", "another", "crashing")}
    packages["absent"] = ("no_such_package",)
    known = {name: Optimizer(needed, lambda *_: None) for name, needed in packages.items()}
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", known)


@pytest.fixture
def no_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", {})


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function after which rewriting stages the unchanged model, and leaves `target` alone.

    It claims that the model takes 1 MiB and is as fast.
    """

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
            search.state.record(_CHANGE, "applied", "peak 2 MiB → 1 MiB")
            return RewrittenModel(
                output=output,
                evaluation=evaluation,
                figures=fix_records.figures(1, 1, 0, 1),
                is_valid=True,
                same_kernels=True,
            )

        monkeypatch.setattr("memdiag.api.fix.changes_by_rule", lambda findings: [[_CHANGE]])
        monkeypatch.setattr("memdiag.api.new_models.RewriteSearch.run", run)

    return stage


_CHANGE = Change(renaming("renamed", "_1"), (finding(),))


def tried(fix: Fix) -> list[Sequence[str]]:
    return [point.options for point in fix.points]


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_the_best_model_of_an_optimizer_is_the_result(
    staged: Callable[..., None],
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("patterns-off")
    model = gathering(tmp_path / "m.onnx")
    target = tmp_path / "m.fixed.onnx"
    target.write_text("from an earlier search")
    (tmp_path / "m.fixed.onnx.data").write_text("from an earlier search")
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
    problems = {point.options: point.problem for point in fix.points if point.problem}
    assert ("another",) in problems
    assert any(
        note.startswith("crashing wrote no model: the optimizer died of") for note in fix.notes
    )
    assert any(note.startswith("absent is not installed and is not tried") for note in fix.notes)
    # Two models are never combined.
    assert not any({"smaller", "rewrite"} <= {*names} for names in tried(fix))


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_an_error_after_a_model_was_published_leaves_that_model(
    staged: Callable[..., None],
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    only("patterns-off")
    model, target = gathering(tmp_path / "m.onnx"), tmp_path / "m.fixed.onnx"
    staged(target)
    monkeypatch.setattr("memdiag.api.fix.fix_record", failing)
    with pytest.raises(ValueError, match="a defect"):
        memdiag.fix(model, sizes=ALL_ROWS)
    assert [each.op_type for each in onnx.load(target).graph.node] == ["Sub", "Gather"]
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("equal_latency", "one_process_each", "no_optimizers")
def test_a_rewritten_model_that_is_not_chosen_is_removed(
    staged: Callable[..., None],
    sample_model: SampleModel,
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("patterns-off")
    model, target = tmp_path / "m.onnx", tmp_path / "m.fixed.onnx"
    model.write_bytes(sample_model("plain_mlp").read_bytes())
    target.write_text("from an earlier search")
    staged(target)
    fix = memdiag.fix(model, sizes=[1])
    assert ("rewrite",) in tried(fix)
    assert fix.chosen == ()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.fixed.onnx", "m.onnx"]
    assert target.read_text() == "from an earlier search"
    assert fix.output_files == ()
    assert [remedy.status for remedy in fix.remedies] == ["rejected"]
    assert f"{target} was there before, and the result does not use it" in fix.notes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("denormal-as-zero", "changes values. Allow that with --max-difference"),
        ("map-ort-file", "makes no difference to this model"),
        ("mimalloc", r"is not available here, .* \(it needs the library libmimalloc.so.2\)"),
    ],
)
def test_an_option_that_cannot_be_tried_is_refused_with_the_reason(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    found = [
        replace(option, is_available=lambda _: False) if option.name == "mimalloc" else option
        for option in tuning_options()
    ]
    monkeypatch.setattr("memdiag.api.fix_scope.tuning_options", lambda: found)
    steps: list[str] = []
    with pytest.raises(UsageError, match=f"{name}: it {reason}"):
        memdiag.fix(sample_model("plain_mlp"), only=[name], on_progress=steps.append)
    assert not steps


def test_an_output_in_ort_format_is_refused(sample_model: SampleModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is in ONNX format\. Choose a name with \.onnx"):
        memdiag.fix(sample_model("plain_mlp"), tmp_path / "m.ort")


@pytest.mark.slow
@pytest.mark.usefixtures("no_optimizers")
def test_what_is_rewritten_is_measured_beside_the_original(
    sample_model: SampleModel, only: Callable[..., None], tmp_path: Path
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


@pytest.mark.usefixtures("equal_latency", "one_process_each", "no_optimizers")
def test_without_a_rewrite_options_are_tried(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("patterns-off")
    fix = memdiag.fix(sample_model("plain_mlp"), sizes=[1])
    assert (fix.output, fix.remedies) == (None, ())
    assert tried(fix) == [(), ("patterns-off",)]


def test_an_interrupted_fix_ends_the_search_before_any_option(
    only: Callable[..., None],
    staged: Callable[..., None],
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")
    target = tmp_path / "new.onnx"
    staged(target, ended_by="interrupt")
    fix = memdiag.fix(sample_model("plain_mlp"), target, budget={"peak": MIB})
    check_only_the_fix_is_left(fix, target)


def test_ctrl_c_while_an_optimizer_works_leaves_the_result_of_the_fix(
    only: Callable[..., None],
    staged: Callable[..., None],
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "new.onnx"
    staged(target)
    monkeypatch.setattr("memdiag.api.new_models.OptimizerOutputs.write", interrupted)
    fix = memdiag.fix(sample_model("plain_mlp"), target, budget={"peak": MIB}, sizes=[1])
    check_only_the_fix_is_left(fix, target)


def test_ctrl_c_while_the_record_is_made_loses_nothing(
    only: Callable[..., None],
    staged: Callable[..., None],
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")
    calls = []

    def interrupted(*arguments: Any, **options: Any) -> Fix:
        calls.append(options)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return fix_record(*arguments, **options)

    target = tmp_path / "new.onnx"
    staged(target, ended_by="interrupt")
    monkeypatch.setattr("memdiag.api.fix.fix_record", interrupted)
    fix = memdiag.fix(sample_model("plain_mlp"), target, budget={"peak": MIB})
    check_only_the_fix_is_left(fix, target)


def check_only_the_fix_is_left(fix: Fix, target: Path) -> None:
    assert [each.name for each in target.parent.iterdir()] == [target.name]
    onnx.checker.check_model(target)
    assert fix.output_files == (str(target),)
    assert (tried(fix), fix.chosen) == ([(), ("rewrite",)], ("rewrite",))
    assert (fix.ended_by, fix.measured_once) == ("interrupt", True)
    assert (fix.budget, fix.write_problem) == ({"peak": MIB}, "")
    assert {"arena-off", "onnxruntime-all"} <= {*fix.untried}
    assert fix.is_conclusive
    assert repr(str(target)) in fix.program
    assert "memory measured once, latency 1.00 × (1.00–1.00)" in repr(fix)


@pytest.mark.usefixtures("no_optimizers")
@pytest.mark.parametrize(
    "where",
    [
        "fixing.rewrite_search.RewriteSearch._try_change",
        "fixing.state.FixState.possible",
    ],
)
def test_ctrl_c_before_anything_was_rewritten_leaves_the_figures_of_the_original(
    only: Callable[..., None],
    where: str,
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("arena-off")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"memdiag.{where}", interrupted)
    fix = memdiag.fix(sample_model("tied_if"), tmp_path / "new.onnx", sizes=[1])
    assert (tried(fix), fix.ended_by) == ([()], "interrupt")
    assert fix.before is not None
    assert not fix.is_conclusive
    assert "nothing was verified before the interruption" in repr(fix)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_model_that_cannot_be_written_at_the_end_loses_no_record(
    error: BaseException,
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise error

    only()
    model = gathering(tmp_path / "m.onnx")
    monkeypatch.setattr("memdiag.fixing.model_writer.shutil.copyfile", failing)
    fix = memdiag.fix(model, sizes=[1], only=["smaller"])
    assert fix.chosen == ("smaller",)
    assert ("No space left" if isinstance(error, OSError) else "Ctrl-C") in fix.write_problem
    assert fix.program == ""
    assert "Run it again where the new model can be written: " in REPORT.markdown(fix)
    assert ": the new model was not written; with it peak " in repr(fix)
    assert not list(tmp_path.glob("*.fixed.*"))
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_one_ctrl_c_while_the_model_is_copied_loses_nothing(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Path] = []

    def interrupted_once(source: Path, to: Path) -> Path:
        copies.append(to)
        if len(copies) == 1:
            raise KeyboardInterrupt
        return Path(copyfile(source, to))

    copyfile = shutil.copyfile
    only()
    model = gathering(tmp_path / "m.onnx")
    monkeypatch.setattr("memdiag.fixing.model_writer.shutil.copyfile", interrupted_once)
    fix = memdiag.fix(model, sizes=[1], only=["smaller"])
    assert (fix.chosen, fix.write_problem) == (("smaller",), "")
    assert fix.output_files
    assert [path for path in fix.output_files if not Path(path).exists()] == []
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_ctrl_c_while_the_model_is_moved_to_the_output_loses_nothing(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(source: Path, to: Path) -> None:
        replace(source, to)
        signal.raise_signal(signal.SIGINT)

    only()
    model = gathering(tmp_path / "m.onnx")
    monkeypatch.setattr("memdiag.fixing.model_writer.os.replace", interrupted)
    fix = memdiag.fix(model, sizes=[1], only=["smaller"])
    assert (fix.chosen, fix.write_problem) == (("smaller",), "")
    assert fix.program
    assert [path for path in fix.output_files if not Path(path).exists()] == []


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    steps: list[str] = []
    with pytest.raises(ReportError, match="cannot be written"):
        memdiag.fix(
            sample_model("plain_mlp"), tmp_path / "file" / "m.onnx", on_progress=steps.append
        )
    assert not any("measuring" in step for step in steps)


@pytest.mark.slow
@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_weights_of_fewer_bits_are_tried_where_a_difference_is_accepted(
    sample_model: SampleModel, only: Callable[..., None], tmp_path: Path
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


def test_a_difference_has_to_be_accepted_and_sensible(sample_model: SampleModel) -> None:
    with pytest.raises(UsageError, match="quantize-int8 changes outputs"):
        memdiag.fix(sample_model("plain_mlp"), only=["quantize-int8"])
    for value in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match="--max-difference must be between 0 and 1"):
            memdiag.fix(sample_model("plain_mlp"), max_difference=value)


@pytest.mark.usefixtures("equal_latency", "one_process_each", "no_optimizers")
def test_a_rewritten_model_that_cannot_be_moved_leaves_the_earlier_one_and_the_record(
    sample_model: SampleModel,
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only()
    model, target = tmp_path / "m.onnx", tmp_path / "m.fixed.onnx"
    model.write_bytes(sample_model("tied_if", 16).read_bytes())
    for path in (target, Path(f"{target}.data")):
        path.write_text("from an earlier search")
    replace = os.replace

    def failing(source: Path, to: Path) -> None:
        if Path(to) == target:
            raise OSError(30, "Read-only file system")
        replace(source, to)

    monkeypatch.setattr("memdiag.fixing.model_writer.os.replace", failing)
    fix = memdiag.fix(model, max_slowdown=100, dims={"tokens": 1}, sizes=[1])
    assert "rewrite" in fix.chosen
    assert "Read-only file system" in fix.write_problem
    assert fix.program == ""
    assert not any(str(target) in note for note in fix.notes)
    assert target.read_text() == "from an earlier search"
    assert not list(tmp_path.glob(".memdiag*"))


@pytest.mark.usefixtures("equal_latency", "one_process_each")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MeasurementError("no room"), MeasurementError),
        (OSError(28, "No space left on device"), MeasurementError),
        (ValueError("a defect"), ValueError),
    ],
)
def test_an_error_after_the_fix_leaves_its_model(
    staged: Callable[..., None],
    error: Exception,
    expected: type[Exception],
    sample_model: SampleModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    target = tmp_path / "new.onnx"
    staged(target)
    monkeypatch.setattr("memdiag.api.new_models.OptimizerOutputs.write", failing)
    with pytest.raises(expected) as raised:
        memdiag.fix(sample_model("plain_mlp"), target, sizes=[1])
    assert raised.value.__notes__ == [f"The rewritten model is at {target}."]
    onnx.checker.check_model(target)


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_optimizers_are_left_out_where_their_models_would_fill_the_temporary_folder(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only()
    room = SimpleNamespace(free=30 * MIB)  # the model has 16 MiB
    monkeypatch.setattr("memdiag.api.optimizer_outputs.shutil.disk_usage", lambda _: room)
    fix = memdiag.fix(gathering(tmp_path / "m.onnx"), sizes=[1])
    assert tried(fix) == [()]
    assert fix.untried == ()  # more time would not help
    assert fix.is_conclusive
    assert any(
        note.startswith("smaller, another, crashing: not tried, since each needs 32 MiB of free")
        for note in fix.notes
    )


def test_an_optimizer_that_is_not_installed_is_refused(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.optimizer_outputs._is_installed", lambda name: False)
    with pytest.raises(UsageError, match="onnxsim: it is not installed"):
        memdiag.fix(sample_model("plain_mlp"), only=["onnxsim"])


def test_names_of_optimizers_may_be_chosen_and_others_not(sample_model: SampleModel) -> None:
    with pytest.raises(UsageError, match=r"'onnxslin' is not .* Did you mean onnxslim\?"):
        memdiag.fix(sample_model("plain_mlp"), only=["onnxslin"])


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_optimizers_for_which_there_was_no_time_are_named_as_untried(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only()
    monkeypatch.setattr("memdiag.api.optimizer_outputs.MAX_OPTIMIZERS_SHARE", 0.0)
    fix = memdiag.fix(gathering(tmp_path / "m.onnx"), sizes=[1], time_limit_s=120)
    assert fix.untried == ("smaller", "another", "crashing")
    assert tried(fix) == [()]


@pytest.mark.usefixtures("equal_latency", "one_process_each")
@pytest.mark.parametrize("seconds", [None, 300])
def test_in_limited_time_the_rewrite_that_promises_most_is_tried_before_options(
    tmp_path: Path, seconds: float | None
) -> None:
    graph = onnx.parser.parse_graph(
        "g (float16[n, 2048] x) => (float16[n, 2048] y) { y = MatMul (x, w) }"
    )
    weight = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float16), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
        ),
        path,
    )
    steps: list[str] = []
    names = ["model-to-fp32", "patterns-off"]
    fix = memdiag.fix(path, only=names, sizes=[1], time_limit_s=seconds, on_progress=steps.append)
    tried = [name for step in steps for name in names if f"trying {name}" in step]
    assert tried[0] == ("model-to-fp32" if seconds else "patterns-off")
    assert [(each.name, each.status) for each in fix.remedies] == [("model-to-fp32", "applied")]


LISTING = """
from types import SimpleNamespace

def listing(source, target, large):
    import onnx
    model = onnx.load(source)
    del model.graph.initializer[:1]  # folded away, while the input remains
    onnx.save(model, target)

OPTIMIZERS = {"listing": SimpleNamespace(packages=("onnx",), optimize=listing)}
"""


@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_what_an_optimizer_still_lists_as_an_input_is_not_asked_for(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only()
    table = tmp_path / "optimizers.py"
    table.write_text(LISTING)
    monkeypatch.setattr("memdiag.comparison.run_optimizer.OPTIMIZER_TABLE", table)
    known = {"listing": Optimizer(("onnx",), lambda *_: None)}
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", known)
    model = parser.parse_model("""<ir_version: 3, opset_import: ["": 9]>
        g (float[2] x, float[2] unused, float[2] w) => (float[2] y) { y = Add(x, w) }""")
    for name in ("unused", "w"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), name))
    onnx.save(model, tmp_path / "m.onnx")
    fix = memdiag.fix(tmp_path / "m.onnx", sizes=[1])
    (point,) = (point for point in fix.points if point.options)
    assert (point.options, point.problem) == (("listing",), "")
    assert point.figures is not None
