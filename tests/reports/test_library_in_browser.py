"""A page whose library lies elsewhere, in a real browser, and what it says without it."""

from pathlib import Path
from typing import Any, cast

import pytest

from memdiag.reports import html
from memdiag.reports.kinds import Reported, reporters_of
from memdiag.reports.page import Plotly
from tests.reports import comparisons, tied_xray
from tests.reports.browsing import DRAWN, wait_for


def test_the_library_may_lie_beside_the_page(browser: Any, tmp_path: Path) -> None:
    record = tied_xray.with_xrays()
    page, library = reporters_of(record).write(record, tmp_path, ("html",), plotly="directory")
    assert library.name == "plotly.min.js"
    assert page.stat().st_size < 1_000_000
    browser.get(page.as_uri())
    wait_for(lambda: browser.execute_script(DRAWN) >= 3)
    assert browser.get_log("browser") == []


@pytest.fixture
def offline(browser: Any) -> Any:
    """The browser, from which no address can be reached."""
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http*://*"]})
    yield browser
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


@pytest.mark.parametrize(
    ("plotly", "words"),
    [
        ("cdn", "could not be loaded: connect to the network and load the page again."),
        ("directory", "plotly.min.js, which could not be loaded: put that file beside this page."),
    ],
)
def test_without_the_library_the_page_says_so_and_all_else_works(
    offline: Any, tmp_path: Path, plotly: str, words: str
) -> None:
    place = tmp_path / "report.html"
    place.write_bytes(html.render(tied_xray.with_xrays(), plotly=cast("Plotly", plotly)))
    offline.get(place.as_uri())
    said = [each.text for each in offline.find_elements("css selector", ".undrawn")]
    assert len(said) == 3  # timeline, owners and runs
    assert all(words in each for each in said)
    assert offline.find_elements("css selector", ".chart, #ranges") == []
    offline.find_element("css selector", ".filters input").send_keys("layer.1")
    assert "3 of 16 rows" in offline.find_element("css selector", ".filters [role=status]").text
    offline.find_element("css selector", "#copies-0 thead th button").click()
    first = offline.find_element("css selector", "#copies-0 tbody th").text
    assert first == "layer.1"
    strip = offline.find_element("id", "addresses")
    strip.send_keys("\ue011")  # Home
    assert "resident at 0x1000" in offline.find_element("id", "stretch").text
    offline.find_element("id", "moment").send_keys("end of parse")
    wait_for(lambda: offline.find_element("id", "copies-1").is_displayed())
    errors = [entry["message"] for entry in offline.get_log("browser")]
    assert all("plotly" in each for each in errors)  # that it is missing, and no more


def test_a_comparison_without_the_library_says_so_too(offline: Any, tmp_path: Path) -> None:
    record: Reported = comparisons.alike()
    page, library = reporters_of(record).write(record, tmp_path, ("html",), plotly="directory")
    library.unlink()
    offline.get(page.as_uri())
    assert offline.find_element("css selector", ".undrawn").is_displayed()
    errors = [entry["message"] for entry in offline.get_log("browser")]
    assert all("plotly" in each for each in errors)
