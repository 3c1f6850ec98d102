"""The X-ray on sessions whose copies are known by construction, ours and other people's."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import external_data_helper

import memdiag as package
from memdiag.api.watch import watch
from memdiag.errors import ModelError, UsageError, XrayError
from memdiag.programs.process_files import guess_models
from tests.api.small_models import model_of, save_model
from tests.end_to_end.conftest import RunMemdiag, SampleModel

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


@contextmanager
def running(program: str, *arguments: object) -> Iterator[int]:
    """The number of a process that runs `program`, which prints ``ready`` and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def two_products(path: Path, seed: int, *, shared: bool = False) -> Path:
    """Two MatMuls, with a weight each of 1 MB, or both with the same one."""
    random = np.random.default_rng(seed)
    w0, w1 = (random.standard_normal((512, 512), np.float32) for _ in range(2))
    text = "main (float[n, 512] x) => (float[n, 512] y) { h = MatMul(x, w0) y = MatMul(h, w1) }"
    return save_model(path, text, w0=w0, w1=w0 if shared else w1)


FOLDED = {
    "original": "parse",
    "transposed": "ConstantFolding · lm/Transpose",
    "packed_fp32": "prepack · lm/MatMul",
}
UNFOLDED: dict[str, Any] = {"disabled_optimizers": ["ConstantFolding"]}
UNPACKED = {**UNFOLDED, "session_options": {"session.disable_prepacking": "1"}}


@pytest.mark.parametrize(
    ("is_external", "settings", "made_by"),
    [
        (False, {}, FOLDED),
        (False, {"load_from": "bytes"}, FOLDED),
        (False, UNPACKED, {"original": "parse"}),
        (True, UNPACKED, {"original": None}),  # mapped
    ],
)
def test_the_tied_weights_copies_are_told_apart(
    sample_model: SampleModel,
    is_external: bool,
    settings: dict[str, Any],
    made_by: dict[str, str | None],
) -> None:
    model = sample_model("tied_if", 8, external=is_external)
    found = package.profile(model, runs=1, **settings).attribution
    assert found is not None
    in_use = [copy for copy in found.copies if copy.in_use is not False]
    copies = [copy for copy in in_use if "model.shared.weight" in copy.weights]
    assert len(copies) == len(made_by)
    assert {copy.layout: copy.made_by for copy in copies} == made_by
    place = ("file", f"{model.name}.data") if is_external else ("anonymous", None)
    for copy in copies:
        assert (copy.backing.kind, copy.backing.file) == place
        if not is_external:  # of a mapped file not all pages have to be there
            assert copy.verified_bytes >= 0.99 * copy.bytes
            assert copy.resident_bytes == copy.bytes
    # The bytes that the session was loaded from are counted apart.
    files = [copy for copy in in_use if "(the model's file)" in copy.weights]
    expected = [(model.stat().st_size, "loading from bytes")] if "load_from" in settings else []
    assert [(copy.bytes, copy.made_by) for copy in files] == expected
    assert sum(owner.bytes for owner in found.owners) == found.resident_bytes
    assert found.named_share >= 0.95
    assert found.baseline_bytes is not None
    assert not found.partial


@dataclass(frozen=True)
class Served:
    """A process with a session of each of some models, of one of them with two."""

    pid: int
    models: dict[str, Path]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    seeds = {"one": 1, "two": 2, "twice": 4, "equal": 5, "a/m": 6, "b/m": 6}
    models = {
        name: two_products(folder / f"{name}.onnx", seed, shared=name == "equal")
        for name, seed in seeds.items()
    }
    with running(SERVER, *models.values(), models["twice"]) as pid:
        absent = two_products(folder / "absent.onnx", seed=3)
        yield Served(pid, {**models, "absent": absent})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["one"], {"w0": 1, "w1": 1}),
        (["one", "two"], {"0 w0": 1, "0 w1": 1, "1 w0": 1, "1 w1": 1}),
        (["twice"], {"w0": 2, "w1": 2}),
        (["equal"], {"w0 w1": 1}),  # the runtime shares what it packed
        (["a/m", "b/m"], {"0 1 w0": 2, "0 1 w1": 2}),
        (["absent"], {}),
    ],
)
def test_copies_are_counted_by_model_and_weight(
    served: Served, names: list[str], expected: dict[str, int]
) -> None:
    found = package.xray(served.pid, [served.models[name] for name in names])
    copies = Counter(" ".join(map(str, (*copy.models, *copy.weights))) for copy in found.copies)
    assert copies == expected
    assert {copy.layout for copy in found.copies} <= {"packed_fp32"}
    assert [model.name for model in found.models] == [f"{name}.onnx" for name in names]
    assert found.baseline_bytes is None


