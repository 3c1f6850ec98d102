"""The page in a real browser: it draws, asks the network for nothing, and obeys no name."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag import reporters
from memdiag.records import codec
from memdiag.records.attribution import AddressRange
from memdiag.records.comparison import Comparison
from memdiag.records.profile import PhaseAttribution, Profile
from memdiag.reporters import comparison
from tests.reporters import comparisons, profiles, tied_xray
from tests.reporters.attributions import SHARED, attribution
from tests.reporters.findings import TIED

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
PATIENCE_S = 20.0
DRAWN = "return document.querySelectorAll('#timeline .scatterlayer .trace').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    binary = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver was found on PATH")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    folder = tmp_path_factory.mktemp("browser")
    for argument in (*ARGUMENTS, f"--user-data-dir={folder / 'user'}"):
        options.add_argument(argument)
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(folder / "downloads")}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started: Any = webdriver.Chrome(options=options, service=Service(driver))
    started.downloads = folder / "downloads"
    yield started
    started.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    """A function that opens the page of a record in a theme and a width."""

    def open_page(record: Profile | Comparison, *, dark: bool = False, width: int = 1280) -> Any:
        if isinstance(record, Comparison):
            (page,) = comparison.write(record, tmp_path, ("html",))
        else:
            (page,) = reporters.write(record, tmp_path, ("html",))
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


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.02)
    return value


def requested(browser: Any) -> set[str]:
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = (
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    )
    return {url for url in urls if not url.startswith(("data:", "blob:"))}


@pytest.mark.parametrize(
    "build",
    [
        profiles.tied_if,
        profiles.failed,
        profiles.killed,
        profiles.tiny,
        profiles.sampled,
        profiles.not_run,
        profiles.hostile,
        profiles.long,
    ],
    ids=lambda build: build.__name__,
)
def test_it_draws_without_an_error_or_a_request(
    opened: Callable[..., Any], build: Callable[[], Profile]
) -> None:
    page = opened(build())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    page.execute_script("document.getElementById('ranges').lastElementChild.click()")
    assert page.get_log("browser") == []
    (only,) = requested(page)
    assert only.startswith("file:///")


def test_a_profile_in_which_nothing_was_seen_shows_its_words(opened: Callable[..., Any]) -> None:
    page = opened(profiles.nothing_seen())
    assert "Failed in start at 46 MiB" in page.find_element("tag name", "body").text
    assert page.get_log("browser") == []


@pytest.mark.parametrize("build", [profiles.tied_if, profiles.hostile])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_runs_over_the_edge(
    opened: Callable[..., Any], build: Callable[[], Profile], width: int
) -> None:
    page = opened(build(), width=width)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.documentElement.clientWidth") >= width - 20


def test_both_themes_have_their_own_colours_and_follow_the_system(
    opened: Callable[..., Any],
) -> None:
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    ink = "return document.querySelector('#timeline .xtick text').style.fill"
    page = opened(profiles.tied_if())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    light = page.execute_script(ground), page.execute_script(ink)
    theme = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    wait_for(lambda: page.execute_script(ink) != light[1])
    assert page.execute_script(ground) != light[0]
    assert page.get_log("browser") == []


def test_a_hostile_name_stays_text_also_on_hover(opened: Callable[..., Any]) -> None:
    page = opened(profiles.hostile())
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    assert page.execute_script("return document.images.length") == 0
    assert page.execute_script("return document.querySelectorAll('main b').length") == 0
    assert profiles.HOSTILE in page.execute_script(
        "return document.querySelector('main').innerText"
    )
    hover = "Plotly.Fx.hover('timeline', [{curveNumber: arguments[0], pointNumber: 100}]);"
    page.execute_script(hover, 2)
    label = wait_for(
        lambda: page.execute_script(
            "const l = document.querySelector('#timeline .hoverlayer'); return l.textContent"
        )
    )
    assert "</script><img src=x onerror=alert(1)>" in label
    assert page.execute_script("return document.images.length") == 0
    assert page.get_log("browser") == []


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


@pytest.mark.parametrize("build", [profiles.hostile, profiles.long])
def test_the_profile_can_be_downloaded_from_the_page(
    opened: Callable[..., Any], build: Callable[[], Profile]
) -> None:
    profile = build()
    page = opened(profile)
    target = page.downloads / "profile.json"
    target.unlink(missing_ok=True)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    page.find_element("id", "download").click()
    wait_for(target.exists)
    assert codec.load(target, Profile) == profile


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


def test_the_copies_are_sorted_by_their_headings(opened: Callable[..., Any]) -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), attribution=attribution(*SHARED))
    browser = opened(profile)
    wait_for(lambda: browser.execute_script(DRAWN))

    def sizes() -> list[int]:
        script = (
            "return [...document.querySelectorAll('#copies-0 tbody tr')]"
            ".map((row) => Number(row.cells[3].dataset.value))"
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
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown > 0
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_owners_do_not_run_over_the_edge(opened: Callable[..., Any], width: int) -> None:
    page = opened(tied_xray.with_attribution(), width=width)
    wait_for(lambda: page.execute_script(DRAWN))
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("build", comparisons.ALL, ids=lambda build: build.__name__)
def test_a_comparison_draws_its_lines_without_an_error_or_a_request(
    opened: Callable[..., Any], build: Callable[[], Comparison], dark: bool
) -> None:
    record = build()
    page = opened(record, dark=dark)
    lines = sum(column.measured is not None for column in record.columns)
    drawn = "return document.querySelectorAll('#lines .scatterlayer .trace').length"
    wait_for(lambda: page.execute_script(drawn) == lines)
    assert page.get_log("browser") == []
    assert {url.rpartition("/")[2] for url in requested(page)} == {"comparison.html"}


def test_a_comparison_can_be_saved_from_its_page(opened: Callable[..., Any]) -> None:
    page = opened(comparisons.versions())
    page.execute_script("document.getElementById('download').click()")
    saved = page.downloads / "comparison.json"
    wait_for(saved.exists)
    assert codec.load(saved, Comparison) == comparisons.versions()


def with_xrays() -> Profile:
    """Return a profile with the X-rays of two moments, that have an address map."""
    record = tied_xray.attribution()
    ranges = tuple(
        AddressRange(
            start=0x1000 + (index << 32),
            bytes=owner.bytes,
            resident_bytes=owner.bytes,
            owner=index,
            copy=index if index < 3 else None,
        )
        for index, owner in enumerate(record.owners)
    )
    record = msgspec.structs.replace(record, ranges=ranges)
    earlier = PhaseAttribution(phase="parse", attribution=attribution(*SHARED))
    return msgspec.structs.replace(
        profiles.tied_if(), attribution=record, phase_attributions=(earlier,)
    )


def test_the_copies_are_filtered_and_the_moment_is_chosen(opened: Callable[..., Any]) -> None:
    page = opened(with_xrays())
    tiles = "return document.querySelectorAll('#treemap .treemaplayer .slice').length"
    wait_for(lambda: page.execute_script(tiles) > 5)
    shown = "return document.querySelectorAll('#copies-0 tbody tr:not([hidden])').length"
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

    page = opened(with_xrays())
    strip = page.find_element("id", "addresses")
    wait_for(lambda: strip.get_attribute("aria-valuemax") != "0")
    strip.send_keys(Keys.HOME)
    words = page.find_element("id", "stretch")
    assert words.text.startswith("model.shared.weight: original, 506 MiB resident at 0x1000")
    strip.send_keys(Keys.ARROW_RIGHT)
    assert "transposed" in words.text
    assert strip.get_attribute("aria-valuetext") == words.text
    assert page.get_log("browser") == []


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


def test_the_library_may_lie_beside_the_page(browser: Any, tmp_path: Path) -> None:
    page, library = reporters.write(with_xrays(), tmp_path, ("html",), plotly="directory")
    assert library.name == "plotly.min.js"
    assert page.stat().st_size < 1_000_000
    browser.get(page.as_uri())
    wait_for(lambda: browser.execute_script(DRAWN) >= 3)
    assert browser.get_log("browser") == []


def test_on_paper_every_rule_is_open_and_nothing_is_dark(opened: Callable[..., Any]) -> None:
    profile = msgspec.structs.replace(with_xrays(), findings=(TIED,))
    page = opened(profile, dark=True)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    assert page.find_element("id", "rule-MD103").get_attribute("open") is None
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.find_element("id", "rule-MD103").get_attribute("open") is not None
    ink = "return document.querySelector('#timeline .xtick text').style.fill"
    wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    assert page.get_log("browser") == []
