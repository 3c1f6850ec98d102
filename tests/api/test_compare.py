"""Comparing models, optimizers, interpreters and saved profiles; what fails is a column."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import psutil
import pytest
from onnx import parser

import memdiag
from memdiag.comparison import run_optimizer, runtimes
from memdiag.comparison.optimizers import Optimizer
from memdiag.errors import ModelError, ProvisionError, RecordError, UsageError
from memdiag.paths import distinct_names
from memdiag.records.codec import decode, encode
from memdiag.records.comparison import Comparison, ComparisonColumn
from memdiag.records.profile import Profile
from memdiag.runner.job import Deadline, TimeLimitReached
from memdiag.units import MIB
from tests.reports import profiles

SampleModel = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("equal_latency")


def by_label(comparison: Comparison) -> dict[str, ComparisonColumn]:
    return {column.label: column for column in comparison.columns}


def save(path: Path, body: str, size: str = "n", more: str = "") -> Path:
    text = (
        f'<ir_version: 9, opset_import: ["" : 17]> g (float[{size}] x) => (float[{size}] y{more})'
        f" {{ {body} }}"
    )
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function (name, body) that adds an optimizer, the only one beside others added so."""
    path = tmp_path / "optimizers.py"
    path.write_text("import os, shutil, time\nfrom types import SimpleNamespace\nOPTIMIZERS = {}\n")
    table: dict[str, Optimizer] = {}
    monkeypatch.setattr(run_optimizer, "OPTIMIZERS", table)
    monkeypatch.setattr(run_optimizer, "OPTIMIZER_TABLE", path)

    def add(name: str, body: str) -> None:
        with path.open("a") as file:
            file.write(
                f"def optimize(source, target, large):\n    {body}\n"
                f"OPTIMIZERS[{name!r}] = SimpleNamespace(packages=('onnx',), optimize=optimize)\n"
            )
        table[name] = Optimizer(("onnx",), lambda source, target, large: None)

    return add


@pytest.mark.measures
def test_a_model_beside_itself_has_no_difference(sample_model: SampleModel) -> None:
    model = sample_model("tied_if", 8)
    found = memdiag.compare(model, model, repeats=5, runs=4)
    one, other = found.columns
    assert (one.label, other.label) == (model.name, f"{model.name} (2)")
    # Latency is left out: on a machine that is busy with other things two runs may differ.
    assert [each for each in found.changes if each.metric not in ("latency", "load")] == []
    assert found.copies == ()
    assert other.largest_difference == 0
    assert one.largest_difference is None
    for column in found.columns:
        assert column.status == "completed"
        assert column.measured is not None
        assert column.measured.times == 5
        assert column.profile is not None
        assert column.profile.attribution is not None
    assert decode(encode(found), Comparison) == found


def test_a_copy_that_is_saved_is_told_with_its_weight(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    model = sample_model("tied_if", 16)
    single = onnx.load(model)
    # The weight alone, without the branch that transposes it.
    nodes = [onnx.helper.make_node("Gather", ["model.shared.weight", "ids"], ["y"])]
    weights = [each for each in single.graph.initializer if each.name == "model.shared.weight"]
    inputs = [each for each in single.graph.input if each.name == "ids"]
    ids = inputs or [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "g", ids, [output], weights)
    path = tmp_path / "single.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=single.opset_import, ir_version=9), path)
    found = memdiag.compare(model, path, repeats=2, runs=2)
    steady = next(each for each in found.changes if each.metric == "steady")
    # Two copies of 16 MB fewer: the transposed one, and what is packed of it.
    assert steady.bytes < -25 * MIB
    assert "model.shared.weight" in steady.why
    assert {each.kind for each in found.copies} == {"transposed", "packed"}
    assert all(each.count < 0 for each in found.copies)
    other = found.columns[1]
    assert "outputs and latency are not compared" in other.message
    assert other.largest_difference is None


@pytest.mark.slow
def test_models_with_the_same_inputs_are_held_to_the_first(tmp_path: Path) -> None:
    first = save(tmp_path / "first.onnx", "y = Abs(x)")
    same = save(tmp_path / "same.onnx", "z = Abs(x) y = Identity(z)")
    worse = save(tmp_path / "worse.onnx", "y = Exp(x)")
    broken = save(tmp_path / "broken.onnx", "y = Odd(x)")
    found = memdiag.compare(first, same, worse, broken, repeats=1, runs=2, xray=False)
    columns = by_label(found)
    assert columns["same.onnx"].largest_difference == 0
    assert (columns["worse.onnx"].largest_difference or 0) > 1e-3
    assert [each.to for each in found.changes if each.metric == "outputs"] == ["worse.onnx"]
    assert columns["broken.onnx"].status == "failed"
    assert columns["broken.onnx"].measured is None
    assert "Odd" in columns["broken.onnx"].message
    graph = columns["first.onnx"].graph
    assert graph is not None
    assert (graph.nodes, graph.initializers, graph.parameters) == (1, 0, 0)
    assert graph.saved_bytes == first.stat().st_size


def test_a_first_model_that_does_not_run_does_not_stop_the_others(tmp_path: Path) -> None:
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(b"torn")
    good = save(tmp_path / "good.onnx", "y = Abs(x)")
    also = save(tmp_path / "also.onnx", "y = Abs(x)")
    found = memdiag.compare(torn, good, also, repeats=1, runs=1, xray=False)
    assert [each.status for each in found.columns] == ["failed", "completed", "completed"]
    assert "torn.onnx" in found.columns[0].message
    assert by_label(found)["also.onnx"].largest_difference == 0


@pytest.mark.parametrize("names", [("nope.onnx", "no.onnx"), ("good.onnx", "nope.onnx")])
def test_a_missing_model_is_an_error_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "good.onnx", "y = Abs(x)")
    with pytest.raises(ModelError, match=r"^nope.onnx: there is no such file. Check the path\.$"):
        memdiag.compare(*names)


