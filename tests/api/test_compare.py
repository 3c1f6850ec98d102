"""Comparing models, optimizers, interpreters and saved profiles; what fails is a column."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import psutil
import pytest

import memdiag
from memdiag.api.comparing.column_plans import ColumnPlan
from memdiag.api.comparing.side_by_side import SideBySide
from memdiag.comparison import run_optimizer, runtimes
from memdiag.comparison.optimizers import Optimizer
from memdiag.errors import ModelError, ProvisionError, RecordError, UsageError
from memdiag.paths import distinct_names
from memdiag.records.codec import decode, encode
from memdiag.records.comparison import Comparison, ComparisonColumn
from memdiag.runner.job import Deadline, Job, TimeLimitReached
from memdiag.units import MIB
from tests.api.small_models import model_of, save_model
from tests.reports import profiles

SampleModel = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("equal_latency")


def by_label(comparison: Comparison) -> dict[str, ComparisonColumn]:
    return {column.label: column for column in comparison.columns}


def compared(*models: Path, **options: Any) -> Comparison:
    """Compare figures of one process each, without an X-ray."""
    return memdiag.compare(*models, **{"repeats": 1, "runs": 1, "xray": False, **options})


def save(path: Path, body: str = "y = Abs(x)", size: str = "n", more: str = "") -> Path:
    return save_model(path, f"g (float[{size}] x) => (float[{size}] y{more}) {{ {body} }}")


@pytest.fixture
def abs_model(tmp_path: Path) -> Path:
    return save(tmp_path / "model.onnx")


@pytest.fixture
def abs_models(tmp_path: Path) -> list[Path]:
    return [save(tmp_path / f"{name}.onnx") for name in "abc"]


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function (name, body) that adds an optimizer, the only one next to others added so."""
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
    # The weight alone, without the branch that transposes it.
    weights = {each.name: each for each in onnx.load(model).graph.initializer}
    single = model_of("g (int64[n] ids) => (float[n, m] y) { y = Gather(w, ids) }")
    single.graph.node[0].input[0] = "model.shared.weight"
    single.graph.initializer.append(weights["model.shared.weight"])
    path = tmp_path / "single.onnx"
    onnx.save(single, path)
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
    first = save(tmp_path / "first.onnx")
    same = save(tmp_path / "same.onnx", "z = Abs(x) y = Identity(z)")
    worse = save(tmp_path / "worse.onnx", "y = Exp(x)")
    broken = save(tmp_path / "broken.onnx", "y = Odd(x)")
    found = compared(first, same, worse, broken, runs=2)
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
    good = save(tmp_path / "good.onnx")
    also = save(tmp_path / "also.onnx")
    found = compared(torn, good, also)
    assert [each.status for each in found.columns] == ["failed", "completed", "completed"]
    assert "torn.onnx" in found.columns[0].message
    assert by_label(found)["also.onnx"].largest_difference == 0


@pytest.mark.parametrize("names", [("nope.onnx", "no.onnx"), ("good.onnx", "nope.onnx")])
def test_a_missing_model_is_an_error_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "good.onnx")
    with pytest.raises(ModelError, match=r"^nope.onnx: there is no such file. Check the path\.$"):
        memdiag.compare(*names)


def test_the_users_inputs_are_those_of_all_columns(tmp_path: Path) -> None:
    one = save(tmp_path / "one.onnx")
    other = save(tmp_path / "other.onnx", "y = Sqrt(x)")
    ones = {"x": np.ones(5, np.float32)}
    found = compared(one, other, inputs=ones)
    assert found.columns[1].largest_difference == 0
    for column in found.columns:
        assert column.profile is not None
        (given,) = column.profile.inputs
        assert (given.name, given.shape, given.source) == ("x", (5,), "given")


@pytest.mark.slow
def test_optimizers_that_crash_or_hang_are_columns_that_say_so(
    abs_model: Path, adapter: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.compare.DEFAULT_TIMEOUT_S", 6.0)
    adapter("good", "shutil.copy(source, target)")
    adapter("crashing", "os.abort()")
    adapter("hanging", "time.sleep(600)")
    adapter("breaking", "open(target, 'w').write('no model')")
    adapter("idle", "return 'nothing was worth changing'")
    found = compared(abs_model, optimizers=["all"])
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
    abs_model: Path, adapter: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(name: str) -> Path:
        raise ProvisionError(f"{name}: the package registry cannot be reached.")

    adapter("far", "pass")
    monkeypatch.setattr("memdiag.api.comparing.column_plans.interpreter_for", unavailable)
    found = compared(abs_model, optimizers=["far"])
    assert [each.status for each in found.columns] == ["completed", "unavailable"]
    assert "cannot be reached" in found.columns[1].message


def test_interpreters_are_columns_called_by_their_version(
    abs_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path / "cache"))
    version = runtimes.distribution_version()
    assert version is not None
    bare = tmp_path / "bare" / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    found = compared(abs_model, onnxruntime=[version, sys.executable, str(tmp_path / "bare")])
    columns = by_label(found)
    assert {*columns} == {version, f"{version} (2)", "bare"}
    assert columns["bare"].status == "unavailable"
    assert "no onnxruntime" in columns["bare"].message
    assert columns[version].onnxruntime == version
    assert found.kind == "onnxruntime"


