"""The page of a profile in a browser, loaded once for all that a test checks on it."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records.profile import Profile
from tests.reports import profiles, tied_xray
from tests.reports.browsing import (
    RANGE,
    TILES,
    assert_fits,
    assert_quiet,
    buttons,
    downloaded,
    drawn,
    emulate_print,
    hover_text,
    is_free_of_images,
    is_pressed,
    requested,
    wait_for,
)
from tests.reports.findings import TIED
from tests.reports.rendering import replaced

AXIS = "const axis = document.getElementById('timeline')._fullLayout.yaxis; return "
MODE = "return document.getElementById('timeline')._fullLayout.dragmode"
STEP_NAMES = (
    "const steps = document.getElementById('timeline').data.find((t) => t.name === 'steps');"
    "return steps.text.filter((text) => text)"
)
ROWS = "return document.querySelectorAll('#copies-0 tbody tr').length"
NAMES = "return [...document.querySelectorAll('#copies-0 tbody th')].map((c) => c.textContent)"
SIZES = (
    "return [...document.querySelectorAll('#copies-0 tbody tr')]"
    ".map((row) => Number(row.cells[3].title.replace(/[^0-9]/g, '')))"
)
LEGEND = "return [...document.querySelectorAll('#timeline .legendtext')].map((e) => e.textContent)"
MODEBAR = (
    "return [...document.querySelectorAll('#timeline .modebar-btn')].map((e) => e.dataset.title)"
)


def test_the_timeline_is_drawn_and_hovered(opened: Callable[..., Any]) -> None:
    page = drawn(opened(profiles.tied_if(), inline=True))
    (only,) = requested(page)
    assert only.startswith("file:///")
    assert_fits(page, 1280)
    assert set(page.execute_script(LEGEND)) >= {"file-backed", "anonymous"}
    assert "shared" not in page.execute_script(LEGEND)
    assert {*page.execute_script(MODEBAR)} == {
        *("Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes")
    }
    # Runs and samples have texts of their own.
    assert "run 3: 28 ms, peak 1.54 GiB" in hover_text(page, "runs", 2)
    last = len(profiles.tied_if().samples.t_s) - 1
    assert "run 10: 29 ms, peak 1.54 GiB" in hover_text(page, "resident", last)
    assert "run" not in hover_text(page, "resident", 60)
    assert_quiet(page)


def test_the_timeline_is_zoomed_and_moved_by_buttons_and_keys(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.common.keys import Keys

    page = drawn(opened(profiles.tied_if()))
    choices = buttons(page)
    # They stand in one line and choose a phase by keyboard.
    assert len({button.location["y"] for button in choices.values()}) == 1
    assert [*choices][:3] == ["whole run", "from loading on", "start"]
    assert page.execute_script(RANGE)[0] > 0.1
    choices["whole run"].send_keys(Keys.ENTER)
    wait_for(lambda: page.execute_script(RANGE)[0] == 0)
    choices["parse"].send_keys(Keys.SPACE)
    wait_for(lambda: page.execute_script(RANGE)[1] < 1)
    assert is_pressed(choices["parse"])
    assert not is_pressed(choices["whole run"])
    # Steps are named where there is space.
    choices["initialize"].click()
    wait_for(lambda: "save initializers" in page.execute_script(STEP_NAMES))
    choices["whole run"].click()
    wait_for(lambda: "save initializers" not in page.execute_script(STEP_NAMES))
    page.execute_script("document.getElementById('timeline').focus()")
    whole = page.execute_script(RANGE)

    def press(key: str) -> Any:
        before = page.execute_script(RANGE)
        page.switch_to.active_element.send_keys(key)
        wait_for(lambda: page.execute_script(RANGE) != before)
        return page.execute_script(RANGE)

    first, end = press("+")
    assert end - first == pytest.approx((whole[1] - whole[0]) / 2)
    assert press(Keys.ARROW_RIGHT)[0] > first
    assert press("0")[0] == 0
    page.find_element("css selector", "button.pan").click()
    wait_for(lambda: page.execute_script(MODE) == "pan")
    # Without the baseline the axis starts at its size, labelled 0.
    assert page.execute_script(AXIS + "axis.title.text") == "resident, MiB"
    page.find_element("xpath", "//button[.='without baseline']").click()
    assert page.execute_script(AXIS + "axis.title.text") == "MiB above baseline"
    assert page.execute_script(AXIS + "axis.range[0]") == 46
    assert page.execute_script(AXIS + "[axis.tickvals[0], axis.ticktext[0]]") == [46, "0"]
    assert_quiet(page)


def test_shared_memory_is_a_band_of_its_own(opened: Callable[..., Any]) -> None:
    page = drawn(opened(profiles.with_shared()))
    assert "shared" in page.execute_script(LEGEND)
    assert "shared 10 MiB" in hover_text(page, "resident", 300)
    assert_quiet(page)


@pytest.mark.parametrize(
    "build",
    [profiles.failed, profiles.killed, profiles.tiny, profiles.sampled, profiles.uneven],
    ids=lambda build: build.__name__,
)
def test_a_narrow_page_draws_without_an_error(
    opened: Callable[..., Any], build: Callable[[], Profile]
) -> None:
    page = drawn(opened(build(), width=480))
    assert_fits(page, 480)
    page.execute_script("document.getElementById('ranges').lastElementChild.click()")
    assert_quiet(page)


def test_a_profile_without_samples_has_its_words(opened: Callable[..., Any]) -> None:
    page = opened(profiles.nothing_seen())
    assert "Failed in start at 46 MiB" in page.find_element("tag name", "body").text
    assert_quiet(page)


def test_both_themes_follow_the_system_and_paper_is_light(opened: Callable[..., Any]) -> None:
    background = "return getComputedStyle(document.documentElement).backgroundColor"
    ink = "return document.querySelector('#timeline .xtick text').style.fill"
    page = drawn(opened(replaced(tied_xray.with_xrays(), findings=(TIED,))))
    light = page.execute_script(background), page.execute_script(ink)
    theme = {"name": "prefers-color-scheme", "value": "dark"}
    # Chromium tells a page of a change of media when it renders it, which it does in front.
    page.execute_cdp_cmd("Page.bringToFront", {})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    wait_for(lambda: page.execute_script(ink) != light[1])
    assert page.execute_script(background) != light[0]
    assert page.find_element("id", "rule-MD103").get_attribute("open") is None
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.find_element("id", "rule-MD103").get_attribute("open") is not None
    wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    assert_quiet(page)


def test_hostile_names_stay_text_and_the_record_is_downloaded(opened: Callable[..., Any]) -> None:
    for width in (1280, 390):
        page = drawn(opened(profiles.hostile(), width=width))
        assert_fits(page, width)
    assert page.execute_script("return document.querySelectorAll('main b').length") == 0
    assert profiles.HOSTILE in page.execute_script(
        "return document.querySelector('main').innerText"
    )
    page.execute_script("Plotly.Fx.hover('timeline', [{ curveNumber: 2, pointNumber: 100 }])")
    hover = "return document.querySelector('#timeline .hoverlayer').textContent"
    label = wait_for(lambda: page.execute_script(hover))
    assert "</script><img src=x onerror=alert(1)>" in label
    assert is_free_of_images(page)
    assert downloaded(page, "profile.json", Profile) == profiles.hostile()
    assert_quiet(page)


@pytest.mark.slow
def test_a_long_profile_is_drawn_and_downloaded(opened: Callable[..., Any]) -> None:
    page = drawn(opened(profiles.long()))
    assert downloaded(page, "profile.json", Profile) == profiles.long()
    assert_quiet(page)


def test_the_copies_fit_and_are_sorted_filtered_and_printed(opened: Callable[..., Any]) -> None:
    for width in (390, 480, 1280):
        page = drawn(opened(tied_xray.with_attribution(), width=width))
        assert_fits(page, width, tables=width == 480)
    assert page.execute_script(NAMES)[0] == "model.shared.weight +1 more"
    heading = page.find_element("css selector", "#copies-0 thead th:nth-child(4) button")
    heading.click()
    down = page.execute_script(SIZES)
    heading.send_keys("\n")
    assert down == sorted(down, reverse=True)
    assert page.execute_script(SIZES) == sorted(down)
    # Names are sorted from the first letter on.
    page.find_element("css selector", "#copies-0 thead th button").click()
    order = "return document.querySelector('#copies-0 th').ariaSort"
    assert page.execute_script(order) == "ascending"
    assert page.execute_script(NAMES)[0] == "bias"
    # A weight is found by each of its names.
    field = page.find_element("css selector", ".filters input")
    field.send_keys("lm_head.weight")
    assert page.execute_script(NAMES) == ["model.shared.weight +1 more"] * 3
    with emulate_print(page):
        printed_width = "return document.querySelector('#copies-0 thead button').offsetWidth"
        assert page.execute_script(printed_width) > 0
        assert page.find_element("css selector", ".filters [role=status]").is_displayed()
        assert not field.is_displayed()
    assert_quiet(page)


def test_moments_and_copies_are_chosen(opened: Callable[..., Any]) -> None:
    page = opened(tied_xray.with_xrays())
    wait_for(lambda: page.execute_script(TILES) > 5)
    every = page.execute_script(ROWS)
    page.find_element("css selector", ".filters input").send_keys("layer.1")
    assert 0 < page.execute_script(ROWS) < every
    page.find_element("css selector", ".filters select").send_keys("packed")
    wait_for(lambda: page.execute_script(ROWS) == 0)
    assert page.find_element("css selector", ".filters [role=status]").text.startswith("0 of")
    before = page.execute_script(TILES)
    page.find_element("id", "moment").send_keys("end of parse")
    wait_for(lambda: page.execute_script(TILES) != before)
    assert page.find_element("id", "copies-1").is_displayed()
    assert not page.find_element("id", "copies-0").is_displayed()
    assert_quiet(page)


def test_all_of_many_weights_are_found_and_sorted(opened: Callable[..., Any]) -> None:
    first = tied_xray.attribution().copies[0]
    copies = (
        replaced(first, weights=(f"layers.{i}/weight",), address=i << 12) for i in range(1200)
    )
    page = opened(replaced(tied_xray.with_attribution(), attribution__copies=tuple(copies)))
    status = page.find_element("css selector", ".filters [role=status]")
    assert not status.is_displayed()  # weights with a single copy each are folded
    page.find_element("css selector", ".xray details > summary").click()
    assert status.text == "1,200 of 1,200 rows, the first 100 shown"
    assert page.execute_script(ROWS) == 100
    page.find_element("id", "more-0").click()
    assert page.execute_script(ROWS) == 200
    heading = page.find_element("css selector", "#copies-0 thead th button")
    heading.click()
    heading.click()
    assert page.execute_script(NAMES)[0] == "layers.1199/weight"
    page.find_element("css selector", ".filters input").send_keys("layers.1187/")
    assert status.text == "1 of 1,200 rows"
    assert page.execute_script(NAMES) == ["layers.1187/weight"]
    assert page.find_element("css selector", "#copies-0 td.at").text == f"{1187 << 12:#x}"
    assert not page.find_element("id", "more-0").is_displayed()
    assert_quiet(page)
