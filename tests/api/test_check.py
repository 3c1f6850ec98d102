import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import memdiag
from memdiag.api import check as module
from memdiag.api.check import RuleSelection, check_models, with_peak_shares
from memdiag.errors import ModelError, UsageError
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.rules import model_detectors
from tests.api.small_models import save_model
from tests.reports.checks import finding

SampleModel = Callable[..., Path]
GRAPH = "g (float[2] x) => (float[2] y) { y = Abs(x) }"


def codes(selection: RuleSelection) -> list[str]:
    return [each.rule.code for each in selection.chosen]


def test_rules_are_chosen_by_name_code_and_beginning() -> None:
    every = [each.rule.code for each in model_detectors()]
    assert codes(RuleSelection()) == every
    assert codes(RuleSelection(select=("shared-weight-transposed",))) == ["MD103"]
    assert codes(RuleSelection(select=("md103",))) == ["MD103"]
    ones = [code for code in every if code.startswith("MD1")]
    assert codes(RuleSelection(select=("MD1",))) == ones
    assert codes(RuleSelection(select=("MD1",), ignore=("MD103",))) == [
        code for code in ones if code != "MD103"
    ]
    assert codes(RuleSelection(ignore=("MD",))) == []


def test_a_dimension_that_no_model_has_is_refused(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    free = sample_model("tied_if")  # with the free dimension sequence
    fixed = save_model(tmp_path / "fixed.onnx", GRAPH)
    with pytest.raises(UsageError, match=r"unknown dimension 'seqence'.* Did you mean s"):
        memdiag.check(free, dims={"seqence": 4})
    with pytest.raises(UsageError, match="unknown dimension 'seqence'"):
        check_models([free, fixed], selection=RuleSelection(), dims={"seqence": 4})
    # One of several models is enough, for each of several dimensions.
    other = save_model(tmp_path / "other.onnx", GRAPH.replace("2", "rows"))
    sizes = {"sequence": 4, "rows": 3}
    found = check_models([free, fixed, other], selection=RuleSelection(), dims=sizes)
    assert [each.error for each in found.models] == [None, None, None]
    with pytest.raises(UsageError, match="unknown dimension 'seqence'"):
        memdiag.fix(fixed, tmp_path / "out.onnx", dims={"seqence": 4})


@pytest.mark.parametrize("name", ["no-such-rule", "MD999", ""])
def test_a_rule_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="unknown rule"):
        RuleSelection(select=(name,))


def test_small_costs_are_left_out_but_not_what_costs_no_bytes() -> None:
    selection = RuleSelection(min_bytes=1000)
    assert not selection.keeps(finding(bytes=10, peak_bytes=999))
    assert selection.keeps(finding(bytes=10, peak_bytes=1000))
    assert selection.keeps(finding(bytes=0, peak_bytes=0))


def test_the_tied_weight_is_found_in_every_way_it_is_asked_for(sample_model: SampleModel) -> None:
    path = sample_model("tied_if")
    findings = memdiag.check(path, select=["MD103"], min_bytes=0)
    assert [one.rule for one in findings] == ["MD103"]
    (one,) = findings
    assert one.bytes > 0
    assert one.evidence == "predicted"
    assert memdiag.check(path, ignore=["MD"]) == ()
    assert memdiag.check(path, select=["MD103"], min_bytes=10 * one.peak_bytes) == ()


def test_what_is_predicted_depends_on_the_version(sample_model: SampleModel) -> None:
    path = sample_model("tied_if")
    newest, older = (
        sum(one.bytes for one in memdiag.check(path, for_onnxruntime=version, select=["MD103"]))
        for version in ("1.31.1", "1.24.4")
    )
    assert newest > older > 0


@pytest.mark.parametrize(("version", "notes"), [("1.24.4", 0), ("99.0.0", 1)])
def test_one_note_names_a_release_that_was_never_measured(
    sample_model: SampleModel, version: str, notes: int
) -> None:
    checked = check_models(
        [sample_model("tied_if")], selection=RuleSelection(), for_onnxruntime=version
    ).models[0]
    assert sum(f"onnxruntime {version} is newer than" in note for note in checked.notes) == notes