def test_a_version_that_cannot_be_had_is_a_column_that_says_so(
    abs_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(home: Path, packages: object) -> Path:
        raise ProvisionError("onnxruntime==0.1.2: there is no such version.")

    monkeypatch.setattr(runtimes, "provided_interpreter", unavailable)
    version = runtimes.distribution_version()
    assert version is not None
    found = compared(abs_model, onnxruntime=["0.1.2", version])
    assert [each.status for each in found.columns] == ["unavailable", "completed"]


def test_a_bisection_measures_as_few_versions_as_it_needs(
    abs_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "registry_versions", lambda: ("1.1.0", "1.2.0", "1.3.0", "1.4.0"))
    monkeypatch.setattr(runtimes, "runtime_interpreter", lambda version: Path(sys.executable))
    found = compared(abs_model, bisect="steady", onnxruntime=["1.2.0", "1.4.0"])
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
    folders = [tmp_path / name for name in "ab"]
    files = [folder / "profile.json" for folder in folders]
    for path, profile in zip(files, (one, other), strict=True):
        profile.save(path)
    found = memdiag.compare(*files)
    assert found.kind == "profiles"
    assert any("load and latency are not compared" in note for note in found.notes)
    # One by one or in a list, as paths or texts.
    for compared_files in (found, memdiag.compare(files), memdiag.compare(tuple(map(str, files)))):
        assert list(by_label(compared_files)) == ["a/profile.json", "b/profile.json"]
        assert [(each.metric, each.bytes) for each in compared_files.changes] == [
            ("steady", 900 * MIB)
        ]
    of_folders = memdiag.compare(*folders)
    assert list(by_label(of_folders)) == ["a", "b"]
    assert [each.bytes for each in of_folders.changes] == [900 * MIB]
    (tmp_path / "c").mkdir()
    with pytest.raises(RecordError, match="c: no saved record in this folder"):
        memdiag.compare(folders[0], tmp_path / "c")
    with pytest.raises(UsageError, match="cannot be compared with saved profiles"):
        memdiag.compare(folders[0], "model.onnx")
    with pytest.raises(UsageError, match="3 is not a path"):
        memdiag.compare(folders[0], 3)  # type: ignore[arg-type] # wrong on purpose


def test_a_profile_that_failed_is_a_column_that_says_so(tmp_path: Path) -> None:
    profiles.tied_if().save(tmp_path / "good.json")
    profiles.failed().save(tmp_path / "bad.json")
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


def test_outputs_that_only_one_model_has_are_named(tmp_path: Path) -> None:
    first = save(tmp_path / "first.onnx")
    more = save(tmp_path / "more.onnx", "y = Abs(x) z = Exp(x)", more=", float[n] z")
    other = save(tmp_path / "other.onnx", "y = Abs(x) u = Exp(x)", more=", float[n] u")
    found = compared(more, first, other)
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


@pytest.mark.parametrize(
    ("sizes", "dims", "shapes"),
    [
        (("D0, 8", "N, 8"), {"batch": 3}, [(3, 8), (3, 8)]),  # a role
        (("n", "rows"), {"n": 3}, [(3,), (3,)]),
        (("n", "rows"), {"n": 3, "rows": 5}, [(3,), (5,)]),
    ],
)
def test_each_model_takes_the_sizes_of_its_own_dimensions(
    tmp_path: Path, sizes: tuple[str, str], dims: dict[str, int], shapes: list[tuple[int, ...]]
) -> None:
    models = [
        save(tmp_path / f"{name}.onnx", size=size) for name, size in zip("ab", sizes, strict=True)
    ]
    found = [column.profile for column in compared(*models, dims=dims).columns if column.profile]
    assert [profile.inputs[0].shape for profile in found] == shapes
    names = [size.partition(",")[0] for size in sizes]
    assert [[each.name for each in profile.dimensions] for profile in found] == [[n] for n in names]
    with pytest.raises(UsageError, match=rf"'k': a\.onnx has {names[0]}; b\.onnx has {names[1]}"):
        compared(*models, dims={"k": 3})


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
            "bisect is between versions. Name no environments",
        ),
        (["a.onnx", "b.onnx"], {"repeats": 0}, "repeats must be at least 1"),
        (["a.onnx"], {"bisect": "load", "repeats": 1}, "repeats must be 2 or more"),
        (["a.onnx", "b.onnx"], {"time_limit_s": 0}, "time_limit_s must be greater than 0, not 0"),
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


