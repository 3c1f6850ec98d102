"""The pages of fixes and tunings in a real browser: they draw, sort, copy, and obey no name."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records import codec
from memdiag.records.fix import Fix
from tests.reports import fix_records, tuning_records
from tests.reports.browsing import requested, wait_for
from tests.reports.fix_records import hostile

RATIOS = "return document.querySelectorAll('#latencies .scatterlayer .point').length"
POINTS = "return document.querySelectorAll('#pareto .scatterlayer .point').length"


def hostile_fix() -> Fix:
    return hostile(fix_records.verified())


def hostile_tuning() -> Fix:
    return hostile(tuning_records.tuning(remedies=fix_records.verified().remedies))


@pytest.mark.parametrize(
    ("build", "dark", "width"),
    [(fix_records.verified, False, 1280), (hostile_fix, True, 390)],
    ids=["light", "hostile-dark-phone"],
)
def test_a_fix_draws_its_ratios_without_an_error_or_a_request(
    opened: Callable[..., Any], build: Callable[[], Fix], dark: bool, width: int
) -> None:
    page = opened(build(), dark=dark, width=width)
    wait_for(lambda: page.execute_script(RATIOS) == 2)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.images.length") == 0
    assert page.get_log("browser") == []
    assert {url.rpartition("/")[2] for url in requested(page)} == {"fix.html"}


@pytest.mark.parametrize(
    ("build", "dark", "width"),
    [(tuning_records.tuning, False, 1280), (hostile_tuning, True, 390)],
    ids=["light", "hostile-dark-phone"],
)
def test_a_tuning_draws_its_points_without_an_error_or_a_request(
    opened: Callable[..., Any], build: Callable[[], Fix], dark: bool, width: int
) -> None:
    page = opened(build(), dark=dark, width=width)
    wait_for(lambda: page.execute_script(POINTS) == 5)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.images.length") == 0
    assert page.get_log("browser") == []
    assert {url.rpartition("/")[2] for url in requested(page)} == {"tune.html"}


def test_a_hostile_name_stays_text_also_on_hover(opened: Callable[..., Any]) -> None:
    page = opened(hostile_tuning())
    wait_for(lambda: page.execute_script(POINTS) == 5)
    assert page.execute_script("return document.querySelectorAll('main b').length") == 0
    page.execute_script("Plotly.Fx.hover('pareto', [{curveNumber: 1, pointNumber: 0}])")
    label = wait_for(
        lambda: page.execute_script(
            "return document.querySelector('#pareto .hoverlayer').textContent"
        )
    )
    assert "optimization-off" in label
    assert "<img src=x onerror=alert(1)>" in label
    assert page.execute_script("return document.images.length") == 0
    assert page.get_log("browser") == []


def test_the_points_are_sorted_by_their_headings_from_the_keyboard(
    opened: Callable[..., Any],
) -> None:
    page = opened(tuning_records.tuning())
    wait_for(lambda: page.execute_script(POINTS) == 5)
    script = (
        "return [...document.querySelectorAll('#points tbody tr')]"
        ".map((row) => Number(row.cells[2].dataset.value))"
    )
    heading = page.find_element("css selector", "#points thead th:nth-child(3) button")
    heading.send_keys("\n")
    down = page.execute_script(script)
    heading.send_keys("\n")
    assert len(down) == 6
    assert down == sorted(down, reverse=True)
    assert page.execute_script(script) == sorted(down)
    assert page.execute_script("return document.querySelector('#points th').ariaSort") is None


def test_the_program_is_copied_or_selected(opened: Callable[..., Any]) -> None:
    page = opened(tuning_records.tuning())
    button = page.find_element("id", "copy")
    button.click()
    wait_for(lambda: button.text != "Copy")
    if button.text == "Copied":
        grant = {"permissions": ["clipboardReadWrite"], "origin": "file://"}
        page.execute_cdp_cmd("Browser.grantPermissions", grant)
        read = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
        assert page.execute_async_script(read) == "import onnxruntime as ort\n"
    else:
        assert page.execute_script("return String(getSelection())").strip() == (
            "import onnxruntime as ort"
        )


@pytest.mark.parametrize(
    ("build", "name"),
    [(fix_records.verified, "fix.json"), (tuning_records.tuning, "tune.json")],
    ids=["fix", "tuning"],
)
def test_the_record_can_be_saved_from_the_page(
    opened: Callable[..., Any], build: Callable[[], Fix], name: str
) -> None:
    page = opened(build())
    target = page.downloads / name
    page.execute_script("document.getElementById('download').click()")
    wait_for(target.exists)
    assert codec.load(target, Fix) == build()


def test_on_paper_nothing_is_dark_and_headings_stay(opened: Callable[..., Any]) -> None:
    page = opened(tuning_records.tuning(), dark=True)
    wait_for(lambda: page.execute_script(POINTS) == 5)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    ink = "return document.querySelector('#pareto .xtick text').style.fill"
    wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    shown = "return document.querySelector('#points thead button').offsetWidth"
    assert page.execute_script(shown) > 0
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert page.get_log("browser") == []