def test_a_process_that_was_paused_goes_on(served: Served) -> None:
    paused = package.xray(served.pid, served.models["one"], pause=True)
    assert Path(f"/proc/{served.pid}/stat").read_text().split()[2] in ("S", "R")
    assert len(paused.copies) == 2


def test_models_are_guessed_by_the_files_of_a_process(tmp_path: Path) -> None:
    given, mapped = two_products(tmp_path / "a.onnx", seed=1), tmp_path / "b"
    two_products(mapped / "other.onnx", seed=3)
    model = onnx.load(given)
    onnx.save(model, mapped / "b.onnx", save_as_external_data=True, location="w", size_threshold=0)
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


def test_the_command_takes_several_models_and_prints_no_content(
    served: Served, memdiag: RunMemdiag
) -> None:
    models = [served.models[name] for name in ("one", "two")]
    finished = memdiag("xray", served.pid, *models)
    assert finished.returncode == 0, finished.stderr
    lines = [" ".join(line.split()) for line in finished.stdout.splitlines()]
    for name in ("one", "two"):
        assert f"{name}.onnx 2.0 MiB 2 2.0 MiB 1.0 ×" in lines
    finished = memdiag("xray", served.pid, *models, "--format", "json")
    record = json.loads(finished.stdout)
    assert record["schema"] == "memdiag.attribution/1"
    assert str(models[0].parent) not in finished.stdout
    assert {"resident_bytes", "baseline_bytes", "named_share", "owners", "copies"} <= set(record)


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as process:
        return process.pid


def test_what_cannot_be_read_is_one_sentence(
    served: Served, ended: int, memdiag: RunMemdiag
) -> None:
    model = served.models["one"]
    with pytest.raises(XrayError, match=str(ended)):
        package.xray(ended, model)
    with pytest.raises(UsageError, match="no model was given"):
        package.xray(ended, [])
    finished = memdiag("xray", ended, model)
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith(f"memdiag: process {ended}")


def test_a_missing_folder_is_created_and_a_bad_place_refused_before_the_scan(
    tmp_path: Path, served: Served, ended: int, memdiag: RunMemdiag
) -> None:
    model, output = served.models["one"], tmp_path / "new" / "folder" / "x.json"
    finished = memdiag("xray", served.pid, model, "--quiet", "--output", output)
    assert finished.returncode == 0, finished.stderr
    assert output.exists()
    # The process has ended: a complaint about the file comes first.
    for place in (tmp_path, model / "x.json"):
        finished = memdiag("xray", ended, model, "--quiet", "--output", place)
        assert finished.returncode == 2
        assert finished.stderr.startswith(f"memdiag: {place}: cannot be written (")


BRANCHES = """g (bool c, float[65536] x) => (float[65536] y) {
    [if] y = If (c) <then_branch = t () => (float[65536] a) { a = Add (x, w) },
                     else_branch = e () => (float[65536] b) { b = Add (x, w) }>
}"""


def test_one_mapping_of_two_weights_is_one_copy_with_both_names(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(65536, np.float32)
    (tmp_path / "m.data").write_bytes(values.tobytes())
    model = model_of(BRANCHES)
    (node,) = model.graph.node
    for attribute in node.attribute:
        weight = attribute.g.initializer.add(name="w", data_type=1, dims=[65536], raw_data=b"")
        external_data_helper.set_external_data(weight, "m.data", 0, 262144)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    found = package.profile(path, runs=1).attribution
    assert found is not None
    mapped = [copy for copy in found.copies if copy.backing.kind == "file"]
    assert mapped
    assert len({copy.address for copy in mapped}) == len(mapped)
    assert {frozenset(copy.weights) for copy in mapped} == {
        frozenset(("if/else_branch/w", "if/then_branch/w"))
    }
