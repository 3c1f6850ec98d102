"""``memdiag profile`` with a budget or a baseline, for people and for GitHub Actions."""

import json
from pathlib import Path

import pytest

from memdiag.records.codec import decode
from memdiag.records.profile import Profile
from tests.end_to_end.conftest import RunMemdiag, SampleModel

pytestmark = pytest.mark.usefixtures("measured_once", "records_only")


@pytest.fixture
def model(tmp_path: Path, sample_model: SampleModel) -> Path:
    """``model.onnx`` in the folder where memdiag is run."""
    path = tmp_path / "model.onnx"
    path.symlink_to(sample_model("tied_if", 1.0))
    return path


@pytest.mark.usefixtures("model")
def test_a_budget_that_holds_ends_with_0_and_a_breach_with_1(memdiag: RunMemdiag) -> None:
    words = ("profile", "model.onnx")
    holds = memdiag(*words, "--budget=peak=100MB,copies=3")
    assert holds.returncode == 0, holds.stderr
    assert "memory budget: model.onnx: within its budget, at tokens 128\n" in holds.stdout
    breach = memdiag(*words, "--budget=peak=1MB,copies=2", "-q")
    assert breach.returncode == 1
    *_, last = breach.stdout.splitlines()
    assert last.startswith("memory budget: model.onnx: ")
    assert "over its budget" in last


@pytest.mark.usefixtures("model")
def test_budgets_are_measured_with_the_threshold_pinned(memdiag: RunMemdiag) -> None:
    def environment(*words: str) -> dict[str, str]:
        options = ("--xray=none", "--format=json")
        done = memdiag("profile", "model.onnx", *words, *options)
        return decode(done.stdout.encode(), Profile).session.environment

    assert environment("--budget=peak=1GB") == {"MALLOC_MMAP_THRESHOLD_": "131072"}
    assert environment() == {}


@pytest.mark.usefixtures("model")
def test_a_baseline_is_written_and_compared_with(memdiag: RunMemdiag, tmp_path: Path) -> None:
    words = ("profile", "model.onnx", "--baseline=kept.json")
    missing = memdiag(*words)
    assert missing.returncode == 2
    assert "kept.json: no such file. Create it with --update-baseline" in missing.stderr
    created = memdiag(*words, "--update-baseline").stdout
    assert "memory baseline: model.onnx: created, at tokens 128\n" in created
    assert "memory budget" not in created
    again = memdiag(*words)
    assert again.returncode == 0, again.stdout
    assert "memory budget: model.onnx: within its baseline, at tokens 128\n" in again.stdout
    kept = json.loads((tmp_path / "kept.json").read_text())
    (taken,) = kept["machines"].values()
    taken["figures"] = {name: value // 4 for name, value in taken["figures"].items()}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    grown = memdiag(*words, "--format=json")
    assert grown.returncode == 1
    assert grown.stderr.startswith("memory baseline: model.onnx: ")
    assert json.loads(grown.stdout)["schema"] == "memdiag.profile/1"


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_baseline_of_another_machine_is_no_pass(memdiag: RunMemdiag, tmp_path: Path) -> None:
    words = ("profile", "model.onnx", "--baseline=kept.json")
    memdiag(*words, "--update-baseline")
    kept = json.loads((tmp_path / "kept.json").read_text())
    kept["machines"] = {"Darwin arm64": next(iter(kept["machines"].values()))}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    alone = memdiag(*words)
    assert alone.returncode == 2
    assert "model.onnx: its baseline has no entry for this class of machine" in alone.stderr
    beside = memdiag(*words, "--budget=peak=1GB")
    assert beside.returncode == 0
    assert "  its baseline has no entry for this class of machine" in beside.stdout


@pytest.mark.usefixtures("model")
def test_github_gets_annotations_and_a_summary(memdiag: RunMemdiag, tmp_path: Path) -> None:
    words = ("profile", "model.onnx", "--budget=peak=1MB", "--format=github")
    (tmp_path / "summary").write_text("before\n")
    finished = memdiag(*words, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert finished.returncode == 1
    first, *rest = finished.stdout.splitlines()
    assert first.startswith("::error file=model.onnx,title=memory budget::model.onnx: ")
    assert all(line.startswith("::warning file=model.onnx,title=") for line in rest)
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("before\n## Memory budget of `model.onnx`\n")
    assert "## Memory profile: `model.onnx`" in summary
    nowhere = memdiag(*words, GITHUB_STEP_SUMMARY=str(tmp_path / "no" / "summary"))
    assert nowhere.returncode == 2
    assert "summary: cannot be appended to (" in nowhere.stderr


@pytest.mark.usefixtures("model")
def test_a_pull_request_gets_markdown(memdiag: RunMemdiag) -> None:
    words = ("profile", "model.onnx", "--budget=peak=1GB", "--format=markdown")
    finished = memdiag(*words, GITHUB_STEP_SUMMARY="")
    assert finished.returncode == 0
    assert finished.stdout.startswith("## Memory budget of `model.onnx`\n\n**Within its budget.**")


def test_a_model_that_fails_is_no_breach(memdiag: RunMemdiag, model: Path) -> None:
    words = ("profile", model, "--budget=peak=1B", "--provider=Nope", "--format=github")
    finished = memdiag(*words, GITHUB_STEP_SUMMARY="")
    assert finished.returncode == 2
    assert finished.stdout.startswith("::error ")
    assert "title=memory profile::Failed in start at" in finished.stdout
