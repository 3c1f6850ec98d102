"""A comparison in a real browser: lines, the stack below them, and what they are aligned by."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records import codec
from memdiag.records.comparison import Comparison
from tests.reports import comparisons
from tests.reports.browsing import requested, wait_for


def named(page: Any) -> list[str]:
    """Return what the legend names: the layers of the column that is stacked, then the lines."""
    script = (
        "const chart = document.getElementById('lines');"
        "return chart && chart.data"
        " ? chart.data.filter((t) => t.showlegend !== false).map((t) => t.name) : []"
    )
    found: list[str] = page.execute_script(script)
    return found


def choose(page: Any, place: int, value: str) -> None:
    """Choose `value` in one of the lists above the lines."""
    page.execute_script(
        "const list = document.querySelectorAll('.toolbar select')[arguments[0]];"
        "list.value = arguments[1]; list.dispatchEvent(new Event('change'))",
        place,
        value,
    )


@pytest.mark.parametrize(
    ("build", "dark"),
    [(build, place % 2 == 1) for place, build in enumerate(comparisons.ALL)],
    ids=[build.__name__ for build in comparisons.ALL],
)
def test_a_comparison_draws_its_lines_without_an_error_or_a_request(
    opened: Callable[..., Any], build: Callable[[], Comparison], dark: bool
) -> None:
    record = build()
    page = opened(record, dark=dark)
    lines = [column.label for column in record.columns if column.measured is not None]
    wait_for(lambda: len(named(page)) == (len(lines) + 2 if lines else 0))
    assert page.get_log("browser") == []
    assert {url.rpartition("/")[2] for url in requested(page)} == {"comparison.html"}


def test_a_comparison_can_be_saved_from_its_page(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.versions())
    page.execute_script("document.getElementById('download').click()")
    saved = page.downloads / "comparison.json"
    wait_for(saved.exists)
    assert codec.load(saved, Comparison) == comparisons.versions()


def test_any_two_columns_can_be_laid_over_each_other(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.optimizers())
    layers = ["original: file-backed", "original: anonymous"]
    others = ["onnxruntime-extended", "onnxoptimizer", "onnxscript", "memdiag-fix"]
    assert wait_for(lambda: named(page)) == [*layers, "original", *others]
    choose(page, 0, "2")
    choose(page, 1, "4")
    stacked = "onnxoptimizer"
    assert named(page) == [
        f"{stacked}: file-backed", f"{stacked}: anonymous", stacked, "memdiag-fix",
    ]  # fmt: skip
    assert page.get_log("browser") == []


def test_the_columns_are_aligned_by_the_start_of_a_phase(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.alike())
    wait_for(lambda: named(page))
    lists = page.find_elements("css selector", ".toolbar select")
    assert len(lists) == 2  # of two columns there is no pair to choose
    first = "return Number(document.getElementById('lines').data[0].x[0])"
    assert page.execute_script(first) == 0
    choose(page, 1, "prepack")
    assert page.execute_script(first) < -1
    title = "return document.querySelector('#lines .xtitle').textContent"
    assert page.execute_script(title) == "seconds since prepack began"


def test_a_layer_is_hidden_from_the_legend(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.alike())
    wait_for(lambda: named(page))
    page.execute_script(
        "const first = document.querySelector('#lines .legendtoggle');"
        "for (const type of ['mousedown', 'mouseup'])"
        " first.dispatchEvent(new MouseEvent(type, { bubbles: true }))"
    )
    shown = "return document.getElementById('lines').data[0].visible"
    wait_for(lambda: page.execute_script(shown) == "legendonly")
