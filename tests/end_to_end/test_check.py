"""memdiag check, and explain as a user starts them."""

import json
from pathlib import Path

from memdiag.reports.rule_pages import all_detectors
from tests.end_to_end.conftest import RunMemdiag, SampleModel


def test_findings_are_printed_and_end_with_1(
    memdiag: RunMemdiag, sample_model: SampleModel
) -> None:
    finished = memdiag("check", sample_model("tied_if"))
    assert finished.returncode == 1
    assert "[shared-weight-transposed]" in finished.stdout.replace("\n", "")
    assert finished.stderr == ""
    assert max(map(len, finished.stdout.splitlines())) <= 80


def test_a_finding_that_costs_time_only_does_not_set_the_exit_code(
    memdiag: RunMemdiag, sample_model: SampleModel
) -> None:
    slow = sample_model("denormal_conv")
    finished = memdiag("check", slow)
    assert finished.returncode == 0, finished.stderr
    assert "[denormal-weights]" in finished.stdout
    text = " ".join(memdiag("check", slow, "-v").stdout.split())
    assert "This costs time on some processors, and no memory." in text
    both = memdiag("check", slow, sample_model("tied_if"))
    assert both.returncode == 1
    assert "exits with 0" in " ".join(memdiag("explain", "denormal-weights").stdout.split())


def test_a_clean_model_ends_with_0(memdiag: RunMemdiag, sample_model: SampleModel) -> None:
    finished = memdiag("check", sample_model("plain_mlp"))
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.startswith("no findings")


def test_a_broken_model_ends_with_2_and_the_others_are_examined(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(sample_model("tied_if").read_bytes()[:5000])
    finished = memdiag("check", broken, sample_model("tied_if"))
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"memdiag: {broken}: ")
    assert finished.stderr.count("\n") == 1
    assert "shared-weight-transposed" in finished.stdout


def test_json_is_the_record(memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path) -> None:
    words = ("--format", "json", "--for-onnxruntime", "1.24.4", "--output", "c.json")
    record = json.loads(memdiag("check", sample_model("tied_if"), *words).stdout)
    assert (record["schema"], record["onnxruntime"]) == ("memdiag.check/1", "1.24.4")
    (found,) = [one for one in record["findings"] if one["rule"] == "MD103"]
    fields = {"rule", "name", "weights", "nodes", "graph", "bytes", "evidence", "remedies"}
    assert fields <= found.keys()
    assert json.loads((tmp_path / "c.json").read_text()) == record


def test_sarif_and_markdown(memdiag: RunMemdiag, sample_model: SampleModel) -> None:
    path = sample_model("tied_if")
    log = json.loads(memdiag("check", path, "--format", "sarif").stdout)
    assert "MD103" in {result["ruleId"] for result in log["runs"][0]["results"]}
    text = memdiag("check", path, "--format", "markdown").stdout
    assert text.startswith("## Memory check\n")
    assert "`shared-weight-transposed`" in text


def test_settings_come_from_pyproject_and_options_win(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    path = sample_model("tied_if")
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.memdiag]\nselect = ["MD103"]\nfor-onnxruntime = "1.24.4"\n')
    record = json.loads(memdiag("check", path, "--format", "json").stdout)
    assert record["onnxruntime"] == "1.24.4"
    assert {one["rule"] for one in record["findings"]} == {"MD103"}
    record = json.loads(memdiag("check", path, "--format", "json", "--ignore", "MD103").stdout)
    assert record["findings"] == []
    settings.write_text("[tool.memdiag]\nselct = []\n")
    finished = memdiag("check", path)
    assert finished.returncode == 2
    assert "selct" in finished.stderr


def test_rules_are_listed_and_explained(memdiag: RunMemdiag) -> None:
    listed = memdiag("explain").stdout
    for each in all_detectors():
        assert f"{each.rule.code}  {each.rule.name} " in listed
    explained = memdiag("explain", "MD103")
    assert explained.returncode == 0
    assert explained.stdout.startswith("# shared-weight-transposed (MD103)\n")
    for name in ("arena-off", "externalize", "onnxruntime-basic", "rewrite"):
        assert memdiag("explain", name).stdout.startswith(f"# {name}\n")
    both = memdiag("explain", "rewrite + arena-off").stdout
    assert both.index("# rewrite") < both.index("# arena-off")
    saved = memdiag("explain", "save-prepacked").stdout
    assert "save_external_prepacked_constant_initializers" in saved
