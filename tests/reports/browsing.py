"""What tests of pages ask the browser for."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from memdiag.records import codec
from memdiag.records.base import Record

R = TypeVar("R", bound=Record)
PATIENCE_S = 20.0
TRACES = "return document.querySelectorAll('#timeline .scatterlayer .trace').length"
RANGE = "return document.getElementById('timeline')._fullLayout.xaxis.range.map(Number)"
TILES = "return document.querySelectorAll('#treemap .treemaplayer .slice').length"


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return what `condition` returns once that is something."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.02)
    return value


def drawn(page: Any, *, traces: int = 3) -> Any:
    """Return the page once its timeline is drawn."""
    wait_for(lambda: page.execute_script(TRACES) >= traces)
    return page


def downloaded(page: Any, name: str, kind: type[R]) -> R:
    """Return the record that the page's button saves as `name`."""
    target = page.downloads / name
    target.unlink(missing_ok=True)
    page.execute_script("document.getElementById('download').click()")
    wait_for(target.exists)
    return codec.load(target, kind)


def buttons(page: Any) -> dict[str, Any]:
    """Return the buttons above the timeline by their texts."""
    return {each.text: each for each in page.find_elements("css selector", "#ranges > button")}


def is_pressed(button: Any) -> bool:
    """Return whether the button of a range says that it is chosen."""
    return bool(button.get_attribute("aria-pressed") == "true")


def is_free_of_images(page: Any) -> bool:
    """Return whether no name has become an image."""
    return bool(page.execute_script("return document.images.length") == 0)


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
    label: str = wait_for(lambda: page.execute_script(text))
    return label


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
