"""The pages of other records in a browser, and pages whose drawing library is elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.records import codec
from memdiag.records.comparison import Comparison
from memdiag.records.estimate import Estimate
from memdiag.records.fix import Fix
from memdiag.records.growth import Growth
from memdiag.records.limit import MemoryLimit
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


def test_a_fix_draws_its_ratios(opened: Callable[..., Any]) -> None:
    page = opened(fix_records.verified())
    wait_for(lambda: page.execute_script(RATIOS) == 2)
    assert_fits(page, 1280)
    assert_requests_only(page, "fix.html")
    assert saved(page, Fix, "fix.json") == fix_records.verified()
    assert_quiet(page)


def test_a_hostile_fix_fits_a_dark_phone(opened: Callable[..., Any]) -> None:
    page = opened(hostile(fix_records.verified()), dark=True, width=390)
    wait_for(lambda: page.execute_script(RATIOS) == 2)
    assert_fits(page, 390)
    assert_requests_only(page, "fix.html")
    assert_quiet(page)


def test_a_fix_draws_sorts_copies_and_prints(opened: Callable[..., Any]) -> None:
    page = opened(fix_records.fix(), dark=True)
    wait_for(lambda: page.execute_script(POINTS) == 4)
    assert_requests_only(page, "fix.html")
    values = (
        "return [...document.querySelectorAll('#points tbody tr')]"
        ".map((row) => Number(row.cells[2].dataset.value))"
    )
    heading = page.find_element("css selector", "#points thead th:nth-child(3) button")
    heading.send_keys("\n")
    down = page.execute_script(values)
    heading.send_keys("\n")
    assert len(down) == 6
    assert down == sorted(down, reverse=True)
    assert page.execute_script(values) == sorted(down)
    assert page.execute_script("return document.querySelector('#points th').ariaSort") is None
    button = page.find_element("id", "copy")
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
    with emulate_print(page):
        page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        ink = "return document.querySelector('#pareto .xtick text').style.fill"
        wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
        width = "return document.querySelector('#points thead button').offsetWidth"
        assert page.execute_script(width) > 0
    assert saved(page, Fix, "fix.json") == fix_records.fix()
    assert_quiet(page)


def test_a_hostile_fix_stays_text_on_a_phone(opened: Callable[..., Any]) -> None:
    record = hostile(fix_records.fix())
    page = opened(record, width=390)
    wait_for(lambda: page.execute_script(POINTS) == 4)
    assert_fits(page, 390)
    assert page.execute_script("return document.querySelectorAll('main b').length") == 0
    page.execute_script("Plotly.Fx.hover('pareto', [{ curveNumber: 1, pointNumber: 0 }])")
    hover = "return document.querySelector('#pareto .hoverlayer').textContent"
    label = wait_for(lambda: page.execute_script(hover))
    assert "optimization-off" in label
    assert "<img src=x onerror=alert(1)>" in label
    assert_requests_only(page, "fix.html")
    assert_quiet(page)


def test_growth_draws_its_owners_on_a_dark_phone(opened: Callable[..., Any]) -> None:
    leak = growths.leak()
    page = opened(leak, dark=True, width=390)
    areas = "return document.querySelectorAll('#growth-chart .scatterlayer .fills path').length"
    wait_for(lambda: page.execute_script(areas) >= 7)
    assert_fits(page, 390, tables=True)
    assert_requests_only(page, "growth.html")
    drawn = (
        "return document.getElementById('growth-chart').data.map((trace) =>"
        " [trace.name, trace.x[trace.x.length - 1], trace.customdata && trace.customdata.at(-1)])"
    )
    names = {name: (x, text) for name, x, text in page.execute_script(drawn)}
    assert names["resident set"][0] == 1000
    assert names["slope"][0] == 1000
    owner = names["malloc blocks in use"]
    assert owner == (1000, "run 1,000: +393.8 KiB (403,200 bytes)")
    page.execute_script("Plotly.Fx.hover('growth-chart', [{ curveNumber: 0, pointNumber: 9 }])")
    hover = "return document.querySelector('#growth-chart .hoverlayer').textContent"
    assert "run 10:" in wait_for(lambda: page.execute_script(hover))
    rows = "return document.querySelectorAll('#owners tbody tr, #blocks tbody tr').length"
    assert page.execute_script(rows) == 9
    with emulate_print(page):
        page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        ink = "return document.querySelector('#growth-chart .xtick text').style.fill"
        wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    assert saved(page, Growth, "growth.json") == leak
    assert_quiet(page)


def test_an_estimate_draws_its_parts_and_its_sizes_on_a_dark_phone(
    opened: Callable[..., Any],
) -> None:
    name = "<img src=x onerror=alert(1)>"
    record = estimates.hostile(name)
    page = opened(record, dark=True, width=390)
    cells = (
        "return [...document.querySelectorAll('#size-chart .annotation')].map((e) => e.textContent)"
    )
    wait_for(lambda: len(page.execute_script(cells)) == 6)
    assert page.execute_script(cells)[0] == "200 MiB"
    assert_fits(page, 390)
    bars = "return document.querySelectorAll('#phase-chart .bars .point').length"
    assert page.execute_script(bars) == 15  # five parts in three phases
    blocks = "return document.querySelectorAll('#layout-chart .bars .point').length"
    assert page.execute_script(blocks) == 3
    page.execute_script("Plotly.Fx.hover('size-chart', { xval: 0, yval: 0 })")
    hover = "return document.querySelector('#size-chart .hoverlayer').textContent"
    label = wait_for(lambda: page.execute_script(hover))
    assert name[:10] in label
    assert "209,715,200 bytes" in label
    assert_requests_only(page, "report.html")
    with emulate_print(page):
        page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        ink = "return document.querySelector('#phase-chart .xtick text').style.fill"
        wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    assert saved(page, Estimate, "estimate.json") == record
    assert_quiet(page)


def test_an_estimate_over_one_dimension_draws_a_line(opened: Callable[..., Any]) -> None:
    page = opened(estimates.line())
    points = "return document.querySelectorAll('#size-chart .scatterlayer .point').length"
    wait_for(lambda: page.execute_script(points) == 6)  # peak and memory after the runs
    assert_fits(page, 1280, tables=True)
    assert_quiet(page)


def test_a_memory_limit_draws_its_times_on_a_dark_phone(opened: Callable[..., Any]) -> None:
    record = msgspec.structs.replace(limits.limit(), subject="<img src=x onerror=alert(1)>.onnx")
    page = opened(record, dark=True, width=390)
    points = "return document.querySelectorAll('#limit-chart .scatterlayer .point').length"
    wait_for(lambda: page.execute_script(points) == 5)  # loading and latency at two limits, a kill
    assert_fits(page, 390)
    marks_drawn = "[...document.querySelectorAll('#limit-chart .annotation')]"
    texts = f"return {marks_drawn}.map((mark) => mark.textContent)"
    marks = ["smallest 240 MiB", "no slowdown 260 MiB", "request 270 MiB", "limit 324 MiB"]
    assert page.execute_script(texts) == marks
    assert_requests_only(page, "limit.html")
    assert saved(page, MemoryLimit, "limit.json") == record
    assert_quiet(page)


def legend(page: Any) -> list[str]:
    """Return the names in the legend: the layers of the stacked column, then the lines."""
    script = (
        "const chart = document.getElementById('lines');"
        "return chart && chart.data"
        " ? chart.data.filter((t) => t.showlegend !== false).map((t) => t.name) : []"
    )
    found: list[str] = page.execute_script(script)
    return found


def choose(page: Any, index: int, value: str) -> None:
    """Choose `value` in one of the lists above the lines."""
    page.execute_script(
        "const list = document.querySelectorAll('.toolbar select')[arguments[0]];"
        "list.value = arguments[1]; list.dispatchEvent(new Event('change'))",
        index,
        value,
    )


@pytest.mark.parametrize(
    ("build", "is_dark"),
    [
        (comparisons.versions, False),
        (comparisons.nothing, False),
        (comparisons.bisected, False),
        (comparisons.hostile, True),
    ],
)
def test_a_comparison_draws_its_lines(
    opened: Callable[..., Any], build: Callable[[], Comparison], is_dark: bool
) -> None:
    record = build()
    page = opened(record, dark=is_dark)
    assert_lines(page, record)
    assert_requests_only(page, "comparison.html")
    assert_quiet(page)


def assert_lines(page: Any, record: Comparison) -> None:
    """Check that each measured column has a line, and the first one its layers."""
    lines = [column.label for column in record.columns if column.measured is not None]
    wait_for(lambda: len(legend(page)) == (len(lines) + 2 if lines else 0))


def test_the_columns_of_a_comparison_are_chosen_and_aligned(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.optimizers(), dark=True)
    assert_lines(page, comparisons.optimizers())
    assert_requests_only(page, "comparison.html")
    layers = ["original: file-backed", "original: anonymous"]
    others = ["onnxruntime-extended", "onnxoptimizer", "onnxscript", "memdiag-fix"]
    assert wait_for(lambda: legend(page)) == [*layers, "original", *others]
    choose(page, 0, "2")
    choose(page, 1, "4")
    stacked = "onnxoptimizer"
    assert legend(page) == [
        f"{stacked}: file-backed", f"{stacked}: anonymous", stacked, "memdiag-fix",
    ]  # fmt: skip
    assert saved(page, Comparison, "comparison.json") == comparisons.optimizers()
    assert_quiet(page)


def test_two_columns_are_aligned_by_a_phase_and_layers_are_hidden(
    opened: Callable[..., Any],
) -> None:
    page = opened(comparisons.alike())
    assert_lines(page, comparisons.alike())
    assert_requests_only(page, "comparison.html")
    lists = page.find_elements("css selector", ".toolbar select")
    assert len(lists) == 2  # of two columns there is no pair to choose
    first = "return Number(document.getElementById('lines').data[0].x[0])"
    assert page.execute_script(first) == 0
    choose(page, 1, "prepack")
    assert page.execute_script(first) < -1
    title = "return document.querySelector('#lines .xtitle').textContent"
    assert page.execute_script(title) == "seconds since prepack began"
    page.execute_script(
        "const first = document.querySelector('#lines .legendtoggle');"
        "for (const type of ['mousedown', 'mouseup'])"
        " first.dispatchEvent(new MouseEvent(type, { bubbles: true }))"
    )
    visible = "return document.getElementById('lines').data[0].visible"
    wait_for(lambda: page.execute_script(visible) == "legendonly")
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
    offline.find_element("id", "addresses").send_keys("\ue011")  # Home
    assert "resident at 0x1000" in offline.find_element("id", "address-range").text
    offline.find_element("id", "moment").send_keys("end of parse")
    wait_for(lambda: offline.find_element("id", "copies-1").is_displayed())
    errors = [entry["message"] for entry in offline.get_log("browser")]
    assert all("plotly" in message for message in errors)  # only that it is missing


def test_a_comparison_without_the_library_says_so(offline: Any, tmp_path: Path) -> None:
    record: Reported = comparisons.alike()
    page, library = report_of(record).write(record, tmp_path, ("html",), plotly="directory")
    library.unlink()
    offline.get(page.as_uri())
    assert offline.find_element("css selector", ".undrawn").is_displayed()
    errors = [entry["message"] for entry in offline.get_log("browser")]
    assert all("plotly" in message for message in errors)


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
