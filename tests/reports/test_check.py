"""A check on a terminal and in Markdown."""

import io

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.dimension import Dimension, ModelInput
from memdiag.records.finding import Check, CheckedModel
from memdiag.reports.check import check_markdown, print_check_report
from tests.reports.checks import MIB, check, finding


def shown(result: Check, *, detail: Detail = Detail.ALL, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_check_report(result, console, detail=detail)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def test_a_finding_says_what_where_how_much_and_what_to_do() -> None:
    text = "\n".join(shown(check(finding()), width=200))
    assert "\nmodels/tied.onnx: shared.weight is read as it is by embed/Gather" in text
    assert "[shared-weight-transposed]" in text
    assert "  Folding copies it once." in text
    assert "costs 64 MiB steady and 128 MiB at the peak, in constant_fold · predicted" in text
    assert "remedy: gemm-transposed, overridable-weight" in text
    assert "memdiag explain shared-weight-transposed" in text


def test_inputs_are_named_with_the_sizes_that_are_assumed() -> None:
    model = CheckedModel(
        path="m.onnx",
        inputs=(
            ModelInput(name="ids", dtype="int64", shape=("batch", "?")),
            ModelInput(name="image", dtype="float", shape=None),
        ),
        dimensions=(
            Dimension(name="batch", size=4, role="batch", source="given", reason="given"),
            Dimension(name="ids:1", size=128, role="sequence", source="chosen", reason=""),
        ),
    )
    lines = shown(msgspec.structs.replace(check(), models=(model,)), width=200)
    assert lines[2:] == [
        "m.onnx: inputs ids: int64[batch, ?], image: float of unknown rank",
        "m.onnx: free dimensions batch=4 (given)",
        "m.onnx: free dimensions sequence=128 (assumed; --dim NAME=N sets others)",
    ]
    without = msgspec.structs.replace(model, inputs=(), dimensions=())
    assert len(shown(msgspec.structs.replace(check(), models=(without,)))) < len(lines)


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
    found = [finding(name=name, weights=(f"w{i}",)) for i, name in enumerate(rules)]
    lines = shown(check(*found), width=200)
    assert [line for line in lines if "memdiag explain" in line] == hints


def test_rules_of_several_models_are_named_in_one_line() -> None:
    found = (finding(model="a.onnx"), finding(model="b.onnx", name="arena-growth"))
    lines = shown(check(*found), width=200)
    assert [line for line in lines if "memdiag explain" in line] == [
        "explanation: memdiag explain shared-weight-transposed · memdiag explain arena-growth"
    ]


LEADS_ON = " memdiag fix tries the remedies, options of the session and optimizers."


def test_the_first_line_is_the_answer() -> None:
    found = "1 finding, up to 64 MiB avoidable at steady state, in 310 ms, for onnxruntime 1.31.1"
    answer = f"{found}.{LEADS_ON}"
    for detail in Detail:
        assert shown(check(finding()), detail=detail, width=300)[0] == answer


def test_usually_the_costliest_findings_are_printed_without_details() -> None:
    found = [
        finding(weights=(f"w{i}",), message=f"w{i} is copied.", bytes=i, peak_bytes=0)
        for i in range(9)
    ]
    lines = shown(check(*found), detail=Detail.USUAL)
    text = "\n".join(lines)
    assert [f"w{i} is copied." in text for i in range(9)] == [False] * 4 + [True] * 5
    assert "With -v: 4 more findings, details." in text
    assert "Folding copies it once." not in text
    assert len(lines) <= MAX_LINES
    (quiet,) = [line for line in shown(check(*found), detail=Detail.ANSWER) if "copied" in line]
    assert "w8 is copied." in quiet


@pytest.mark.parametrize(
    ("remedies", "start", "end"),
    [
        ([(), ("a",)], "2 findings, up to 64 MiB", "one of the 2 findings (64 MiB)."),
        ([()], "1 finding, in", "the finding (64 MiB)."),
        ([(), ()], "2 findings, in", "the 2 findings (128 MiB)."),
        ([("a",), ("b",)], "2 findings, up to 128 MiB", ""),
    ],
)
def test_findings_without_a_known_remedy_are_counted(
    remedies: list[tuple[str, ...]], start: str, end: str
) -> None:
    answer, *_ = shown(
        check(*(finding(remedies=each) for each in remedies)), detail=Detail.ANSWER, width=300
    )
    assert answer.startswith(start)
    advice = "; memdiag fix tries options of the session as well."
    sentence = (
        f". No rewrite is known for {end.removesuffix('.')}{advice}" if end else f".{LEADS_ON}"
    )
    assert answer.partition("for onnxruntime 1.31.1")[2] == sentence


def test_clean_models_are_said_to_be_clean() -> None:
    assert shown(check(), width=200) == [
        "no findings, in 310 ms, for onnxruntime 1.31.1. memdiag fix tries options of the"
        " session and optimizers."
    ]


BROKEN = CheckedModel(path="models/cut.onnx", error="models/cut.onnx: the file ends too early.")


def test_models_that_could_not_be_read_are_counted_apart() -> None:
    fine = check().models
    assert shown(check(models=(*fine, BROKEN)), detail=Detail.ANSWER) == [
        "no findings, in 310 ms, 1 model could not be read, for onnxruntime 1.31.1"
    ]
    answer, *_ = shown(
        check(finding(), models=(*fine, BROKEN, BROKEN)), detail=Detail.ANSWER, width=200
    )
    assert answer.endswith("in 310 ms, 2 models could not be read, for onnxruntime 1.31.1")


def test_where_no_model_could_be_read_nothing_is_said_of_findings() -> None:
    assert shown(check(models=(BROKEN,))) == ["1 model could not be read, for onnxruntime 1.31.1"]


def test_80_columns_are_enough() -> None:
    assert max(map(len, shown(check(finding())))) <= 80


@pytest.mark.parametrize("count", [5, 6])
def test_of_many_findings_of_a_rule_the_first_are_shown(count: int) -> None:
    found = [finding(weights=(f"w{i}",), message=f"w{i} is copied.") for i in range(count)]
    text = "\n".join(shown(check(*found)))
    assert ("w5 is copied." in text) is False
    assert ("and 1 more of shared-weight-transposed, 64 MiB together" in text) is (count == 6)


def test_notes_and_markup_show_as_text() -> None:
    model = CheckedModel(path="m.onnx", notes=("shapes of [bold]x[/] are unknown",))
    text = "\n".join(shown(check(models=(model,))))
    assert "m.onnx: note: shapes of [bold]x[/] are unknown" in text


def test_a_name_cannot_move_the_cursor() -> None:
    text = "\n".join(shown(check(finding(message="weight \x1b[2J\r is copied"))))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_refuted_findings_do_not_count() -> None:
    refuted = finding(evidence="refuted", measured_bytes=0)
    lines = shown(check(refuted, finding(weights=("b",), bytes=MIB)), width=300)
    assert any("refuted: the X-ray found no such copy" in line for line in lines)
    assert lines[0].startswith("1 finding, up to 1.0 MiB avoidable at steady state, 1 more refuted")


def test_a_list_has_the_findings() -> None:
    text = check_markdown(check(finding()))
    assert "### `models/tied.onnx`" in text
    (row,) = [line for line in text.splitlines() if line.startswith("- `shared")]
    assert "64 MiB steady and 128 MiB at the peak, in constant\\_fold" in row
    assert "remedy: gemm-transposed, overridable-weight*" in row


def test_a_name_cannot_break_out_of_its_line() -> None:
    text = check_markdown(check(finding(message="<img src=x> | @team `x`\nnew line")))
    (row,) = [line for line in text.splitlines() if line.startswith("- `shared")]
    assert "<img" not in row.replace("\\<img", "")
    assert "@team" not in row


def test_a_model_that_could_not_be_read_is_named_with_the_reason() -> None:
    broken = CheckedModel(path="b.onnx", error="b.onnx: it is empty; export it again.")
    assert "b.onnx: it is empty; export it again." in check_markdown(check(models=(broken,)))


def test_names_in_notes_paths_and_reasons_stay_on_their_line() -> None:
    evil = "a\n## heading\x1b[2J\x00"
    models = (
        CheckedModel(path=evil, notes=(f"operators that are not known ({evil})",)),
        CheckedModel(path=evil, error=f"{evil}: it is empty."),
    )
    text = check_markdown(check(models=models))
    assert "\x1b" not in text
    assert "\x00" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Memory check"]


def test_fifty_findings_are_enough() -> None:
    text = check_markdown(check(*(finding(weights=(str(i),)) for i in range(60))))
    assert "and 10 more" in text
