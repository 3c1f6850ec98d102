"""A fix as files: the page with all points, Markdown, the Pareto front and the record."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.errors import UsageError
from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports.fix import REPORT, draw
from memdiag.reports.fix.chart import pareto_points
from tests.reports import fix_records
from tests.reports.test_profile_page import Page, embedded

FORMATS = ("html", "json", "markdown", "png", "svg")


@pytest.mark.parametrize("build", fix_records.ALL, ids=lambda build: build.__name__)
def test_every_fix_becomes_every_file_the_same_each_time(
    build: Callable[[], Fix], tmp_path: Path
) -> None:
    written = REPORT.write(build(), tmp_path / "out", FORMATS)
    assert [path.name for path in written] == [
        "fix.html", "fix.json", "fix.md", "fix.png", "fix.svg",
    ]  # fmt: skip
    assert codec.load(written[1], Fix) == build()
    # Pictures take longest: once is enough.
    again = FORMATS if build is fix_records.verified else ("html", "json", "markdown")
    for format, path in zip(FORMATS, written, strict=True):
        assert format not in again or REPORT.render(build(), format) == path.read_bytes()


def test_a_format_that_fixes_do_not_have_is_refused_by_name() -> None:
    assert REPORT.formats() == FORMATS
    with pytest.raises(
        UsageError, match=r"'treemap' is not a report format of a fix\. Choose from"
    ):
        REPORT.render(fix_records.verified(), "treemap")


def words(fix: Fix) -> str:
    return " ".join(Page(REPORT.render(fix, "html")).text.split())


def test_the_page_says_what_was_won_how_to_set_it_up_and_what_was_tried() -> None:
    page = words(fix_records.fix())
    for message in (
        "Peak 200 MiB → 150 MiB (0.75 ×), steady 150 MiB → 75 MiB (0.50 ×)",
        "disable-prepacking + mmap-threshold; outputs equal, bit by bit.",
        "session.disable_prepacking=1.",
        "Create the session as the program below does.",
        "import onnxruntime as ort",
        "6 combinations measured, 20 sessions in 12 s.",
        "it does not run:",
    ):
        assert message in page


def test_the_page_of_a_rewritten_model_has_exact_bytes_on_hover() -> None:
    page = Page(REPORT.render(fix_records.verified(), "html"))
    text = " ".join(page.text.split())
    for message in (
        "Peak 1.55 GiB → 559 MiB (0.35 ×), steady 1.46 GiB → 540 MiB (0.36 ×)",
        "good-one; outputs differ by at most 2.4e-06 of the largest value",
        "Keep dir/m.onnx: 500 MiB of the weights are still there.",
        "keep them together, because 500 MiB of the weights are in dir/m.onnx.",
        "Verified on 1.31.1; 1.20.0 and newer can load it (by its versions of the IR and"
        " operators).",
        "memdiag fix dir/m.onnx",
    ):
        assert message in text
    titles = {attrs.get("title") for _, attrs in page.elements}
    assert {f"{1583 << 20:,} bytes", f"{559 << 20:,} bytes", f"{540 << 20:,} bytes"} <= titles
    assert codec.decode(embedded(page, "fix").encode(), Fix) == fix_records.verified()


def test_the_points_can_be_sorted_by_number_and_the_chosen_one_is_marked() -> None:
    page = Page(REPORT.render(fix_records.fix(), "html"))
    rows = [attrs for tag, attrs in page.elements if tag == "tr" and attrs.get("class") == "peak"]
    assert len(rows) == 1
    assert page.text.count("on the front") == 3
    values = [attrs["data-value"] for tag, attrs in page.elements if "data-value" in attrs]
    assert str(75 << 20) in values
    assert values.count("-1") == 5 + 1 + 1  # a point that does not run; two that were not compared


@pytest.mark.parametrize("build", [fix_records.nothing_helps, fix_records.unmeasured])
def test_a_fix_without_a_change_has_no_empty_table(build: Callable[[], Fix]) -> None:
    assert "Before and after" not in words(build())
    assert "| figure |" not in REPORT.markdown(build())


def test_what_is_drawn_is_what_can_be_used() -> None:
    drawn = [(one.number, one.label, one.is_chosen) for one in pareto_points(fix_records.fix())]
    assert drawn == [
        (1, "optimization-off", False),
        (2, "disable-prepacking + mmap-threshold", True),
        (3, "disable-prepacking", False),
        (0, "defaults", False),
    ]


def test_hostile_names_are_text_in_every_file() -> None:
    evil = fix_records.hostile(fix_records.fix())
    page = Page(REPORT.render(evil, "html"))
    assert page.links == {"data:,", "#main"}
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert page.text.count("</script><img src=x onerror=alert(1)>[red]x[/red]") > 10
    picture = REPORT.render(evil, "svg").decode()
    assert "optimization-off\\x1b[31m" in picture
    assert "<img" not in picture
    text = REPORT.markdown(fix_records.hostile(fix_records.verified(program="")))
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert "script" in outside
    assert re.search(r"(?<!\\)<", outside) is None
    assert "\x1b" not in text


def test_markdown_has_the_program_the_front_and_the_rewrites() -> None:
    text = REPORT.markdown(fix_records.fix())
    assert text.startswith("## Fix: `m.onnx`\n\n**")
    assert "```python\nimport onnxruntime as ort\n```" in text
    row = "| `disable-prepacking + mmap-threshold` | 150 MiB | 75 MiB | 1.02 × (0.97–1.07) |"
    assert f"{row} **chosen** |" in text
    text = REPORT.markdown(fix_records.verified())
    assert "| steady | 1.46 GiB | 540 MiB | 0.36 × |" in text
    assert "| size 4 | 10 ms | 10 ms | 1.02 × (0.98–1.05, 25 pairs) |" in text
    assert text.index("| **applied** | `good-one`") < text.index("| rejected | `slow-one`")


def test_the_picture_of_a_fix_that_measured_nothing_is_its_answer() -> None:
    figure = draw(fix_records.unmeasured())
    assert figure.axes == []
    assert "passed before" in figure.texts[1].get_text()
