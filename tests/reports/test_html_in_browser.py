"""The page in a real browser: it draws, asks the network for nothing, and obeys no name."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memdiag.records import codec
from memdiag.records.profile import Profile
from tests.reports import profiles, tied_xray
from tests.reports.browsing import DRAWN, requested, wait_for
from tests.reports.findings import TIED


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
        pytest.param(profiles.long, marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    "build", [profiles.hostile, pytest.param(profiles.long, marks=pytest.mark.slow)]
)
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


def test_on_paper_every_rule_is_open_and_nothing_is_dark(opened: Callable[..., Any]) -> None:
    profile = msgspec.structs.replace(tied_xray.with_xrays(), findings=(TIED,))
    page = opened(profile, dark=True)
    wait_for(lambda: page.execute_script(DRAWN) >= 3)
    assert page.find_element("id", "rule-MD103").get_attribute("open") is None
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.find_element("id", "rule-MD103").get_attribute("open") is not None
    ink = "return document.querySelector('#timeline .xtick text').style.fill"
    wait_for(lambda: page.execute_script(ink) == "rgb(23, 32, 42)")
    assert page.get_log("browser") == []