def test_the_users_inputs_are_those_of_all_columns(tmp_path: Path) -> None:
    one = save(tmp_path / "one.onnx", "y = Abs(x)")
    other = save(tmp_path / "other.onnx", "y = Sqrt(x)")
    ones = {"x": np.ones(5, np.float32)}
    found = memdiag.compare(one, other, inputs=ones, repeats=1, runs=1, xray=False)
    assert found.columns[1].largest_difference == 0
    for column in found.columns:
        assert column.profile is not None
        (given,) = column.profile.inputs
        assert (given.name, given.shape, given.source) == ("x", (5,), "given")


@pytest.mark.slow
def test_optimizers_that_crash_or_hang_are_columns_that_say_so(
    tmp_path: Path, adapter: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.compare.DEFAULT_TIMEOUT_S", 6.0)
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    adapter("good", "shutil.copy(source, target)")
    adapter("crashing", "os.abort()")
    adapter("hanging", "time.sleep(600)")
    adapter("breaking", "open(target, 'w').write('no model')")
    adapter("idle", "return 'nothing was worth changing'")
    found = memdiag.compare(model, optimizers=["all"], repeats=1, runs=1, xray=False)
    columns = by_label(found)
    statuses = {label: column.status for label, column in columns.items()}
    assert statuses == {
        "original": "completed",
        "good": "completed",
        "crashing": "killed",
        "hanging": "timeout",
        "breaking": "failed",
        "idle": "completed",
    }
    assert found.kind == "optimizers"
    assert "SIGABRT" in columns["crashing"].message
    assert columns["hanging"].message == "the optimizer did not end within 6.0 s"
    assert columns["idle"].message == "nothing was worth changing"
    assert columns["good"].largest_difference == 0
    assert columns["good"].optimizer is not None
    assert columns["original"].optimizer is None
    assert "breaking" not in [each.to for each in found.changes]


def test_an_optimizer_that_cannot_be_had_is_a_column_that_says_so(
    tmp_path: Path, adapter: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(name: str) -> Path:
        raise ProvisionError(f"{name}: the package registry cannot be reached.")

    adapter("far", "pass")
    monkeypatch.setattr("memdiag.api.comparing.column_plans.interpreter_for", unavailable)
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    found = memdiag.compare(model, optimizers=["far"], repeats=1, runs=1, xray=False)
    assert [each.status for each in found.columns] == ["completed", "unavailable"]
    assert "cannot be reached" in found.columns[1].message


def test_interpreters_are_columns_called_by_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path / "cache"))
    version = runtimes.distribution_version()
    assert version is not None
    bare = tmp_path / "bare" / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    found = memdiag.compare(
        model,
        onnxruntime=[version, sys.executable, str(tmp_path / "bare")],
        repeats=1,
        runs=1,
        xray=False,
    )
    columns = by_label(found)
    assert {*columns} == {version, f"{version} (2)", "bare"}
    assert columns["bare"].status == "unavailable"
    assert "no onnxruntime" in columns["bare"].message
    assert columns[version].onnxruntime == version
    assert found.kind == "onnxruntime"


