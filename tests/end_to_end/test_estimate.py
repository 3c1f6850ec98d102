"""`memdiag estimate` as users start it: outputs, exit codes, files."""

import json
from pathlib import Path

import pytest

from memdiag.detail import MAX_LINES
from memdiag.records.codec import decode
from memdiag.records.estimate import Estimate
from tests.end_to_end.conftest import RunMemdiag, SampleModel

RELEASE = ("--for-onnxruntime", "1.32.0")


@pytest.fixture
def model(tmp_path: Path, sample_model: SampleModel) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_model("tied_if").read_bytes())
    return path


def test_the_answer_comes_first(memdiag: RunMemdiag, model: Path) -> None:
    done = memdiag("estimate", model, *RELEASE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model.onnx needs ")
    assert "under onnxruntime 1.32.0: predicted, not measured" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    quiet = memdiag("estimate", model, *RELEASE, "--quiet")
    assert done.stdout.startswith(quiet.stdout.splitlines()[0])
    assert quiet.stdout.count("\n") < done.stdout.count("\n") <= MAX_LINES


def test_each_format_is_printed_alone(memdiag: RunMemdiag, model: Path) -> None:
    def printed(format: str) -> str:
        done = memdiag("estimate", model, *RELEASE, "--dim", "tokens=16..64", "--format", format)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    record = decode(printed("json").encode(), Estimate)
    assert [point.dims["tokens"] for point in record.points] == [16, 32, 64]
    lines = [line for line in printed("k8s").splitlines() if not line.startswith("#")]
    assert lines[0] == "resources:"
    total = record.largest.high_bytes + record.beside_bytes(record.largest)
    assert lines[-1] == f"    memory: {-(-total // (1 << 20))}Mi"
    assert printed("markdown").startswith("## Estimated memory: `model.onnx`")


def test_reports_are_written_and_rendered_again(
    memdiag: RunMemdiag, model: Path, tmp_path: Path
) -> None:
    done = memdiag(
        "estimate", model, *RELEASE, "--dim", "tokens=1,8", "--out", "out", "--fit", "1GB"
    )
    assert done.returncode == 0
    names = {"estimate.json", "estimate.png", "report.html", "report.md"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    again = memdiag("report", "out", "--format", "console")
    assert again.returncode == 0
    assert again.stdout.splitlines()[:3] == done.stdout.splitlines()[:3]
    assert (
        json.loads((tmp_path / "out/estimate.json").read_text())["schema"] == "memdiag.estimate/1"
    )
