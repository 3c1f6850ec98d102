"""What tests of pages ask the browser for."""

import json
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 20.0
DRAWN = "return document.querySelectorAll('#timeline .scatterlayer .trace').length"
"""Counts what is drawn of the timeline."""


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return what `condition` returns once that is something."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.02)
    return value


def requested(browser: Any) -> set[str]:
    """Return the addresses that the page asked for."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = (
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    )
    return {url for url in urls if not url.startswith(("data:", "blob:"))}