def test_a_version_that_cannot_be_had_is_a_column_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(home: Path, packages: object) -> Path:
        raise ProvisionError("onnxruntime==0.1.2: there is no such version.")

    monkeypatch.setattr(runtimes, "provided_interpreter", unavailable)
    version = runtimes.distribution_version()
    assert version is not None
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    found = memdiag.compare(model, onnxruntime=["0.1.2", version], repeats=1, runs=1, xray=False)
    assert [each.status for each in found.columns] == ["unavailable", "completed"]


def test_a_bisection_measures_as_few_versions_as_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    monkeypatch.setattr(runtimes, "registry_versions", lambda: ("1.1.0", "1.2.0", "1.3.0", "1.4.0"))
    monkeypatch.setattr(runtimes, "runtime_interpreter", lambda version: Path(sys.executable))
    found = memdiag.compare(
        model, bisect="steady", onnxruntime=["1.2.0", "1.4.0"], repeats=1, runs=1, xray=False
    )
    assert found.bisection is not None
    assert found.bisection.candidates == 3
    assert (found.bisection.before, found.bisection.after) == (None, None)
    assert [each.label for each in found.columns] == ["1.2.0", "1.4.0"]


def test_saved_profiles_are_compared_without_their_models(tmp_path: Path) -> None:
    one = profiles.tied_if()
    environment = msgspec.structs.replace(one.environment, cpu="another")
    assert one.steady is not None
    steady = msgspec.structs.replace(one.steady, rss_bytes=one.steady.rss_bytes + 900 * MIB)
    other = msgspec.structs.replace(
        one, environment=environment, steady=steady, steady_rss_bytes=steady.rss_bytes
    )
    for folder, profile in (("a", one), ("b", other)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "profile.json").write_bytes(encode(profile))
    found = memdiag.compare(*(tmp_path / each / "profile.json" for each in "ab"))
    assert found.kind == "profiles"
    assert [each.label for each in found.columns] == ["a/profile.json", "b/profile.json"]
    assert [(each.metric, each.bytes) for each in found.changes] == [("steady", 900 * MIB)]
    assert any("load and latency are not compared" in note for note in found.notes)
    of_folders = memdiag.compare(tmp_path / "a", tmp_path / "b")
    assert [each.label for each in of_folders.columns] == ["a", "b"]
    assert [each.bytes for each in of_folders.changes] == [900 * MIB]
    (tmp_path / "c").mkdir()
    with pytest.raises(RecordError, match="c: no saved record in this folder"):
        memdiag.compare(tmp_path / "a", tmp_path / "c")
    with pytest.raises(UsageError, match="cannot be compared with saved profiles"):
        memdiag.compare(tmp_path / "a", "model.onnx")


def test_a_profile_that_failed_is_a_column_that_says_so(tmp_path: Path) -> None:
    for name, profile in (("good", profiles.tied_if()), ("bad", profiles.failed())):
        (tmp_path / f"{name}.json").write_bytes(encode(profile))
    found = memdiag.compare(tmp_path / "good.json", tmp_path / "bad.json")
    assert [each.status for each in found.columns] == ["completed", "failed"]
    assert found.changes == ()
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(RecordError, match=r"bad\.json"):
        memdiag.compare(tmp_path / "good.json", tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["x/one.onnx", "y/two.onnx"], ["one.onnx", "two.onnx"]),
        (["x/m.onnx", "y/m.onnx"], ["x/m.onnx", "y/m.onnx"]),
        (["x/v/m.onnx", "y/v/m.onnx", "n.onnx"], ["x/v/m.onnx", "y/v/m.onnx", "n.onnx"]),
        (["x/m.onnx", "x/m.onnx"], ["m.onnx", "m.onnx"]),
    ],
)
def test_files_are_called_by_the_shortest_path_that_distinguishes_them(
    paths: list[str], labels: list[str]
) -> None:
    assert distinct_names([Path(path) for path in paths]) == labels


