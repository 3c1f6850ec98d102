"""What tests of pages ask the browser for."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def hover_text(page: Any, curve: str, point: int, *, find: str = "findLastIndex") -> str:
    """Return the text at a point of the timeline's last curve called `curve`.

    With "findIndex" as `find` it is the first curve of that name.
    """
    text = "return document.querySelector('#timeline .hoverlayer').textContent"
    page.execute_script("Plotly.Fx.unhover('timeline')")
    wait_for(lambda: not page.execute_script(text))
    page.execute_script(
        "const chart = document.getElementById('timeline');"
        f"const curve = chart.data.{find}((each) => each.name === arguments[0]);"
        "const subplot = `xy${(chart.data[curve].yaxis || 'y').slice(1)}`;"
        "Plotly.Fx.hover(chart, [{ curveNumber: curve, pointNumber: arguments[1] }], subplot)",
        curve,
        point,
    )
    found: str = wait_for(lambda: page.execute_script(text))
    return found


def requested(browser: Any) -> set[str]:
    """Return the addresses that the page asked for."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = (
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    )
    return {url for url in urls if not url.startswith(("data:", "blob:"))}


def assert_quiet(browser: Any) -> None:
    """Check that the page logged nothing."""
    assert browser.get_log("browser") == []


def assert_fits(browser: Any, width: int, *, tables: bool = False) -> None:
    """Check that the page is not wider than the window; with `tables`, no table scrolls either."""
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.documentElement.clientWidth") >= width - 20
    if tables:
        wide = (
            "return [...document.querySelectorAll('.scroll')]"
            ".filter((box) => box.scrollWidth > box.clientWidth + 1)"
            ".map((box) => box.getAttribute('aria-label') || box.getAttribute('aria-labelledby'))"
        )
        assert browser.execute_script(wide) == []


@contextmanager
def emulate_print(browser: Any) -> Iterator[None]:
    """Show the page as on paper."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    yield
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
