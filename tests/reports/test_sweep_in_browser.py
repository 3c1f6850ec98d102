"""The page of a sweep in a browser: table, filters, charts, many models, hostile names."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from selenium.webdriver.support.select import Select

from memdiag.records.sweep import Sweep
from memdiag.reports.sweep import page as sweep_page
from tests.reports import sweeps
from tests.reports.browsing import assert_fits, assert_quiet, wait_for

HOSTILE = '</script><img src=x onerror="document.title=1">&amp;"\n'
NAMES = (
    "return [...document.querySelectorAll('#series tbody tr')]"
    ".map((row) => row.cells[0].querySelector('button').textContent)"
)
CELLS = "return document.querySelectorAll('#heat-map .heatmaplayer image').length"
TITLE = "return document.getElementById('h-series-chart').textContent"
POINTS = "return document.querySelectorAll('#series-chart .scatterlayer .point').length"


def texts_in(page: Any, chart: str) -> list[str]:
    """Return the texts that Plotly wrote into a chart."""
    script = f"return [...document.querySelectorAll('#{chart} text')].map((t) => t.textContent)"
    found: list[str] = page.execute_script(script)
    return found


def drawn(page: Any) -> None:
    """Wait until the charts are there."""
    wait_for(lambda: page.execute_script(CELLS) == 1)
    wait_for(lambda: page.execute_script(POINTS))


def test_the_page_draws_its_charts_and_shows_the_model_that_changed_most(
    opened: Callable[..., Any],
) -> None:
    page = opened(sweeps.sweep())
    drawn(page)
    assert page.execute_script(TITLE) == "albert.onnx over time"
    assert " +212 MiB" in texts_in(page, "series-chart")
    assert {"712 MiB", "✗", "1.32.0"} <= set(texts_in(page, "heat-map"))
    wait_for(
        lambda: (
            page.execute_script("return document.querySelectorAll('#estimate-chart .point').length")
            == 12
        )
    )
    assert_fits(page, 1280)
    assert_quiet(page)


def test_the_table_filters_sorts_and_selects(opened: Callable[..., Any]) -> None:
    page = opened(sweeps.sweep())
    drawn(page)
    everything = ["vits.onnx", "albert.onnx", "vits.onnx", "minilm.onnx", "broken.onnx"]
    assert page.execute_script(NAMES) == everything
    page.find_element("css selector", "#series thead th:nth-child(1) button").click()
    assert page.execute_script(NAMES) == sorted(everything)
    heading = page.find_element("css selector", "#series thead th:nth-child(3) button")
    heading.click()
    heading.click()
    assert page.execute_script(NAMES) == [*reversed(everything[:4]), "broken.onnx"]  # without peak
    search = page.find_element("css selector", "#filters input")
    search.send_keys("tokens=512")
    assert page.execute_script(NAMES) == ["vits.onnx"]
    search.clear()
    search.send_keys("b")
    Select(page.find_element("css selector", "#filters select")).select_by_visible_text(
        "with failed jobs"
    )
    wait_for(lambda: page.execute_script(NAMES) == ["broken.onnx"])
    page.find_element("css selector", "#series tbody button").click()
    assert page.execute_script(TITLE) == "broken.onnx over time"
    page.find_element("css selector", "#axis button:nth-child(2)").click()
    assert "✗" in texts_in(page, "series-chart")
    assert_quiet(page)


@pytest.mark.parametrize("dark", [False, True])
def test_hostile_names_fit_a_phone(opened: Callable[..., Any], dark: bool) -> None:
    record = sweeps.sweep(
        against=HOSTILE,
        series=(sweeps.with_step(HOSTILE * 5, 5, 9, at=1, is_new=True), sweeps.series("a", None)),
    )
    page = opened(record, dark=dark, width=390)
    drawn(page)
    assert_fits(page, 390)
    assert page.execute_script("return document.images.length") == 0
    assert page.execute_script("return document.title") != "1"
    assert_quiet(page)


def test_names_and_tables_are_whole_on_a_phone(opened: Callable[..., Any]) -> None:
    grown = sweeps.with_step("organization/resnet50-batch-a/light_zfnet512.onnx", 500, 712, at=1)
    page = opened(sweeps.sweep(series=(grown,), placement=sweeps.placement(1)), width=390)
    drawn(page)
    # The parts of a name are texts of their own, each on one line.
    broken = """
      const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      const found = [];
      while (texts.nextNode()) {
        const text = texts.currentNode, range = document.createRange();
        if (!text.parentElement.closest("tbody") || /\\s/.test(text.data.trim())) continue;
        range.selectNodeContents(text);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (lines.size > 1) found.push(text.data);
      }
      return found;
    """
    assert page.execute_script(broken) == []
    cut = """
      return [...document.querySelectorAll(".scroll")]
        .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText);
    """
    assert page.execute_script(cut) == []
    assert page.execute_script(NAMES) == ["organization/resnet50-batch-a/light_zfnet512.onnx"]
    assert_fits(page, 390)


def test_sizes_of_nothing_are_empty(opened: Callable[..., Any]) -> None:
    cells = "return [...document.querySelectorAll('#series tbody tr')].map((row) => row.innerText)"
    empty, small = (
        sweeps.series(name, 10, weight_bytes=size) for name, size in (("a", 0), ("b", 100))
    )
    points = (msgspec.structs.replace(empty.points[0], estimated_peak_bytes=10 * sweeps.MIB - 9),)
    page = opened(sweeps.sweep(series=(msgspec.structs.replace(empty, points=points), small)))
    wait_for(lambda: texts_in(page, "estimate-chart"))
    rows = {row[0]: " ".join(row.split()) for row in page.execute_script(cells)}
    assert rows["a"] == "a 10 MiB 9.0 MiB 0 %"
    assert rows["b"].startswith("b 1 KiB 10 MiB")


def test_many_models_are_compressed_and_found(opened: Callable[..., Any]) -> None:
    count = 4000
    record = sweeps.sweep(
        series=tuple(
            sweeps.series(f"{number:05d}-{'x' * 20}.onnx", 100 + number % 50, 100)
            for number in range(count)
        ),
        findings=(),
    )
    page = opened(record)
    drawn(page)
    assert "packed" in page.execute_script("return document.getElementById('charts').textContent")
    assert len(page.execute_script(NAMES)) == 100
    page.find_element("id", "more").click()
    assert len(page.execute_script(NAMES)) == 200
    page.find_element("css selector", "#filters input").send_keys("03321-")
    wait_for(lambda: page.execute_script(NAMES) == [f"03321-{'x' * 20}.onnx"])
    assert_quiet(page)


def test_one_release_has_a_table_and_no_chart_of_changes(opened: Callable[..., Any]) -> None:
    page = opened(
        sweeps.sweep(
            releases=sweeps.RELEASES[:1],
            series=(sweeps.series("a.onnx", 10), sweeps.series("b.onnx", 20)),
        )
    )
    rows = "return [...document.querySelectorAll('#series tbody th')].map((th) => th.textContent)"
    wait_for(lambda: page.execute_script(rows) == ["b.onnx", "a.onnx"])
    wait_for(lambda: texts_in(page, "estimate-chart"))
    assert page.find_elements("css selector", "#series-chart, #heat-map") == []
    assert_quiet(page)


def test_names_link_to_the_pages_that_exist() -> None:
    record = sweeps.sweep()
    key = record.series[0].newest.key
    text = sweep_page.render(record, pages={key}, plotly="directory").decode()
    assert text.count(key) > sweep_page.render(record, plotly="directory").decode().count(key)
    assert "1 jobs" not in text


def test_an_empty_sweep_has_a_page(opened: Callable[..., Any]) -> None:
    page = opened(Sweep(store="s"))
    assert "0 jobs of 0 models." in page.find_element("tag name", "main").text
    assert_quiet(page)