def test_paths_may_be_given_one_by_one_or_in_a_list(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes(encode(profiles.tied_if()))
        paths.append(tmp_path / f"{name}.json")
    for found in (
        memdiag.compare(*paths),
        memdiag.compare(paths),
        memdiag.compare([str(path) for path in paths]),
        memdiag.compare(tuple(paths)),
    ):
        assert [each.label for each in found.columns] == ["a.json", "b.json"]
    with pytest.raises(UsageError, match="3 is not a path"):
        memdiag.compare(paths[0], 3)  # type: ignore[arg-type] # wrong on purpose


def test_outputs_that_only_one_model_has_are_named(tmp_path: Path) -> None:
    first = save(tmp_path / "first.onnx", "y = Abs(x)")
    more = save(tmp_path / "more.onnx", "y = Abs(x) z = Exp(x)", more=", float[n] z")
    other = save(tmp_path / "other.onnx", "y = Abs(x) u = Exp(x)", more=", float[n] u")
    found = memdiag.compare(more, first, other, repeats=1, runs=1, xray=False)
    fewer, different = found.columns[1:]
    assert fewer.largest_difference == 0
    assert fewer.difference == "only the first has the output z; all others are equal"
    assert different.difference == (
        "only other.onnx has the output u; only the first has the output z; all others are equal"
    )
    assert [each.why for each in found.changes if each.metric == "outputs"] == [
        fewer.difference,
        different.difference,
    ]


def test_a_role_sets_the_dimension_of_each_model_that_has_it(tmp_path: Path) -> None:
    models = []
    for name, batch in (("one", "D0"), ("other", "N")):
        text = f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[{batch}, 8] x) => (float[{batch}, 8] y) {{ y = Abs(x) }}"""
        models.append(tmp_path / f"{name}.onnx")
        onnx.save(onnx.parser.parse_model(text), models[-1])
    found = memdiag.compare(*models, dims={"batch": 3}, repeats=1, runs=1, xray=False)
    profiles = [each.profile for each in found.columns if each.profile]
    assert [each.inputs[0].shape for each in profiles] == [(3, 8), (3, 8)]
    with pytest.raises(UsageError, match=r"'width': one\.onnx has D0; other\.onnx has N"):
        memdiag.compare(*models, dims={"width": 3}, repeats=1, runs=1, xray=False)


def test_each_model_takes_the_sizes_of_its_own_dimensions(tmp_path: Path) -> None:
    one = save(tmp_path / "one.onnx", "y = Abs(x)")
    other = save(tmp_path / "other.onnx", "y = Abs(x)", size="rows")

    def compared(**dims: int) -> list[Profile]:
        found = memdiag.compare(one, other, dims=dims, repeats=1, runs=1, xray=False)
        return [each.profile for each in found.columns if each.profile]

    seen = compared(n=3)
    assert [each.inputs[0].shape for each in seen] == [(3,), (3,)]
    assert [[size.name for size in each.dimensions] for each in seen] == [["n"], ["rows"]]
    seen = compared(n=3, rows=5)
    assert [each.inputs[0].shape for each in seen] == [(3,), (5,)]
    with pytest.raises(UsageError, match=r"'k': one\.onnx has n; other\.onnx has rows"):
        compared(k=3)


@pytest.mark.parametrize(
    ("paths", "options", "message"),
    [
        ([], {}, "no model was given"),
        (["a.onnx"], {}, "nothing to compare it with"),
        (["a.onnx", "b.json"], {}, "cannot be compared with saved profiles"),
        (["a.onnx", "b.onnx"], {"onnxruntime": ["1.2.3"]}, "compared on one model"),
        (["a.json"], {"optimizers": ["all"]}, "compared on one model"),
        (
            ["a.onnx"],
            {"onnxruntime": ["1.2.3"], "optimizers": ["all"]},
            "cannot be compared together",
        ),
        (["a.onnx"], {"optimizers": ["onnxmin"]}, "unknown optimizer 'onnxmin'"),
        (["a.onnx"], {"bisect": "speed"}, "cannot be bisected"),
        (
            ["a.onnx"],
            {"bisect": "peak", "onnxruntime": ["1.32.0", "./x"]},
            "--bisect is between versions. Name no environments",
        ),
        (["a.onnx", "b.onnx"], {"repeats": 0}, "repeats must be at least 1"),
        (["a.onnx"], {"bisect": "load", "repeats": 1}, "Give --repeats 2 or more"),
        (["a.onnx", "b.onnx"], {"time_limit_s": 0}, "--time-limit must be greater than 0, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    paths: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        memdiag.compare(*paths, **options)  # type: ignore[arg-type] # wrong on purpose


def test_a_model_that_is_not_there_cannot_be_optimized(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.onnx"):
        memdiag.compare(tmp_path / "gone.onnx", optimizers=["all"])


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, heeding_ctrl_c: None) -> None:
    one = save(tmp_path / "one.onnx", "y = Abs(x)")
    steps: list[str] = []
    children_of_others = set(psutil.Process().children())  # such as a browser of other tests

    def has_child() -> bool:
        return not children_of_others.issuperset(psutil.Process().children())

    def interrupt_child() -> None:
        # Not before it starts: within `compile`, CPython 3.11 turns Ctrl-C into a SystemError.
        while not has_child():
            time.sleep(0.005)
        signal.raise_signal(signal.SIGINT)

    def interrupt(words: str) -> None:
        steps.append(words)
        if words.startswith("one.onnx, process 2 of 3"):
            assert not has_child()
            threading.Thread(target=interrupt_child, daemon=True).start()

    other = save(tmp_path / "other.onnx", "y = Abs(x)")
    found = memdiag.compare(one, other, repeats=3, runs=3, xray=False, on_progress=interrupt)
    assert any("interrupted" in note for note in found.notes)
    assert all(each.measured is not None for each in found.columns)
    assert steps[-1].startswith("one.onnx, process 2 of 3 (about ")


@pytest.mark.parametrize(("decided", "times"), [(True, 2), (False, 3)])
def test_as_many_processes_are_measured_as_an_answer_needs(
    decided: bool, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.comparing.side_by_side.is_decided", lambda *_: decided)
    monkeypatch.setattr("memdiag.api.comparing.side_by_side.COMPARISON_REPEATS", 3)
    models = [save(tmp_path / f"{name}.onnx", "y = Abs(x)") for name in "ab"]
    steps: list[str] = []
    found = memdiag.compare(*models, runs=1, xray=False, on_progress=steps.append)
    assert [each.measured.times for each in found.columns if each.measured] == [times, times]
    # Outputs and latency come before the processes that only make figures more certain.
    compared = next(i for i, words in enumerate(steps) if words.startswith("outputs and latency"))
    assert sum("process" in words for words in steps[:compared]) == 4
    assert sum("process" in words for words in steps[compared:]) == 2 * times - 4


def test_only_columns_that_are_not_decided_are_measured_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_decided(before: ComparisonColumn, after: ComparisonColumn) -> bool:
        assert before.label == "a.onnx"
        return after.label != "c.onnx"

    monkeypatch.setattr("memdiag.api.comparing.side_by_side.is_decided", is_decided)
    monkeypatch.setattr("memdiag.api.comparing.side_by_side.COMPARISON_REPEATS", 3)
    models = [save(tmp_path / f"{name}.onnx", "y = Abs(x)") for name in "abc"]
    found = memdiag.compare(*models, runs=1, xray=False)
    assert [each.measured.times for each in found.columns if each.measured] == [3, 2, 3]


def test_a_time_limit_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise TimeLimitReached

    monkeypatch.setattr("memdiag.api.comparing.side_by_side.ReferenceSession", reached)
    models = [save(tmp_path / f"{name}.onnx", "y = Abs(x)") for name in "ab"]
    found = memdiag.compare(*models, runs=1, xray=False, time_limit_s=1000)
    assert [each.measured.times for each in found.columns if each.measured] == [2, 2]
    assert found.notes[-1] == "the time limit was reached: what was measured until then is listed"


def test_a_process_that_the_time_limit_ends_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[Deadline] = []

    def deadline_after(seconds: float) -> Deadline:
        limited.append(Deadline(time.monotonic() + seconds))
        return limited[0]

    def end(words: str) -> None:
        if "process 2 of" in words:
            limited[0].at = time.monotonic()

    monkeypatch.setattr("memdiag.api.compare.deadline_after", deadline_after)
    models = [save(tmp_path / f"{name}.onnx", "y = Abs(x)") for name in "ab"]
    found = memdiag.compare(*models, runs=1, xray=False, time_limit_s=1000, on_progress=end)
    assert {each.status for each in found.columns} == {"completed"}
    assert [each.measured.times for each in found.columns if each.measured] == [1, 1]


def test_optimizers_get_a_part_of_a_time_limit(
    tmp_path: Path, adapter: Callable[[str, str], None]
) -> None:
    model = save(tmp_path / "model.onnx", "y = Abs(x)")
    adapter("hanging", "time.sleep(600)")
    adapter("late", "shutil.copy(source, target)")
    found = memdiag.compare(model, optimizers=["all"], runs=1, xray=False, time_limit_s=15)
    columns = by_label(found)
    assert columns["hanging"].status == "timeout"
    assert columns["hanging"].message.endswith("in the part of the time limit that optimizers have")
    assert columns["late"].status == "unavailable"
    assert columns["late"].message == "the time limit was reached before it was run"