def test_ctrl_c_keeps_what_was_measured(abs_models: list[Path], heeding_ctrl_c: None) -> None:
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
        if words.startswith("a.onnx, process 2 of 3"):
            assert not has_child()
            threading.Thread(target=interrupt_child, daemon=True).start()

    found = compared(*abs_models[:2], repeats=3, runs=3, on_progress=interrupt)
    assert any("interrupted" in note for note in found.notes)
    assert all(each.measured is not None for each in found.columns)
    assert steps[-1].startswith("a.onnx, process 2 of 3 (about ")


def test_only_columns_that_are_not_decided_are_measured_further(
    abs_models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_decided(before: ComparisonColumn, after: ComparisonColumn) -> bool:
        assert before.label == "a.onnx"
        return after.label != "c.onnx"

    monkeypatch.setattr("memdiag.api.comparing.side_by_side.is_decided", is_decided)
    monkeypatch.setattr("memdiag.api.comparing.side_by_side.COMPARISON_REPEATS", 3)
    steps: list[str] = []
    found = compared(*abs_models, repeats=None, on_progress=steps.append)
    assert [each.measured.times for each in found.columns if each.measured] == [3, 2, 3]
    # Outputs and latency come before the processes that only make figures more certain.
    first = next(i for i, words in enumerate(steps) if words.startswith("outputs and latency"))
    assert sum("process" in words for words in steps[:first]) == 6
    assert sum("process" in words for words in steps[first:]) == 2


def test_a_time_limit_keeps_what_was_measured(
    abs_models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise TimeLimitReached

    monkeypatch.setattr("memdiag.api.comparing.side_by_side.ReferenceSession", reached)
    found = compared(*abs_models[:2], repeats=None, time_limit_s=1000)
    assert [each.measured.times for each in found.columns if each.measured] == [2, 2]
    assert found.notes[-1] == "the time limit was reached: what was measured until then is listed"


def test_a_process_that_the_time_limit_ends_is_no_failure(
    abs_models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[Deadline] = []

    def deadline_after(seconds: float) -> Deadline:
        limited.append(Deadline(time.monotonic() + seconds))
        return limited[0]

    def end(words: str) -> None:
        if "process 2 of" in words:
            limited[0].at = time.monotonic()

    monkeypatch.setattr("memdiag.api.compare.deadline_after", deadline_after)
    found = compared(*abs_models[:2], repeats=None, time_limit_s=1000, on_progress=end)
    assert {each.status for each in found.columns} == {"completed"}
    assert [each.measured.times for each in found.columns if each.measured] == [1, 1]


def test_optimizers_get_a_part_of_a_time_limit(
    abs_model: Path, adapter: Callable[[str, str], None]
) -> None:
    adapter("hanging", "time.sleep(600)")
    adapter("late", "shutil.copy(source, target)")
    found = compared(abs_model, optimizers=["all"], repeats=None, time_limit_s=15)
    columns = by_label(found)
    assert columns["hanging"].status == "timeout"
    assert columns["hanging"].message.endswith("in the part of the time limit that optimizers have")
    assert columns["late"].status == "unavailable"
    assert columns["late"].message == "the time limit was reached before it was run"


def test_a_provider_that_is_not_there_is_a_failed_column(abs_models: list[Path]) -> None:
    found = compared(*abs_models[:2], providers=["CUDAExecutionProvider"])
    for column in found.columns:
        assert column.status == "failed"
        assert "has no provider called CUDAExecutionProvider" in column.message


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({}, (False, True)),
        ({"providers": ["CUDAExecutionProvider"]}, (True, True)),
        # CUPTI takes memory on the GPU: all processes have it, or none.
        ({"providers": ["CUDAExecutionProvider"], "xray": False}, (True, False)),
    ],
)
def test_columns_on_a_gpu_record_its_memory(
    options: dict[str, Any],
    recorded: tuple[bool, bool],
    abs_models: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs: list[Job] = []

    def measure(self: SideBySide, plans: Sequence[ColumnPlan]) -> list[ComparisonColumn]:
        jobs.extend(plan.job for plan in plans)
        return []

    monkeypatch.setattr(SideBySide, "measure", measure)
    memdiag.compare(*abs_models[:2], **options)
    assert {(job.records_device, job.records_allocations) for job in jobs} == {recorded}
    providers = options.get("providers", ["CPUExecutionProvider"])
    assert all([*job.session.providers] == providers for job in jobs)


def test_options_of_a_provider_that_is_not_asked_for_are_refused(abs_models: list[Path]) -> None:
    with pytest.raises(UsageError, match="is not among the execution providers"):
        compared(*abs_models[:2], provider_options={"CUDAExecutionProvider": {"a": "1"}})
