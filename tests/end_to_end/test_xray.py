"""The X-ray on sessions whose copies are known by construction, ours and other people's."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import memdiag as package
from memdiag.api.watch import watch
from memdiag.errors import ModelError, UsageError, XrayError
from memdiag.programs.process_files import guess_models
from memdiag.records.attribution import Attribution, Copy
from tests.end_to_end.conftest import Finished, RunMemdiag, SampleModel

# A program that memdiag did not start: it creates a session for each model named, and waits.
SERVER = """
import ctypes, sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
names = ["CPUExecutionProvider"]
sessions = [onnxruntime.InferenceSession(path, options, providers=names) for path in sys.argv[1:]]
ctypes.CDLL(None).malloc_trim(0)
print("ready", flush=True)
sys.stdin.read()
"""


def serving(*models: Path) -> AbstractContextManager[int]:
    return running(SERVER, *map(str, models))


@contextmanager
def running(program: str, *arguments: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def two_products(path: Path, seed: int, *, shared: bool = False) -> Path:
    """Two MatMuls, with a weight each of 1 MB, or both with the same one."""
    random = np.random.default_rng(seed)
    weights = [random.standard_normal((512, 512), np.float32) for _ in range(2)]
    if shared:
        weights[1] = weights[0]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
            helper.make_node("MatMul", ["h", "w1"], ["y"], name="second"),
        ],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def of(attribution: Attribution, name: str, layout: str | None = None) -> list[Copy]:
    return [
        copy
        for copy in attribution.copies
        if name in copy.weights and layout in (None, copy.layout) and copy.in_use is not False
    ]


@pytest.fixture(scope="module")
def tied(sample_model: SampleModel) -> Attribution:
    """What is found of the tied model with no options, by which many tests go."""
    attribution = package.profile(sample_model("tied_if", 8), runs=1).attribution
    assert attribution is not None
    return attribution


def test_the_tied_weights_copies_are_told_apart(tied: Attribution) -> None:
    copies = of(tied, "model.shared.weight")
    assert {copy.layout: copy.made_by for copy in copies} == {
        "original": "parse",
        "transposed": "ConstantFolding · lm/Transpose",
        "packed_fp32": "prepack · lm/MatMul",
    }
    assert len(copies) == 3
    for copy in copies:
        assert copy.backing.kind == "anonymous"
        assert copy.verified_bytes >= 0.99 * copy.bytes
        assert copy.resident_bytes == copy.bytes


def test_one_copy_is_one(sample_model: SampleModel) -> None:
    model = sample_model("tied_if", 8)
    profile = package.profile(
        model,
        disabled_optimizers=["ConstantFolding"],
        session_options={"session.disable_prepacking": "1"},
        runs=1,
    )
    assert profile.attribution is not None
    (copy,) = of(profile.attribution, "model.shared.weight")
    assert copy.layout == "original"


def test_external_data_is_a_copy_in_the_file(sample_model: SampleModel) -> None:
    model = sample_model("tied_if", 8, external=True)
    profile = package.profile(model, disabled_optimizers=["ConstantFolding"], runs=1)
    assert profile.attribution is not None
    backings = [copy.backing for copy in of(profile.attribution, "model.shared.weight", "original")]
    assert [(one.kind, one.file) for one in backings] == [("file", f"{model.name}.data")]


def test_the_parts_sum_to_the_whole_and_most_has_a_name(tied: Attribution) -> None:
    assert sum(owner.bytes for owner in tied.owners) == tied.resident_bytes
    assert tied.named_share >= 0.95
    assert tied.baseline_bytes is not None
    assert not tied.partial


def test_bytes_that_a_session_was_loaded_from_are_a_copy_of_the_file(
    sample_model: SampleModel, tied: Attribution
) -> None:
    model = sample_model("tied_if", 8)
    attribution = package.profile(model, runs=1, load_from="bytes").attribution
    assert attribution is not None
    (copy,) = of(attribution, "(the model's file)")
    assert copy.bytes == model.stat().st_size
    assert copy.made_by == "loading from bytes"
    # The weight's own copies are counted apart from it.
    assert len(of(attribution, "model.shared.weight")) == 3
    assert of(tied, "(the model's file)") == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, Path]]:
    """The number of a process with a session of each of two models, and the models."""
    folder = tmp_path_factory.mktemp("served")
    one, two = (two_products(folder / f"{seed}.onnx", seed=seed) for seed in (1, 2))
    with serving(one, two) as pid:
        yield pid, one, two


def test_a_live_process_is_read_and_goes_on(served: tuple[int, Path, Path]) -> None:
    pid, model, _ = served
    attribution = package.xray(pid, model)
    paused = package.xray(pid, [model], pause=True)
    assert Path(f"/proc/{pid}/stat").read_text().split()[2] in ("S", "R")
    for one in (attribution, paused):
        assert {layout for copy in one.copies for layout in [copy.layout]} == {"packed_fp32"}
        assert len(one.copies) == 2
    assert attribution.baseline_bytes is None


def test_a_model_that_is_not_there_has_no_copies(
    tmp_path: Path, served: tuple[int, Path, Path]
) -> None:
    other = two_products(tmp_path / "3.onnx", seed=3)
    assert package.xray(served[0], other).copies == ()


def test_two_models_in_one_process_are_told_apart(served: tuple[int, Path, Path]) -> None:
    pid, one, two = served
    alone = package.xray(pid, one)
    both = package.xray(pid, [one, two])
    assert len(alone.copies) == 2
    assert len(both.copies) == 4


def test_weights_that_two_models_share_count_for_both(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "m.onnx", tmp_path / "b" / "m.onnx"
    for path in (one, two):
        path.parent.mkdir()
        two_products(path, seed=1)
    with serving(one, two) as pid:
        found = package.xray(pid, [one, two])
    assert [model.name for model in found.models] == ["a/m.onnx", "b/m.onnx"]
    assert {copy.models for copy in found.copies} == {(0, 1)}


def external(path: Path, name: str) -> Path:
    """The two products with their weights in the file called `name`."""
    model = onnx.load(two_products(path, seed=1))
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=0)
    return path


def test_models_are_guessed_by_the_files_of_a_process(tmp_path: Path) -> None:
    given, mapped = two_products(tmp_path / "a.onnx", seed=1), tmp_path / "b"
    mapped.mkdir()
    external(mapped / "b.onnx", "b.weights")
    two_products(mapped / "other.onnx", seed=3)
    holding = (
        f"import sys; held = open({str(given)!r}); print('ready', flush=True); sys.stdin.read()"
    )
    loading = f"import sys; sys.argv[1:] = [{str(mapped / 'b.onnx')!r}]\n{SERVER}"
    loading = loading.replace(
        "options.intra",
        "options.add_session_config_entry('session.disable_prepacking', '1'); options.intra",
    )
    for program, arguments, expected in (
        (SERVER, [str(given)], [given]),
        (holding, [], [given]),
        (loading, [], [mapped / "b.onnx"]),
        (holding.replace(str(given), "/dev/null"), ["m.onnx", "--x"], []),
    ):
        with running(program, *arguments) as pid:
            assert list(guess_models(pid)) == [(path, True) for path in expected]
            found = package.xray(pid)
        assert [model.name for model in found.models] == [path.name for path in expected]
        (note,) = [note for note in found.notes if "was given" in note or "was named" in note]
        assert ("none was found" in note) == (not expected)
        assert bool(found.copies) == (program is not holding and bool(expected))


@pytest.mark.parametrize(
    ("program", "arguments", "is_found"),
    [
        ("import sys, os; os.chdir({0!r}); sys.argv[1:] = ['a.onnx']\n{1}", [], True),
        ("import sys; sys.argv[1] = sys.argv[1].partition('=')[2]\n{1}", ["-m={0}/a.onnx"], True),
        ("import os; path = 'a.onnx'\n{1}", [], False),  # there is no such file in its folder
    ],
)
def test_a_model_that_was_read_and_closed_is_found_by_its_path(
    tmp_path: Path, program: str, arguments: list[str], is_found: bool
) -> None:
    model = two_products(tmp_path / "a.onnx", seed=1)
    words = [word.format(tmp_path) for word in arguments]
    with running(program.format(str(tmp_path), SERVER), *words) as pid:
        guesses = [(path.resolve(), is_used) for path, is_used in guess_models(pid)]
        by_files = guess_models(pid, searches_memory=False)
        notes = package.xray(pid).notes
    assert guesses == [(model, bool(arguments))] * is_found
    assert len(by_files) == bool(arguments)  # a path in memory takes long to find
    assert any(note.endswith("the process uses a.onnx") for note in notes) == is_found


def test_a_model_that_is_only_named_in_memory_is_not_used(tmp_path: Path) -> None:
    two_products(tmp_path / "a.onnx", seed=1)
    two_products(tmp_path / "unrelated.onnx", seed=2)
    program = (
        f"import sys; path = {str(tmp_path)!r}; sys.argv[1:] = [path + '/a.onnx']\n"
        f"other = path + '/unrelated.onnx'\n{SERVER}"
    )
    with running(program) as pid:
        watched = watch(pid, duration_s=0.2, xray=False).notes
        xrayed = watch(pid, duration_s=0.2, xray=True).notes
        given = watch(pid, duration_s=0.2, xray=True, models=[tmp_path / "a.onnx"]).notes
        (note, *_) = package.xray(pid).notes
    assert any("uses onnxruntime" in text for text in watched)
    assert not any(".onnx" in text.partition(" uses ")[2] for text in watched)
    assert any(text.endswith(" with a.onnx") for text in xrayed)
    assert any(text.endswith(" with a.onnx") for text in given)
    assert note.endswith(": the process uses a.onnx")


def test_a_file_that_is_no_model_is_no_error_where_it_was_guessed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    program = "import sys; print('ready', flush=True); sys.stdin.read()"
    with running(program, str(broken)) as pid:
        assert package.xray(pid).models == ()
        with pytest.raises(ModelError):
            package.xray(pid, broken)


def test_several_models_are_understood_as_a_shell_expands_them(
    served: tuple[int, Path, Path], memdiag: RunMemdiag
) -> None:
    pid, one, two = served
    finished = memdiag("xray", pid, one, two)
    assert finished.returncode == 0, finished.stderr
    lines = [" ".join(line.split()) for line in finished.stdout.splitlines()]
    assert "1.onnx 2.0 MiB 2 2.0 MiB 1.0 ×" in lines
    assert "2.onnx 2.0 MiB 2 2.0 MiB 1.0 ×" in lines


def test_two_sessions_have_two_of_each(tmp_path: Path) -> None:
    model = two_products(tmp_path / "a.onnx", seed=1)
    with serving(model, model) as pid:
        attribution = package.xray(pid, model)
    assert len(of(attribution, "w0")) == 2
    assert len(of(attribution, "w1")) == 2


def test_equal_weights_are_one_group_with_all_names(tmp_path: Path) -> None:
    model = two_products(tmp_path / "a.onnx", seed=1, shared=True)
    with serving(model) as pid:
        attribution = package.xray(pid, model)
    assert {copy.weights for copy in attribution.copies} == {("w0", "w1")}


def test_the_record_holds_no_content(served: tuple[int, Path, Path], memdiag: RunMemdiag) -> None:
    pid, model, _ = served
    finished = memdiag("xray", pid, model, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    record = json.loads(finished.stdout)
    assert record["schema"] == "memdiag.attribution/1"
    assert str(model.parent) not in finished.stdout
    assert {"resident_bytes", "baseline_bytes", "named_share", "owners", "copies"} <= set(record)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, memdiag: RunMemdiag) -> None:
    model = two_products(tmp_path / "a.onnx", seed=1)
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as ended:
        pid = ended.pid
    with pytest.raises(XrayError, match=str(pid)):
        package.xray(pid, model)
    with pytest.raises(UsageError, match="no model was given"):
        package.xray(pid, [])
    finished = memdiag("xray", pid, model)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    assert finished.stderr.startswith(f"memdiag: process {pid}")


def test_a_missing_folder_is_created_and_a_bad_place_refused_before_the_scan(
    tmp_path: Path, served: tuple[int, Path, Path], memdiag: RunMemdiag
) -> None:
    pid, model, _ = served

    def xray(pid: int, output: Path) -> Finished:
        return memdiag("xray", pid, model, "--quiet", "--output", output)

    finished = xray(pid, tmp_path / "new" / "folder" / "x.json")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "new" / "folder" / "x.json").exists()
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as ended:
        pass
    # A process that has ended: a complaint about the file comes first.
    for output in (tmp_path, model / "x.json"):
        finished = xray(ended.pid, output)
        assert finished.returncode == 2
        assert finished.stderr.startswith(f"memdiag: {output}: cannot be written (")


def test_one_mapping_of_two_weights_is_one_copy_with_both_names(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(65536, np.float32)
    (tmp_path / "m.data").write_bytes(values.tobytes())
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [65536])
    branches = {}
    for key in ("then_branch", "else_branch"):
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[65536])
        weight.data_location = TensorProto.EXTERNAL
        for entry, text in (("location", "m.data"), ("offset", "0"), ("length", "262144")):
            weight.external_data.add(key=entry, value=text)
        node = helper.make_node("Add", ["x", "w"], [f"{key}_y"])
        output = helper.make_tensor_value_info(f"{key}_y", TensorProto.FLOAT, [65536])
        branches[key] = helper.make_graph([node], key, [], [output], [weight])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [65536])
    node = helper.make_node("If", ["c"], ["y"], "if", **branches)
    graph = helper.make_graph([node], "g", [condition, value], [output])
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    found = package.profile(path, runs=1).attribution
    assert found is not None
    mapped = [copy for copy in found.copies if copy.backing.kind == "file"]
    assert mapped
    assert len({copy.address for copy in mapped}) == len(mapped)
    assert {frozenset(copy.weights) for copy in mapped} == {
        frozenset(("if/else_branch/w", "if/then_branch/w"))
    }
