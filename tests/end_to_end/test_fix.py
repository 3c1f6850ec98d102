"""memdiag fix and tune as a user starts them."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

RunMemdiag = Callable[..., "CompletedProcess[str]"]
SampleModel = Callable[..., Path]


@pytest.fixture
def tied(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "tied.onnx"
    path.write_bytes(sample_model("tied_if", 16).read_bytes())
    return path


@pytest.mark.slow
def test_fix_says_what_it_did_and_writes_the_model(memdiag: RunMemdiag, tied: Path) -> None:
    finished = memdiag("fix", tied, "-o", "out.onnx", "--max-slowdown", "10")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert any(line.startswith("applied ") for line in lines)
    for label in ("peak", "steady", "  anonymous", "load", "latency, size 1"):
        assert any(line.startswith(label) for line in lines), label
    assert lines[-1].startswith("wrote out.onnx")
    assert (tied.parent / "out.onnx").exists()
    assert max(map(len, lines)) <= 80


def test_the_record_follows_the_contract(memdiag: RunMemdiag, tied: Path) -> None:
    record = json.loads(
        memdiag("fix", tied, "--max-slowdown", "10", "--sizes", "1", "--format", "json").stdout
    )
    assert record["schema"] == "memdiag.fix/1"
    assert {"output", "session_options", "environment", "remedies", "before", "after"} <= {*record}
    assert {"name", "rule", "status", "reason"} <= {*record["remedies"][0]}
    for side in ("before", "after"):
        assert {
            "peak_bytes",
            "steady_bytes",
            "anonymous_bytes",
            "load_s",
            "latency_s",
        } <= {*record[side]}
    assert record["session_options"] == {}


def test_nothing_to_fix_is_no_error(memdiag: RunMemdiag, sample_model: SampleModel) -> None:
    finished = memdiag("fix", sample_model("plain_mlp"), "-o", "out.onnx")
    assert finished.returncode == 0
    assert "nothing to fix was found" in finished.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.onnx",), "there is no such file"),
        (("tied.onnx", "-o", "tied.onnx"), "the original's own file"),
        (("tied.onnx", "--only", "nonsense"), "there is no rule"),
        (("tied.onnx", "-o", "/proc/nothing/out.onnx", "--max-slowdown", "10"), "cannot be"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, tied: Path, words: tuple[str, ...], said: str
) -> None:
    finished = memdiag("fix", *words)
    assert finished.returncode == 2
    assert said in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]


@pytest.mark.slow
def test_tune_prints_points_and_a_program(memdiag: RunMemdiag, tied: Path) -> None:
    finished = memdiag(
        "tune", tied, "--budget", "steady=1GB", "--max-slowdown", "10", "--picture", "p.png"
    )
    assert finished.returncode == 0, finished.stderr
    assert "defaults" in finished.stdout
    assert "session = ort.InferenceSession(" in finished.stdout
    assert (tied.parent / "p.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(memdiag("tune", tied, "--budget", "steady=1", "--format", "json").stdout)
    assert record["points"][0]["options"] == []
    assert memdiag("tune", tied, "--budget", "speed=1").returncode == 2
