"""Who owns it, in a real browser: sorting, filtering, the moment and the addresses."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memdiag.records.profile import Profile
from tests.reports import profiles, tied_xray
from tests.reports.attributions import SHARED, attribution
from tests.reports.browsing import DRAWN, wait_for


def test_the_copies_are_sorted_by_their_headings(opened: Callable[..., Any]) -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), attribution=attribution(*SHARED))
    browser = opened(profile)
    wait_for(lambda: browser.execute_script(DRAWN))

    def sizes() -> list[int]:
        script = (
            "return [...document.querySelectorAll('#copies-0 tbody tr')]"
            ".map((row) => Number(row.cells[3].title.replace(/[^0-9]/g, '')))"
        )
        found: list[int] = browser.execute_script(script)
        return found

    heading = browser.find_element("css selector", "#copies-0 thead th:nth-child(4) button")
    heading.click()
    down = sizes()
    heading.send_keys("\n")
    assert down == sorted(down, reverse=True)
    assert sizes() == sorted(down)
    assert len(down) == 3
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_names_are_sorted_from_the_first_letter_on_and_headings_are_printed(
    opened: Callable[..., Any],
) -> None:
    page = opened(tied_xray.with_attribution())
    wait_for(lambda: page.execute_script(DRAWN))
    heading = "document.querySelector('#copies-0 thead th')"
    names = "return [...document.querySelectorAll('#copies-0 tbody th')].map((c) => c.textContent)"
    assert page.execute_script(names)[0] == "model.shared.weight +1 more"
    page.execute_script(f"{heading}.querySelector('button').click()")
    assert page.execute_script(f"return {heading}.ariaSort") == "ascending"
    assert page.execute_script(names)[0] == "bias"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = page.execute_script(f"return {heading}.querySelector('button').offsetWidth")
    assert page.find_element("css selector", ".filters [role=status]").is_displayed()
    assert not page.find_element("css selector", ".filters input").is_displayed()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown > 0
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_owners_do_not_run_over_the_edge(opened: Callable[..., Any], width: int) -> None:
    page = opened(tied_xray.with_attribution(), width=width)
    wait_for(lambda: page.execute_script(DRAWN))
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_copies_are_filtered_and_the_moment_is_chosen(opened: Callable[..., Any]) -> None:
    page = opened(tied_xray.with_xrays())
    tiles = "return document.querySelectorAll('#treemap .treemaplayer .slice').length"
    wait_for(lambda: page.execute_script(tiles) > 5)
    shown = "return document.querySelectorAll('#copies-0 tbody tr').length"
    every = page.execute_script(shown)
    page.find_element("css selector", ".filters input").send_keys("layer.1")
    assert 0 < page.execute_script(shown) < every
    kinds = page.find_element("css selector", ".filters select")
    kinds.send_keys("packed")
    wait_for(lambda: page.execute_script(shown) == 0)
    assert page.find_element("css selector", ".filters [role=status]").text.startswith("0 of")
    before = page.execute_script(tiles)
    page.find_element("id", "moment").send_keys("end of parse")
    wait_for(lambda: page.execute_script(tiles) != before)
    assert page.find_element("id", "copies-1").is_displayed()
    assert not page.find_element("id", "copies-0").is_displayed()
    assert page.get_log("browser") == []


def test_the_address_map_tells_what_has_the_focus(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.common.keys import Keys

    page = opened(tied_xray.with_xrays())
    strip = page.find_element("id", "addresses")
    wait_for(lambda: strip.get_attribute("aria-valuemax") != "0")
    strip.send_keys(Keys.HOME)
    words = page.find_element("id", "stretch")
    assert words.text.startswith("model.shared.weight: original, 506 MiB resident at 0x1000")
    strip.send_keys(Keys.ARROW_RIGHT)
    assert "transposed" in words.text
    assert strip.get_attribute("aria-valuetext") == words.text
    assert page.get_log("browser") == []


def many_weights(count: int) -> Profile:
    """Return a profile in which `count` weights have a copy each."""
    first = tied_xray.attribution().copies[0]
    copies = tuple(
        msgspec.structs.replace(first, weights=(f"layers.{i}/weight",), address=i << 12)
        for i in range(count)
    )
    record = msgspec.structs.replace(tied_xray.attribution(), copies=copies)
    return msgspec.structs.replace(profiles.tied_if(), attribution=record)


def test_every_one_of_five_thousand_weights_is_found(opened: Callable[..., Any]) -> None:
    page = opened(many_weights(5000))
    rows = "return document.querySelectorAll('#copies-0 tbody tr').length"
    status = page.find_element("css selector", ".filters [role=status]")
    assert not status.is_displayed()  # weights with a single copy each are folded away
    page.find_element("css selector", ".xray details > summary").click()
    assert status.text == "5,000 of 5,000 rows, the first 100 shown"
    assert page.execute_script(rows) == 100
    page.find_element("id", "more-0").click()
    assert page.execute_script(rows) == 200
    page.find_element("css selector", ".filters input").send_keys("layers.4987/")
    assert status.text == "1 of 5,000 rows"
    assert page.find_element("css selector", "#copies-0 tbody th").text == "layers.4987/weight"
    assert page.find_element("css selector", "#copies-0 td.at").text == f"{4987 << 12:#x}"
    assert not page.find_element("id", "more-0").is_displayed()
    assert page.get_log("browser") == []


def test_all_weights_are_sorted_and_not_only_those_that_are_shown(
    opened: Callable[..., Any],
) -> None:
    page = opened(many_weights(300))
    page.find_element("css selector", ".xray details > summary").click()
    heading = page.find_element("css selector", "#copies-0 thead th button")
    heading.click()
    heading.click()
    first = "return document.querySelector('#copies-0 tbody th').textContent"
    assert page.execute_script(first) == "layers.299/weight"


def test_a_shared_weight_is_found_by_each_of_its_names(opened: Callable[..., Any]) -> None:
    page = opened(tied_xray.with_attribution())
    page.find_element("css selector", ".filters input").send_keys("lm_head.weight")
    names = "return [...document.querySelectorAll('#copies-0 tbody th')].map((c) => c.textContent)"
    assert page.execute_script(names) == ["model.shared.weight +1 more"] * 3


@pytest.mark.parametrize("build", [tied_xray.with_attribution, profiles.uneven])
def test_no_table_of_a_narrow_page_is_scrolled_sideways(
    opened: Callable[..., Any], build: Callable[[], Profile]
) -> None:
    page = opened(build(), width=480)
    wide = (
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((box) => box.scrollWidth > box.clientWidth + 1)"
        ".map((box) => box.getAttribute('aria-label') || box.getAttribute('aria-labelledby'))"
    )
    assert page.execute_script(wide) == []
