"""A check on a terminal and in Markdown."""

from functools import partial

import pytest

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.dimension import Dimension, ModelInput
from memdiag.records.finding import Check, CheckedModel
from memdiag.reports.check import check_markdown, print_check_report
from tests.reports.checks import MIB, check, finding
from tests.reports.rendering import APPROVED, assert_sentences_approved, captured
from tests.snapshots import assert_approved


def printed(result: Check, *, detail: Detail = Detail.ALL, width: int = 80) -> str:
    return captured(partial(print_check_report, result, detail=detail), width=width)


MODEL = CheckedModel(
    path="m.onnx",
    inputs=(
        ModelInput(name="ids", dtype="int64", shape=("batch", "?")),
        ModelInput(name="image", dtype="float", shape=None),
    ),
    dimensions=(
        Dimension(name="batch", size=4, role="batch", source="given", reason="given"),
        Dimension(name="ids:1", size=128, role="sequence", source="chosen", reason=""),
    ),
    notes=("shapes of [bold]x[/] are unknown",),
)
BROKEN = CheckedModel(path="models/cut.onnx", error="models/cut.onnx: the file ends too early.")
FINE = check().models


def copies(*sizes: int) -> list[str]:
    """Return the usual lines of a check with findings of these sizes, called w0, w1 and so on."""
    findings = [
        finding(weights=(f"w{i}",), message=f"w{i} is copied.", bytes=size, peak_bytes=0)
        for i, size in enumerate(sizes)
    ]
    return printed(check(*findings), detail=Detail.USUAL).splitlines()


def test_a_check_shows_what_was_approved() -> None:
    refuted = finding(name="original-kept", evidence="refuted", measured_bytes=0)
    others = finding(model="a.onnx", name="arena-growth", weights=("b",), bytes=MIB, remedies=())
    result = check(finding(), refuted, others, models=(*FINE, MODEL, BROKEN))
    texts = [f"===== {detail.name}\n{printed(result, detail=detail)}" for detail in Detail]
    assert_approved("\n".join(texts), APPROVED / "check.txt")
    assert max(map(len, printed(result).splitlines())) <= 80
    assert_approved(check_markdown(result), APPROVED / "check.md")


def without_remedies(*remedies: tuple[str, ...]) -> Check:
    return check(*(finding(remedies=names) for names in remedies))


ANSWERS = {
    "one finding": check(finding()),
    "two findings": without_remedies(("a",), ("b",)),
    "one of two has no remedy": without_remedies((), ("a",)),
    "no remedy": without_remedies(()),
    "two without a remedy": without_remedies((), ()),
    "one of two was refuted": check(
        finding(evidence="refuted", measured_bytes=0), finding(weights=("b",), bytes=MIB)
    ),
    "no findings": check(),
    "no findings, one was not read": check(models=(*FINE, BROKEN)),
    "one finding, two were not read": check(finding(), models=(*FINE, BROKEN, BROKEN)),
    "none was read": check(models=(BROKEN,)),
}


def test_the_first_line_is_the_answer() -> None:
    texts = {
        case: printed(result, detail=Detail.ANSWER, width=300).splitlines()[:1]
        for case, result in ANSWERS.items()
    }
    assert_sentences_approved("check_answers", texts)


@pytest.mark.parametrize(
    ("rules", "hints"),
    [
        ([], []),
        (["original-kept"], ["explanation: memdiag explain original-kept"]),
        # Each rule once, in the order of the findings, also behind findings that are left out.
        (
            ["original-kept", *["arena-growth"] * 9, "original-kept", "folding-peak"],
            [
                "explanation: memdiag explain original-kept · memdiag explain arena-growth · "
                "memdiag explain folding-peak"
            ],
        ),
    ],
)
def test_a_line_names_the_explanation_of_every_rule_found(
    rules: list[str], hints: list[str]
) -> None:
    findings = [finding(name=name, weights=(f"w{i}",)) for i, name in enumerate(rules)]
    lines = printed(check(*findings), width=200).splitlines()
    assert [line for line in lines if "memdiag explain" in line] == hints


def test_usually_the_costliest_findings_are_printed_without_details() -> None:
    lines = copies(*range(9))
    text = "\n".join(lines)
    assert [f"w{i} is copied." in text for i in range(9)] == [False] * 4 + [True] * 5
    assert "With -v: 4 more findings, details." in text
    assert "Folding copies it once." not in text
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("count", [5, 6])
def test_of_many_findings_of_a_rule_the_first_are_shown(count: int) -> None:
    findings = [finding(weights=(f"w{i}",), message=f"w{i} is copied.") for i in range(count)]
    text = printed(check(*findings))
    assert "w4 is copied." in text
    assert "w5 is copied." not in text
    assert ("and 1 more of shared-weight-transposed, 64 MiB together" in text) is (count == 6)


def test_fifty_findings_are_enough_in_markdown() -> None:
    text = check_markdown(check(*(finding(weights=(str(i),)) for i in range(60))))
    assert "and 10 more" in text
