import re

import pytest

from memdiag.reports import markdown as md
from memdiag.reports.profile import REPORT
from tests.reports import profiles, tied_xray


def text(report: str) -> list[str]:
    return report.splitlines()


def test_the_headline_the_table_and_the_session_are_there() -> None:
    lines = text(REPORT.markdown(profiles.tied_if()))
    assert lines[0] == "## Memory profile: `tied_if.onnx`"
    assert lines[2].startswith(
        "**Peak 1.50 GiB above baseline (3.1 × the weights) in first\\_run, 98 % already"
    )
    assert "| &emsp;constant\\_fold | 900 ms |  | 1,563 |  | +500 | `ConstantFolding` |" in lines
    assert "| intra\\_op\\_num\\_threads | `2` |" in lines
    assert "| onnxruntime | `1.31.1` |" in lines


def test_every_row_of_a_table_has_the_same_number_of_cells() -> None:
    for profile in (profiles.tied_if(), profiles.hostile(), tied_xray.with_attribution()):
        cells: list[int] = []
        for line in [*text(REPORT.markdown(profile)), ""]:
            if line.startswith("|"):
                cells.append(line.replace(r"\|", "").count("|"))
            elif cells:
                assert len(set(cells)) == 1
                cells = []


def test_hostile_names_are_code_or_escaped() -> None:
    page = REPORT.markdown(profiles.hostile())
    assert page.count("onerror=alert(1)") >= 10
    outside = re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    assert "onerror=alert(1)" in outside  # the notes and the message, which are no code
    for tag in ("<details><summary>", "</summary>", "</details>"):
        outside = outside.replace(tag, "")
    assert re.findall(r"(?<!\\)[<`]", outside) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "`plain`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("", ""),
    ],
)
def test_code_is_fenced_by_more_than_it_holds(name: str, expected: str) -> None:
    assert md.code_span(name) == expected


def test_pipes_are_escaped_in_tables_only() -> None:
    assert md.code_span("a|b", in_table=True) == r"`a\|b`"
    assert md.code_span("a|b") == "`a|b`"


def test_nobody_is_mentioned() -> None:
    assert "@\u2060everyone" in md.escape("hello @everyone")


def test_the_copies_and_the_owners_are_tables_where_an_xray_was_taken() -> None:
    lines = text(REPORT.markdown(tied_xray.with_attribution()))
    assert "### Owners of the memory" in lines
    assert (
        "| &emsp;transposed (perm 1,0) | 1 | 500 MiB | anonymous | ConstantFolding · lm/Transpose |"
    ) in lines
    assert "| arena slack | 12 MiB | 0.7 % | free, kept by onnxruntime for later runs |" in lines
    single = [line for line in lines if "weights with a single copy" in line]
    assert single == [
        "- 13 weights with a single copy each: 8.0 MiB (original 6.0 MiB, freed 2.0 MiB)."
    ]
    assert not any("layer.0" in line for line in lines)
    assert "### Owners of the memory" not in text(REPORT.markdown(profiles.tied_if()))


def test_the_order_is_that_of_the_console() -> None:
    lines = text(REPORT.markdown(tied_xray.with_attribution()))
    order = ("**Peak", "**Result:**", "**What to do:**", "| phase", "### Owners of the memory",
             "| owner", "| weight", "### What moved memory", "### Runs")  # fmt: skip
    places = [next(i for i, line in enumerate(lines) if line.startswith(one)) for one in order]
    assert places == sorted(places)


def test_a_block_of_code_is_fenced_by_more_backticks_than_it_holds() -> None:
    assert md.code_block(["a", "  b"], "python") == "```python\na\n  b\n```"
    assert md.code_block(["````"], "").startswith("`````\n")
    assert md.code_block([], "python") == ""
