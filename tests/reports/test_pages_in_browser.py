"""The pages of other records in a browser, and pages without scripts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from tests.reports import comparisons, estimates, fix_records, growths, limits, sweeps, tied_xray
from tests.reports.browsing import (
    assert_fits,
    assert_quiet,
    downloaded,
    emulate_print,
    is_free_of_images,
    requested,
    wait_for,
)
from tests.reports.hostile_texts import hostile
from tests.reports.rendering import replaced

EVIL = '</script><img src=x onerror="document.title=1">&amp;"\n'
PROGRAM = "import onnxruntime as ort"
VALUES = (
    "return [...document.querySelectorAll('table.sortable tbody tr')]"
    ".map((row) => Number(row.cells[2].dataset.value))"
)
SVG_TEXT = (
    "return [...document.querySelectorAll('.picture svg text')].map((each) => each.textContent)"
)
INK = "return getComputedStyle(document.querySelector('.picture svg text')).fill"


def test_a_fix_is_copied_and_its_table_sorted(opened: Callable[..., Any]) -> None:
    page = opened(fix_records.fix())
    heading = page.find_element("css selector", "table.sortable thead th:nth-child(3) button")
    heading.send_keys("\n")
    down = page.execute_script(VALUES)
    heading.send_keys("\n")
    assert len(down) == 6
    assert down == sorted(down, reverse=True)
    assert page.execute_script(VALUES) == sorted(down)
    button = page.find_elements("css selector", "button.copy")[-1]
    button.click()
    wait_for(lambda: button.text != "Copy")
    if button.text == "Copied":
        grant = {"permissions": ["clipboardReadWrite"], "origin": "file://"}
        page.execute_cdp_cmd("Browser.grantPermissions", grant)
        read = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
        assert page.execute_async_script(read) == f"{PROGRAM}\n"
    else:
        assert page.execute_script("return String(getSelection())").strip() == PROGRAM
    assert_quiet(page)


DOCUMENTS: dict[str, tuple[ReportedRecord, str]] = {
    "growth.json": (growths.leak(), "end of warm-up"),
    "limit.json": (replaced(limits.limit(), subject=f"{EVIL.strip()}.onnx"), "limit 324 MiB"),
    "estimate.json": (hostile(estimates.grid()), "200 M"),
    "fix.json": (hostile(fix_records.fix()), "steady memory"),
    "comparison.json": (
        hostile(comparisons.versions()),
        "peak by phase, median MiB above the baseline",
    ),
}
"""Records whose page has a picture, with a text in it."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_picture_has_the_colours_of_the_page_on_a_dark_phone(
    opened: Callable[..., Any], name: str
) -> None:
    record, text = DOCUMENTS[name]
    page = opened(record, dark=True, width=390)
    assert text in page.execute_script(SVG_TEXT)
    assert_fits(page, 390)
    assert page.execute_script(INK) == "rgb(232, 237, 242)"
    assert is_free_of_images(page)
    (itself,) = requested(page)
    assert itself.endswith(".html")
    assert len(page.page_source) < 500_000  # without Plotly
    with emulate_print(page):
        assert page.execute_script(INK) == "rgb(23, 32, 42)"
    assert downloaded(page, name, type(record)) == record
    assert_quiet(page)


@pytest.mark.parametrize(
    "build", [comparisons.nothing, estimates.line, limits.without_group, sweeps.placed]
)
def test_a_page_fits_with_and_without_a_picture(
    opened: Callable[..., Any], build: Callable[[], ReportedRecord]
) -> None:
    page = opened(build())
    assert_fits(page, 1280, tables=True)
    assert_quiet(page)


def test_hostile_names_of_a_sweep_fit_a_phone(opened: Callable[..., Any]) -> None:
    series = (sweeps.with_step(EVIL * 5, 5, 9, at=1, is_new=True), sweeps.series("a", None))
    page = opened(sweeps.sweep(against=EVIL, series=series), dark=True, width=390)
    assert_fits(page, 390)
    assert is_free_of_images(page)
    assert page.execute_script("return document.title") != "1"
    assert_quiet(page)


def test_the_page_is_readable_without_scripts(browser: Any, tmp_path: Path) -> None:
    record = tied_xray.with_xrays()
    (page,) = report_of(record).write(record, tmp_path, ("html",))
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        text = browser.find_element("tag name", "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The chart needs JavaScript; the tables contain every figure." in text
    for figure in ("1,563", "506 MiB", "ConstantFolding", "anonymous +1.50 GiB"):
        assert figure in text
