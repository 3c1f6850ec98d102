"""A real browser for the tests of pages, started once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import NoBrowserError, start
from memdiag.records.schemas import Reported
from memdiag.reports import report_of


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


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    """A function that opens the page of a record in a theme and a width."""

    def open_page(record: Reported, *, dark: bool = False, width: int = 1280) -> Any:
        (page,) = report_of(record).write(record, tmp_path, ("html",))
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
