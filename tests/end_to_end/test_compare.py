"""memdiag compare as a user starts it."""

import json
import os
import sys
from pathlib import Path

import pytest

from memdiag.comparison import runtimes
from tests.end_to_end.conftest import RunMemdiag, SampleModel
from tests.reports import profiles

QUICK = ("--repeats", "1", "--runs", "2")
OTHERS = [Path(path) for path in os.environ.get("MEMDIAG_RUNTIMES", "").split(os.pathsep) if path]


@pytest.mark.usefixtures("equal_latency")
def test_two_models_are_compared_and_reported(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    models = (sample_model("tied_if", 4), sample_model("plain_mlp", 4))
    finished = memdiag("compare", *models, *QUICK, "--out", "out")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("2 models at tokens 128: ")
    assert max(map(len, lines)) <= 80
    for model in models:
        assert any(line.startswith(model.name) for line in lines)
    names = {f"comparison.{end}" for end in ("html", "json", "md", "png")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


@pytest.mark.slow
def test_the_record_alone_is_json_and_the_report_markdown(
    memdiag: RunMemdiag, sample_model: SampleModel
) -> None:
    model = sample_model("plain_mlp", 1)
    words = ("compare", model, "--onnxruntime", sys.executable, *QUICK)
    record = json.loads(memdiag(*words, "--format", "json").stdout)
    assert record["schema"] == "memdiag.comparison/1"
    (column,) = record["columns"]
    assert column["label"] == runtimes.distribution_version()
    assert column["profile"]["schema"] == "memdiag.profile/1"


def test_saved_profiles_need_no_onnxruntime(
    memdiag: RunMemdiag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("before", "after"):
        profiles.tied_if().save(tmp_path / f"{name}.json")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    finished = memdiag("compare", "before.json", "after.json")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("2 saved profiles: ")


def test_with_nothing_measured_it_ends_with_an_error(memdiag: RunMemdiag, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_text("no model")
    finished = memdiag("compare", "a.onnx", "b.onnx", *QUICK)
    assert finished.returncode == 2
    assert "nothing could be measured" in finished.stdout
    assert "a.onnx failed" in finished.stdout


@pytest.mark.slow
@pytest.mark.skipif(not OTHERS, reason="MEMDIAG_RUNTIMES names no other runtimes")
@pytest.mark.timeout(300)
@pytest.mark.measures
def test_versions_differ_by_the_copies_that_they_keep(
    memdiag: RunMemdiag, sample_model: SampleModel
) -> None:
    versions = {str(runtimes.interpreter_version(path)): path for path in OTHERS}
    if "1.24.4" not in versions:
        pytest.skip("MEMDIAG_RUNTIMES has no onnxruntime 1.24.4")
    python = f"{versions['1.24.4']},{sys.executable}"
    words = ("--onnxruntime", python, "--repeats", "3", "--format", "json")
    finished = memdiag("compare", sample_model("tied_if", 48), *words)
    assert finished.returncode == 0, finished.stderr
    record = json.loads(finished.stdout)
    newest = runtimes.distribution_version()
    # 1.24.4 frees the transposed copy once it is packed; the newest frees nothing of a subgraph.
    (steady,) = [each for each in record["changes"] if each["metric"] == "steady"]
    assert (steady["from"], steady["to"]) == ("1.24.4", newest)
    assert abs(steady["bytes"] - 48_000_000) < 8_000_000
    assert "model.shared.weight" in steady["why"]
    (copy,) = record["copies"]
    assert (copy["kind"], copy["count"]) == ("transposed", 1)
    assert [column["largest_difference"] for column in record["columns"]] == [None, 0.0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.measures
def test_real_models_beside_themselves_do_not_differ(
    memdiag: RunMemdiag, real_models: dict[str, Path]
) -> None:
    # Times depend on what else the machine does.
    for name in ("minilm_int8", "light_squeezenet", "silero_vad"):
        model = real_models[name]
        finished = memdiag("compare", model, model, "--format", "json")
        changes = json.loads(finished.stdout)["changes"]
        assert [each for each in changes if each["metric"] not in ("load", "latency")] == []
