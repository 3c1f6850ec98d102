"""The timeline in a real browser: what is drawn, told on hover, and reached by keys."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records.profile import Profile
from tests.reports import profiles
from tests.reports.browsing import DRAWN, wait_for


def hovered(page: Any, curve: str, point: int) -> str:
    """Return what is told of a point of the curve called `curve`."""
    text = "return document.querySelector('#timeline .hoverlayer').textContent"
    page.execute_script("Plotly.Fx.unhover('timeline')")
    wait_for(lambda: not page.execute_script(text))
    page.execute_script(
        "const chart = document.getElementById('timeline');"
        "const curve = chart.data.findLastIndex((each) => each.name === arguments[0]);"
        "const subplot = `xy${(chart.data[curve].yaxis || 'y').slice(1)}`;"
        "Plotly.Fx.hover(chart, [{ curveNumber: curve, pointNumber: arguments[1] }], subplot)",
        curve,
        point,
    )
    found: str = wait_for(lambda: page.execute_script(text))
    return found


def test_a_run_is_told_by_its_number_duration_and_peak(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    assert "run 3: 28 ms, peak 1.54 GiB" in hovered(page, "runs", 2)
    last = len(profiles.tied_if().samples.t_s) - 1
    assert "run 10: 29 ms, peak 1.54 GiB" in hovered(page, "resident", last)
    assert "run" not in hovered(page, "resident", 60)
    assert page.get_log("browser") == []


@pytest.mark.parametrize("build", [profiles.tied_if, profiles.with_shared])
def test_shared_memory_is_a_band_only_where_there_is_any(
    opened: Callable[..., Any], build: Callable[[], Profile]
) -> None:
    profile = build()
    page = opened(profile)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    legend = (
        "return [...document.querySelectorAll('#timeline .legendtext')].map((e) => e.textContent)"
    )
    named = page.execute_script(legend)
    assert ("shared" in named) is bool(profile.samples.shared_bytes)
    assert {"file-backed", "anonymous"} <= set(named)
    assert ("shared 10 MiB" in hovered(page, "resident", 300)) is ("shared" in named)


def test_all_buttons_of_a_timeline_stand_in_one_line(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if(), width=1280)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    tops = "return [...document.querySelectorAll('#ranges button')].map((b) => b.offsetTop)"
    assert len(set(page.execute_script(tops))) == 1


def test_a_phase_is_shown_by_its_button_from_the_keyboard(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.common.keys import Keys

    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    shown = "return document.getElementById('timeline')._fullLayout.xaxis.range"
    buttons = {b.text: b for b in page.find_elements("css selector", "#ranges button")}
    assert list(buttons)[:3] == ["whole run", "from loading on", "start"]
    assert page.execute_script(shown)[0] > 0.1
    buttons["whole run"].send_keys(Keys.ENTER)
    wait_for(lambda: page.execute_script(shown)[0] == 0)
    buttons["parse"].send_keys(Keys.SPACE)
    wait_for(lambda: page.execute_script(shown)[1] < 1)
    assert buttons["parse"].get_attribute("aria-pressed") == "true"
    assert buttons["whole run"].get_attribute("aria-pressed") == "false"


def test_the_chart_offers_no_way_to_send_it_anywhere(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    titles = {
        button.get_attribute("data-title")
        for button in page.find_elements("css selector", "#timeline .modebar-btn")
    }
    assert titles == {
        "Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes",
    }  # fmt: skip


def test_the_timeline_moves_and_zooms_by_keys(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    shown = "return document.getElementById('timeline')._fullLayout.xaxis.range.map(Number)"
    chart = page.find_element("id", "timeline")
    whole = page.execute_script(shown)
    page.execute_script("arguments[0].focus()", chart)

    def press(keys: str) -> list[float]:
        before = page.execute_script(shown)
        page.switch_to.active_element.send_keys(keys)
        wait_for(lambda: page.execute_script(shown) != before)
        found: list[float] = page.execute_script(shown)
        return found

    first, last = press("+")
    assert last - first == pytest.approx((whole[1] - whole[0]) / 2)
    assert press("\ue014")[0] > first  # the right arrow
    assert press("0")[0] == 0
    page.find_element("css selector", "button.pan").click()
    mode = "return document.getElementById('timeline')._fullLayout.dragmode"
    wait_for(lambda: page.execute_script(mode) == "pan")
    assert page.get_log("browser") == []


def test_a_step_is_named_where_there_is_room_for_it(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    named = (
        "const steps = document.getElementById('timeline').data.find((t) => t.name === 'steps');"
        "return steps.text.filter((text) => text)"
    )
    assert "save initializers" not in page.execute_script(named)
    buttons = {b.text: b for b in page.find_elements("css selector", "#ranges button")}
    buttons["initialize"].click()
    wait_for(lambda: "save initializers" in page.execute_script(named))
    buttons["whole run"].click()
    wait_for(lambda: "save initializers" not in page.execute_script(named))
    assert page.get_log("browser") == []


def test_an_axis_above_the_baseline_starts_there_with_0(opened: Callable[..., Any]) -> None:
    page = opened(profiles.tied_if(), width=1280)
    wait_for(lambda: page.execute_script(DRAWN))
    axis = "const axis = document.getElementById('timeline')._fullLayout.yaxis; return "
    assert page.execute_script(axis + "axis.title.text") == "resident, MiB"
    (button,) = [
        each
        for each in page.find_elements("css selector", "#ranges button")
        if each.text == "without baseline"
    ]
    button.click()
    assert page.execute_script(axis + "axis.title.text") == "MiB above baseline"
    assert page.execute_script(axis + "axis.range[0]") == 46
    assert page.execute_script(axis + "[axis.tickvals[0], axis.ticktext[0]]") == [46, "0"]