def test_one_broken_model_of_several_does_not_hide_the_others(
    tmp_path: Path, sample_model: SampleModel
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    good = sample_model("tied_if")
    seen: list[Path] = []
    result = check_models(
        [broken, good], selection=RuleSelection(), for_onnxruntime="1.31.1", on_model=seen.append
    )
    assert seen == [broken, good]
    assert [one.path for one in result.models] == [str(broken), str(good)]
    assert "not an ONNX model" in (result.models[0].error or "")
    assert result.findings
    with pytest.raises(ModelError):
        memdiag.check(broken)


def test_a_file_that_is_cut_meanwhile_is_no_defect_of_a_rule(
    sample_model: SampleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    whole = sample_model("tied_if").read_bytes()
    path.write_bytes(whole)
    (denormals,) = [each for each in model_detectors() if each.rule.code == "MD501"]

    def cut(ctx: AnalysisContext) -> Iterator[Finding]:
        os.truncate(path, len(whole) // 2)
        yield from denormals.detect(ctx)

    monkeypatch.setattr(
        "memdiag.api.check.model_detectors", lambda: (denormals._replace(detect=cut),)
    )
    checked = check_models([path], selection=RuleSelection()).models[0]
    assert "became shorter while it was read" in (checked.error or "")
    assert checked.notes == ()


def test_a_rule_that_fails_does_not_lose_the_others(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(examined: object) -> Iterator[Finding]:
        raise KeyError("a defect")

    ours = tuple(
        each._replace(detect=broken) if each.rule.code == "MD101" else each
        for each in model_detectors()
    )
    monkeypatch.setattr("memdiag.api.check.model_detectors", lambda: ours)
    result = check_models([sample_model("tied_if")], selection=RuleSelection(min_bytes=0))
    assert "MD103" in {one.rule for one in result.findings}
    (note,) = [one for one in result.models[0].notes if "failed" in one]
    assert "identical-weights" in note
    assert "KeyError: 'a defect'" in note


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collection_of_cycles_is_as_before_a_check(
    enabled: bool, sample_model: SampleModel, tmp_path: Path
) -> None:
    gc.enable() if enabled else gc.disable()
    try:
        memdiag.check(sample_model("tied_if"))
        assert gc.isenabled() == enabled
        with pytest.raises(ModelError):
            memdiag.check(tmp_path / "missing.onnx")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_findings_state_their_share_of_the_estimated_peak(sample_model: SampleModel) -> None:
    path = sample_model("tied_if")
    (one,) = memdiag.check(path, select=["MD103"])
    peak_bytes = memdiag.estimate(path).point.peak_bytes
    assert one.peak_bytes > 0
    assert one.peak_share == pytest.approx(one.peak_bytes / peak_bytes, abs=1e-4)


def test_a_share_is_of_what_is_in_memory_at_the_peak() -> None:
    def share(estimated: int | None, **sizes: int) -> float | None:
        (found,) = with_peak_shares([finding(**sizes)], estimated)
        return found.peak_share

    assert share(400, bytes=100, peak_bytes=200) == 0.5
    assert share(400, bytes=0, peak_bytes=0, run_bytes=100) == 0.25  # activations
    assert share(400, bytes=100, peak_bytes=500) == 1.0
    assert share(400, bytes=100, peak_bytes=0) is None
    assert share(None, bytes=100, peak_bytes=200) is None


def test_an_estimate_that_fails_is_a_note(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            raise KeyError("x")

    monkeypatch.setattr(module, "SessionEstimate", Broken)
    path = sample_model("tied_if")
    found = check_models([path], selection=RuleSelection(select=("MD103",)))
    assert [each.peak_share for each in found.findings] == [None]
    assert found.models[0].notes[-1] == "the peak could not be estimated (KeyError: 'x')"
    # Without a finding that costs memory at the peak there is nothing to compare.
    nothing = check_models([path], selection=RuleSelection(ignore=("MD",)))
    assert nothing.models[0].notes == ()
