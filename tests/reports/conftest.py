"""A real browser for the tests of pages, started once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.browser import NoBrowserError, start
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from memdiag.reports.page import plotly_source


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
    (folder / "plotly.js").write_text(plotly_source())

    def open_page(
        record: ReportedRecord, *, dark: bool = False, width: int = 1280, inline: bool = False
    ) -> Any:
        report = report_of(record)
        page = folder / report.file_name("html")
        text = report.render(record, "html").decode()
        if not inline:
            library = '<script src="plotly.js" nonce="0"></script>'
            text = text.replace(f"<script>{plotly_source()}</script>", library)
            text = text.replace("script-src ", "script-src 'nonce-0' ")
        page.write_text(text)
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
