"""A fix as files: the page with all points, Markdown, the Pareto front and the record."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.errors import UsageError
from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports.fix import REPORT, draw
from tests.reports import fix_records
from tests.reports.rendering import Page, html, markdown

FORMATS = ("html", "json", "markdown", "png", "svg")


@pytest.mark.parametrize("build", fix_records.ALL, ids=lambda build: build.__name__)
def test_every_fix_becomes_every_file_the_same_each_time(
    build: Callable[[], Fix], tmp_path: Path
) -> None:
    written = REPORT.write(build(), tmp_path / "out", FORMATS)
    assert [path.name for path in written] == [
        *("fix.html", "fix.json", "fix.md", "fix.png", "fix.svg")
    ]
    assert codec.load(written[1], Fix) == build()
    # Pictures take longest: once is enough.
    again = FORMATS if build is fix_records.verified else ("html", "json", "markdown")
    for format, path in zip(FORMATS, written, strict=True):
        assert format not in again or REPORT.render(build(), format) == path.read_bytes()


def test_a_format_that_fixes_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"'treemap' is not a report format of a fix\. Choose"):
        REPORT.render(fix_records.verified(), "treemap")


def test_the_page_has_the_answer_the_program_and_every_combination() -> None:
    text = " ".join(Page(html(fix_records.fix())).text.split())
    for part in (
        "Peak 200 MiB → 150 MiB (0.75 ×), steady 150 MiB → 75 MiB (0.50 ×)",
        "session.disable_prepacking=1.",
        "import onnxruntime as ort",
        "6 combinations measured, 20 sessions in 12 s.",
        "it does not run:",
    ):
        assert part in text


def test_the_page_of_a_rewritten_model_has_exact_bytes_on_hover() -> None:
    page = Page(html(fix_records.verified()))
    titles = {attrs.get("title") for _, attrs in page.elements}
    assert {f"{size << 20:,} bytes" for size in (1583, 559, 540)} <= titles
    assert codec.decode(page.embedded("fix").encode(), Fix) == fix_records.verified()
    text = " ".join(page.text.split())
    assert "keep them together, because 500 MiB of the weights are in dir/m.onnx." in text
    assert "Verified on 1.31.1; 1.20.0 and newer can load it (by its versions of the IR" in text


def test_the_points_can_be_sorted_by_number_and_the_chosen_one_is_marked() -> None:
    page = Page(html(fix_records.fix()))
    assert [attrs.get("class") for tag, attrs in page.elements if tag == "tr"].count("peak") == 1
    assert page.text.count("on the front") == 3
    values = [attrs["data-value"] for tag, attrs in page.elements if "data-value" in attrs]
    assert str(75 << 20) in values
    assert values.count("-1") == 5 + 1 + 1  # a point that does not run; two that were not compared


@pytest.mark.parametrize("build", [fix_records.nothing_helps, fix_records.unmeasured])
def test_a_fix_without_a_change_has_no_empty_table(build: Callable[[], Fix]) -> None:
    assert "Before and after" not in Page(html(build())).text
    assert "| figure |" not in markdown(build())


def test_hostile_names_are_text_in_every_file() -> None:
    evil = fix_records.hostile(fix_records.fix())
    page = Page(html(evil))
    assert page.links == {"data:,", "#main"}
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert page.text.count("</script><img src=x onerror=alert(1)>[red]x[/red]") > 10
    picture = REPORT.render(evil, "svg").decode()
    assert "optimization-off\\x1b[31m" in picture
    assert "<img" not in picture
    text = markdown(fix_records.hostile(fix_records.verified(program="")))
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert "script" in outside
    assert re.search(r"(?<!\\)<", outside) is None
    assert "\x1b" not in text


def test_markdown_marks_the_chosen_point_and_has_the_program() -> None:
    text = markdown(fix_records.fix())
    assert "```python\nimport onnxruntime as ort\n```" in text
    row = "| `disable-prepacking + mmap-threshold` | 150 MiB | 75 MiB | 1.02 × (0.97–1.07) |"
    assert f"{row} **chosen** |" in text


def test_the_picture_of_a_fix_that_measured_nothing_is_its_answer() -> None:
    figure = draw(fix_records.unmeasured())
    assert figure.axes == []
    assert "passed before" in figure.texts[1].get_text()
