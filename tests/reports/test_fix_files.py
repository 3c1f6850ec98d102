"""The page of a fix, with all points."""

from collections.abc import Callable

import pytest

from memdiag.records.fix import Fix
from memdiag.reports.fix import draw
from tests.reports import fix_records
from tests.reports.rendering import Page, html, markdown


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


def test_the_picture_of_a_fix_that_measured_nothing_is_its_answer() -> None:
    figure = draw(fix_records.unmeasured())
    assert figure.axes == []
    assert "passed before" in figure.texts[1].get_text()
