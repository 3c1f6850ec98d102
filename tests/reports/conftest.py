"""A real browser for the tests of pages, started once."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.browser import NoBrowserError, start
from memdiag.records.schemas import Reported
from memdiag.reports import report_of
from memdiag.reports.page import companion_files


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The driver of a headless Chromium; `downloads` is where it puts files."""
    folder = tmp_path_factory.mktemp("browser")
    try:
        started = start(folder)
    except NoBrowserError as error:
        pytest.skip(str(error))
    started.downloads = folder / "downloads"
    yield started
    started.quit()


@pytest.fixture(scope="session")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """A function that opens the page of a record in a theme and a width.

    `inline` pages contain Plotly, as users get them. Others load it from their folder: Chromium
    compiles it once for all of them, which takes three quarters of the time of a load.
    """
    folder = tmp_path_factory.mktemp("pages")
    for name, data in companion_files("directory"):
        (folder / name).write_bytes(data)

    def open_page(
        record: Reported, *, dark: bool = False, width: int = 1280, inline: bool = False
    ) -> Any:
        report = report_of(record)
        page = folder / report.file_name("html")
        text = report.render(record, "html", plotly="inline" if inline else "directory").decode()
        # What Chromium compiled is used again only under the same nonce.
        page.write_text(re.sub(r'(nonce-|nonce=")\w{32}', r"\g<1>" + "0" * 32, text))
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(page.as_uri())
        return browser

    return open_page
