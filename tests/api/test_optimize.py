"""memdiag.optimize: the fix, the models of optimizers, and the options, as one search."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import memdiag
from memdiag.comparison.optimizers import Optimizer
from memdiag.errors import ReportError, UsageError
from memdiag.records.tuning import Tuning
from memdiag.reports.tuning import is_conclusive
from memdiag.tuning.options import tuning_options
from memdiag.units import MIB
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
    monkeypatch.setattr("memdiag.comparison.run_optimizer.TABLE", table)
    packages = {name: ("onnx",) for name in ("smaller", "another", "crashing")}
    packages["absent"] = ("no_such_package",)
    known = {name: Optimizer(needed, lambda *_: None) for name, needed in packages.items()}
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", known)


@pytest.fixture
def no_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.api.optimizer_outputs.OPTIMIZERS", {})


def tried(tuning: Tuning) -> list[Sequence[str]]:
    return [point.options for point in tuning.points]


@pytest.mark.usefixtures("equal_latency", "one_process_each", "optimizers")
def test_the_best_model_of_an_optimizer_is_the_result(
    only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("patterns-off")
    model = gathering(tmp_path / "m.onnx")
    fixed = fix_records.verified(
        output=str(tmp_path / "m.optimized.onnx"),
        output_files=(str(tmp_path / "m.optimized.onnx"), str(tmp_path / "old.data")),
        kept_files=(),
        remedies=(),
    )
    (tmp_path / "m.optimized.onnx").write_bytes(model.read_bytes())
    (tmp_path / "old.data").write_bytes(b"of the fix")
    monkeypatch.setattr("memdiag.api.optimize.fix_file", lambda *_, **__: fixed)
    tuning = memdiag.optimize(model, sizes=[1])
    assert tuning.chosen == ("smaller",)
    assert tuning.before is not None
    assert tuning.after is not None
    assert tuning.before.peak_bytes - tuning.after.peak_bytes > 12 * MIB
    target = tmp_path / "m.optimized.onnx"
    assert tuning.output_files == (str(target), f"{target}.data")
    assert repr(str(target)) in tuning.program
    assert not (tmp_path / "old.data").exists()
    assert not list(tmp_path.glob(".memdiag*"))
    subprocess.run([sys.executable, "-c", tuning.program], check=True, timeout=60)
    # Of the others one computes something else, and two wrote nothing.
    problems = {point.options: point.problem for point in tuning.points if point.problem}
    assert ("another",) in problems
    assert any(
        note.startswith("crashing wrote no model: the optimizer died of") for note in tuning.notes
    )
    assert any(note.startswith("absent is not installed and is not tried") for note in tuning.notes)
    # Two models are never combined.
    assert not any({"smaller", "rewrite"} <= {*names} for names in tried(tuning))


@pytest.mark.usefixtures("equal_latency", "one_process_each", "no_optimizers")
def test_a_rewritten_model_that_is_not_chosen_is_removed(
    sample_model: SampleModel,
    only: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only("patterns-off")
    model, target = tmp_path / "m.onnx", tmp_path / "m.optimized.onnx"
    for path in (model, target):
        path.write_bytes(sample_model("plain_mlp").read_bytes())
    (tmp_path / "new.data").write_bytes(b"of the fix")
    (tmp_path / "old.data").write_bytes(b"of the original")
    fixed = fix_records.verified(
        output=str(target),
        output_files=(str(target), str(tmp_path / "new.data"), str(tmp_path / "old.data")),
        kept_files=(str(tmp_path / "old.data"),),
    )
    monkeypatch.setattr("memdiag.api.optimize.fix_file", lambda *_, **__: fixed)
    tuning = memdiag.optimize(model, sizes=[1])
    assert ("rewrite",) in tried(tuning)
    assert tuning.chosen == ()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "old.data"]
    assert tuning.fix is not None
    assert (tuning.fix.output, tuning.fix.output_files) == (None, ())
    assert all(remedy.status != "applied" for remedy in tuning.fix.remedies)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("denormal-as-zero", "changes values. Allow that with --unsafe"),
        ("map-ort-file", "makes no difference to this model"),
        ("share-weights", "makes no difference to this model"),
        ("mimalloc", "is not available here"),
    ],
)
def test_an_option_that_cannot_be_tried_is_refused_with_the_reason(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    found = [
        replace(option, is_available=lambda _: False) if option.name == "mimalloc" else option
        for option in tuning_options()
    ]
    monkeypatch.setattr("memdiag.api.option_tuning.tuning_options", lambda: found)
    steps: list[str] = []
    for search in (memdiag.tune, memdiag.optimize):
        with pytest.raises(UsageError, match=f"{name}: it {reason}"):
            search(sample_model("plain_mlp"), only=[name], on_progress=steps.append)
    assert not steps


def test_an_output_in_ort_format_is_refused(sample_model: SampleModel, tmp_path: Path) -> None:
    for search in (memdiag.fix, memdiag.optimize):
        with pytest.raises(UsageError, match=r"is in ONNX format\. Choose a name with \.onnx"):
            search(sample_model("plain_mlp"), tmp_path / "m.ort")


@pytest.mark.slow
@pytest.mark.usefixtures("no_optimizers")
def test_what_is_rewritten_is_measured_beside_the_original(
    sample_model: SampleModel, only: Callable[..., None], tmp_path: Path
) -> None:
    only("disable-prepacking")
    model = tmp_path / "m.onnx"
    model.write_bytes(sample_model("tied_if", 16).read_bytes())
    tuning = memdiag.optimize(model, max_slowdown=100, dims={"tokens": 1}, sizes=[1])
    assert tuning.fix is not None
    assert tuning.fix.output == str(tmp_path / "m.optimized.onnx")
    assert any(remedy.status == "applied" for remedy in tuning.fix.remedies)
    assert tried(tuning)[:2] == [(), ("rewrite",)]
    assert "rewrite" in tuning.chosen
    assert tuning.points[0].figures is not None
    assert tuning.points[1].figures is not None
    assert tuning.points[0].figures.peak_bytes - tuning.points[1].figures.peak_bytes > 8 * MIB
    assert tuning.model == str(model)
    assert tuning.output_files == ()
    assert repr(tuning.fix.output) in tuning.program


@pytest.mark.usefixtures("equal_latency", "one_process_each", "no_optimizers")
def test_nothing_to_rewrite_is_said(sample_model: SampleModel, only: Callable[..., None]) -> None:
    only("patterns-off")
    tuning = memdiag.optimize(sample_model("plain_mlp"), sizes=[1])
    assert tuning.fix is not None
    assert tuning.fix.output is None
    assert tuning.notes == ("the result contains no rewrite",)
    assert tried(tuning) == [(), ("patterns-off",)]


def test_an_interrupted_fix_ends_the_search_before_any_option(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = fix_records.verified(ended_by="interrupt")
    monkeypatch.setattr("memdiag.api.optimize.fix_file", lambda *_, **__: fixed)
    tuning = memdiag.optimize(sample_model("plain_mlp"))
    assert tuning.fix == fixed
    assert tuning.points == ()
    assert not is_conclusive(tuning)
    assert "interrupted before any option was tried; the rewritten model: peak" in repr(tuning)


def test_ctrl_c_while_an_optimizer_works_leaves_the_result_of_the_fix(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    fixed = fix_records.verified()
    monkeypatch.setattr("memdiag.api.optimize.fix_file", lambda *_, **__: fixed)
    monkeypatch.setattr("memdiag.api.optimize.OptimizerOutputs.write", interrupted)
    tuning = memdiag.optimize(sample_model("plain_mlp"), sizes=[1])
    assert (tuning.fix, tuning.points, tuning.ended_by) == (fixed, (), "interrupt")
    assert (tuning.before, tuning.after) == (fixed.before, fixed.after)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    steps: list[str] = []
    with pytest.raises(ReportError, match="cannot be written"):
        memdiag.optimize(
            sample_model("plain_mlp"), tmp_path / "file" / "m.onnx", on_progress=steps.append
        )
    assert not steps


@pytest.mark.slow
@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_weights_of_fewer_bits_are_tried_where_a_difference_is_accepted(
    sample_model: SampleModel, only: Callable[..., None], tmp_path: Path
) -> None:
    only()
    model = tmp_path / "m.onnx"
    model.write_bytes(sample_model("plain_mlp", 32).read_bytes())
    names = ["quantize-int8", "quantize-int4"]
    tuning = memdiag.optimize(model, only=names, max_difference=0.05, sizes=[1])
    assert tuning.chosen == ("quantize-int8",)
    assert tuning.before is not None
    assert tuning.after is not None
    assert tuning.after.steady_bytes < 0.5 * tuning.before.steady_bytes
    assert tuning.bound == 0.05
    assert tuning.largest_difference is not None
    assert 1e-4 < tuning.largest_difference < 0.05
    assert any("give real ones with --input" in note for note in tuning.notes)
    # 4 bits differ by more, which a larger bound would accept.
    (problem,) = (point.problem for point in tuning.points if point.problem)
    assert re.search(
        r"5\.0e-02 is allowed: --max-difference\. --max-difference 0\.\d+ accepts it$", problem
    )


def test_a_difference_has_to_be_accepted_and_sensible(sample_model: SampleModel) -> None:
    with pytest.raises(UsageError, match="quantize-int8 changes outputs"):
        memdiag.optimize(sample_model("plain_mlp"), only=["quantize-int8"])
    for value in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match="--max-difference must be between 0 and 1"):
            memdiag.optimize(sample_model("plain_mlp"), max_difference=value)


def test_names_of_optimizers_may_be_chosen_and_others_not(sample_model: SampleModel) -> None:
    with pytest.raises(UsageError, match=r"unknown option 'faster'.*onnxslim"):
        memdiag.optimize(sample_model("plain_mlp"), only=["onnxslim", "faster"])
    with pytest.raises(UsageError, match=r"onnxslim: it is an optimizer\. Try it with memdiag opt"):
        memdiag.tune(sample_model("plain_mlp"), only=["onnxslim"])
