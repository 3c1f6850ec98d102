"""A headless Chromium, for tests and measurements of pages."""

import shutil
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
    # Pages that were left would stay in memory, and take their part of what is measured.
    "--disable-features=BackForwardCache",
)  # fmt: skip


class NoBrowserError(Exception):
    """There is no Chromium with its chromedriver on PATH."""


def start(folder: Path) -> Any:
    """Return the driver of a browser whose profile and ``downloads`` are in `folder`.

    Raises:
        NoBrowserError: there is none.
    """
    binary = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        raise NoBrowserError("no Chromium with its chromedriver was found on PATH")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*_ARGUMENTS, f"--user-data-dir={folder / 'user'}"):
        options.add_argument(argument)
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(folder / "downloads")}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))
