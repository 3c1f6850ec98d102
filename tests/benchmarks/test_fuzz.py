"""The fuzzer makes the same files again, counts what goes wrong, and goes on."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzz.encoding import mutate_bytes, mutate_encoding, nest
from benchmarks.fuzz.models import base_models
from benchmarks.fuzz.mutations import mutate
from benchmarks.fuzz.records import base_records, mutate_record
from memdiag.errors import ModelError
from memdiag.model.model_file import open_model

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run the fuzzer; `code` is run before it, in its process."""
    program = f"{code}\nfrom benchmarks.fuzz.__main__ import main\nraise SystemExit(main())"
    words = [sys.executable, "-c", program, *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def rows(output: str) -> dict[str, list[int]]:
    """Return the rows of the table, by their first cell."""
    cells = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("|")]
    return {one[0]: [int(each) for each in one[1:]] for one in cells[2:]}


@pytest.mark.slow
def test_some_files_go_through_all_commands(tmp_path: Path) -> None:
    done = fuzz("--files", "60", "--seed", "16", "--kept", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    table = rows(done.stdout)
    check, estimate, *others = table["files"]
    assert check == estimate
    assert check + sum(others) == 60
    assert min(others) > 0
    assert table["findings"][0] > 2
    assert table["refused with a sentence"][0] > 2
    assert list(tmp_path.iterdir()) == []


# What happens in place of the checks of the first files.
ENDINGS = """
import os, time
from benchmarks.fuzz import __main__ as main_module, trial

def unknown(path, random):
    raise KeyError("x")

def ended(path, random):
    os.kill(os.getpid(), 11)

def sleeping(path, random):
    time.sleep(60)

def spinning(path, random):
    while True:
        pass

def unsafe(path, random):
    return {"outcome": "unsafe", "where": "printed"}

def run(bases, seed, number, *rest, run=trial.run):
    check = (unknown, ended, sleeping, spinning, unsafe)[number]
    trial.KINDS = (trial.KINDS[-1]._replace(share=1, commands={trial.CHECK: check}),)
    run(bases, seed, number, *rest)

def read(reading, deadline, read=main_module._read):
    return read(reading, deadline - 4)  # 3 s rather than 7

trial.SECONDS, trial.run, trial.prepare = 1, run, lambda bases: None
main_module._read = read
"""


def test_what_goes_wrong_is_counted_and_kept(tmp_path: Path) -> None:
    done = fuzz("--files", "5", "--seed", "1", "--kept", str(tmp_path), code=ENDINGS)
    assert done.returncode == 1, done.stdout + done.stderr
    table = rows(done.stdout)
    assert {name: counts[0] for name, counts in table.items() if counts[0]} == {
        "files": 5,
        "escaped exceptions": 1,
        "ended by a signal": 1,
        "more than 1 s of processor time": 2,
        "printed what a terminal obeys": 1,
    }
    for number, kind in enumerate(("exception", "signal", "hang", "hang", "unsafe")):
        assert (tmp_path / f"{kind}-{number}.onnx").exists()
        assert kind in (tmp_path / f"{kind}-{number}.txt").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_prints_the_table_so_far(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom benchmarks.fuzz import __main__ as main_module\n"
        "run = main_module.run_file\n"
        "def stopping(bases, seed, number, log):\n"
        "    if number == 2:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return run(bases, seed, number, log)\n"
        "main_module.run_file = stopping"
    )
    done = fuzz("--files", "1000", "--seed", "1", "--kept", str(tmp_path), code=code)
    assert done.returncode == 1
    assert "Interrupted after 2 files" in done.stderr
    assert "Traceback" not in done.stderr
    check, _, _, *others = rows(done.stdout)["files"]
    assert check + sum(others) == 2


def test_a_number_gives_the_same_file_each_time(tmp_path: Path) -> None:
    models = list(base_models(tmp_path).values())
    records = base_records()
    for number in range(30):
        first, again = (mutate(models, Random(f"0 {number}")) for _ in range(2))
        assert first == again
        assert mutate_record(records, Random(number)) == mutate_record(records, Random(number))
    assert len({mutate(models, Random(number)) for number in range(30)}) > 25


def test_the_models_that_files_are_made_from_are_read(tmp_path: Path) -> None:
    types = set()
    for name, model in base_models(tmp_path).items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        with open_model(path) as opened:
            types |= {weight.dtype for weight in opened.weights}
        os.unlink(path)
    assert {"int4", "bfloat16", "string", "complex64", "float8e4m3fn"} <= types


def test_an_encoding_is_changed_at_any_depth(tmp_path: Path) -> None:
    model = base_models(tmp_path)["branches"]
    data = model.SerializeToString()
    changed = [mutate_encoding(data, Random(number)) for number in range(40)]
    assert len(set(changed) - {data}) > 35
    assert mutate_bytes(data, Random(0)) != data


def test_graphs_are_nested_deeper_than_the_library_encodes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(nest(b"\x08\x0a", 20))
    with open_model(path) as model:
        assert model.node_count == 20
    path.write_bytes(nest(b"\x08\x0a", 200))
    with pytest.raises(ModelError, match="nested"):
        open_model(path)
