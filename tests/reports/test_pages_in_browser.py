"""The pages of other records in a browser, and pages whose drawing library is elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.records import codec
from memdiag.records.schemas import Reported
from memdiag.reports import report_of
from memdiag.reports.page import PLOTLY_FILE
from tests.reports import (
    comparisons,
    estimates,
    fix_records,
    growths,
    limits,
    tied_xray,
)
from tests.reports.browsing import (
    DRAWN,
    assert_fits,
    assert_quiet,
    emulate_print,
    requested,
    wait_for,
)
from tests.reports.fix_records import hostile

RATIOS = "return document.querySelectorAll('#latencies .scatterlayer .point').length"
POINTS = "return document.querySelectorAll('#pareto .scatterlayer .point').length"


def saved(page: Any, kind: type[Any], name: str) -> Any:
    """Return the record that the page's button saves."""
    target = page.downloads / name
    target.unlink(missing_ok=True)
    page.execute_script("document.getElementById('download').click()")
    wait_for(target.exists)
    return codec.load(target, kind)


def assert_requests_only(page: Any, name: str) -> None:
    """Check that the page requested only itself and its library, and loaded no image."""
    assert {url.rpartition("/")[2] for url in requested(page)} == {name, PLOTLY_FILE}
    assert page.execute_script("return document.images.length") == 0


def test_a_fix_is_copied_and_its_table_sorted(opened: Callable[..., Any]) -> None:
    page = opened(fix_records.fix())
    values = (
        "return [...document.querySelectorAll('table.sortable tbody tr')]"
        ".map((row) => Number(row.cells[2].dataset.value))"
    )
    heading = page.find_element("css selector", "table.sortable thead th:nth-child(3) button")
    heading.send_keys("\n")
    down = page.execute_script(values)
    heading.send_keys("\n")
    assert len(down) == 6
    assert down == sorted(down, reverse=True)
    assert page.execute_script(values) == sorted(down)
    button = page.find_elements("css selector", "button.copy")[-1]
    button.click()
    wait_for(lambda: button.text != "Copy")
    if button.text == "Copied":
        grant = {"permissions": ["clipboardReadWrite"], "origin": "file://"}
        page.execute_cdp_cmd("Browser.grantPermissions", grant)
        read = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
        assert page.execute_async_script(read) == "import onnxruntime as ort\n"
    else:
        selection = page.execute_script("return String(getSelection())")
        assert selection.strip() == "import onnxruntime as ort"
    assert_quiet(page)


SVG_TEXT = (
    "return [...document.querySelectorAll('.picture svg text')].map((each) => each.textContent)"
)
INK = "return getComputedStyle(document.querySelector('.picture svg text')).fill"
DOCUMENTS: dict[str, tuple[Reported, str]] = {
    "growth.json": (growths.leak(), "end of warm-up"),
    "limit.json": (
        msgspec.structs.replace(limits.limit(), subject="<img src=x onerror=alert(1)>.onnx"),
        "limit 324 MiB",
    ),
    "estimate.json": (estimates.hostile("<img src=x onerror=alert(1)>"), "200 M"),
    "fix.json": (hostile(fix_records.fix()), "steady memory"),
    "comparison.json": (comparisons.hostile(), "peak by phase, median MiB above the baseline"),
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
    assert page.execute_script("return document.images.length") == 0
    (itself,) = requested(page)
    assert itself.endswith(".html")
    assert len(page.page_source) < 500_000  # without Plotly
    with emulate_print(page):
        assert page.execute_script(INK) == "rgb(23, 32, 42)"
    assert saved(page, type(record), name) == record
    assert_quiet(page)


@pytest.mark.parametrize("build", [comparisons.nothing, estimates.line, limits.without_group])
def test_a_page_fits_with_and_without_a_picture(
    opened: Callable[..., Any], build: Callable[[], Reported]
) -> None:
    page = opened(build())
    assert_fits(page, 1280, tables=True)
    assert_quiet(page)


def test_the_library_may_be_beside_the_page(browser: Any, tmp_path: Path) -> None:
    record = tied_xray.with_xrays()
    page, library = report_of(record).write(record, tmp_path, ("html",), plotly="directory")
    assert library.name == "plotly.min.js"
    assert page.stat().st_size < 1_000_000
    browser.get(page.as_uri())
    wait_for(lambda: browser.execute_script(DRAWN) >= 3)
    assert_quiet(browser)


@pytest.fixture
def offline(browser: Any) -> Any:
    """The browser, without access to any address."""
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http*://*"]})
    yield browser
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_without_the_library_the_page_says_so_and_tables_work(offline: Any, tmp_path: Path) -> None:
    words = "plotly.min.js, which could not be loaded: put that file beside this page."
    record = tied_xray.with_xrays()
    page = tmp_path / "report.html"
    page.write_bytes(report_of(record).page(record, plotly="directory"))
    offline.get(page.as_uri())
    messages = [each.text for each in offline.find_elements("css selector", ".undrawn")]
    assert len(messages) == 3  # timeline, owners and runs
    assert all(words in message for message in messages)
    assert offline.find_elements("css selector", ".chart, #ranges") == []
    offline.find_element("css selector", ".filters input").send_keys("layer.1")
    assert "3 of 16 rows" in offline.find_element("css selector", ".filters [role=status]").text
    offline.find_element("css selector", "#copies-0 thead th button").click()
    assert offline.find_element("css selector", "#copies-0 tbody th").text == "layer.1"
    offline.find_element("id", "moment").send_keys("end of parse")
    wait_for(lambda: offline.find_element("id", "copies-1").is_displayed())
    errors = [entry["message"] for entry in offline.get_log("browser")]
    assert all("plotly" in message for message in errors)  # only that it is missing


def test_the_page_is_readable_without_scripts(browser: Any, tmp_path: Path) -> None:
    record = tied_xray.with_xrays()
    (page,) = report_of(record).write(record, tmp_path, ("html",))
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        text = browser.find_element("tag name", "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The timeline needs JavaScript; the tables below contain every figure." in text
    for figure in ("1,563", "506 MiB", "ConstantFolding", "anonymous +1.50 GiB"):
        assert figure in text
