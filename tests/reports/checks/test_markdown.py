from memdiag.records.finding import CheckedModel
from memdiag.reports.checks.markdown import render
from tests.reports.checks.checks import check, finding


def test_a_table_holds_the_findings() -> None:
    text = render(check(finding()))
    assert "### `models/tied.onnx`" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| `shared")]
    assert row.count("|") == 6
    assert "64 MiB steady and 128 MiB at the peak, in constant\\_fold" in row
    assert "`gemm-transposed`, `overridable-weight`" in row


def test_a_name_cannot_break_out_of_its_cell() -> None:
    text = render(check(finding(message="<img src=x> | @team `x`\nnew line")))
    (row,) = [line for line in text.splitlines() if line.startswith("| `shared")]
    assert "<img" not in row.replace("\\<img", "")
    assert "@team" not in row


def test_a_model_that_could_not_be_read_is_named_with_the_reason() -> None:
    broken = CheckedModel(path="b.onnx", error="b.onnx: it is empty; export it again.")
    assert "b.onnx: it is empty; export it again." in render(check(models=(broken,)))


def test_names_in_notes_paths_and_reasons_stay_on_their_line() -> None:
    evil = "a\n## heading\x1b[2J\x00"
    models = (
        CheckedModel(path=evil, notes=(f"operators that are not known ({evil})",)),
        CheckedModel(path=evil, error=f"{evil}: it is empty."),
    )
    text = render(check(models=models))
    assert "\x1b" not in text
    assert "\x00" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Memory check"]


def test_fifty_findings_are_enough() -> None:
    text = render(check(*(finding(weights=(str(i),)) for i in range(60))))
    assert "and 10 more" in text
