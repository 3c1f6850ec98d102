"""The timeline of a GPU on the page of a profile, in a browser."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records.profile import Profile
from tests.device.replay import replayed_profile
from tests.reports.browsing import assert_fits, assert_quiet, wait_for

CURVES = "return document.querySelectorAll('#device .scatterlayer .trace').length"
RANGES = (
    "return ['timeline', 'device'].map("
    "(id) => document.getElementById(id)._fullLayout.xaxis.range.map((x) => Math.round(x)))"
)
HIGHEST = (
    "const curve = document.getElementById('device').data.find((trace) => trace.name === 'peak');"
    "return curve.y[0]"
)
LEGEND = "return [...document.querySelectorAll('#device .legendtext')].map((e) => e.textContent)"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("replayed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return replayed_profile("conv_shrink", folder, monkeypatch)


def test_the_timeline_of_the_gpu_has_the_exact_peak_and_the_range_of_the_hosts(
    profile: Profile, opened: Callable[..., Any]
) -> None:
    page = opened(profile)
    wait_for(lambda: page.execute_script(CURVES) >= 3)
    assert_fits(page, 1280)
    assert set(page.execute_script(LEGEND)) >= {"context and code", "allocations"}
    assert profile.device is not None
    assert profile.device.peak_bytes is not None
    assert page.execute_script(HIGHEST) == pytest.approx(profile.device.peak_bytes / (1 << 30))
    host, device = page.execute_script(RANGES)
    assert host == device
    (first_run,) = (
        button
        for button in page.find_elements("css selector", "#ranges button")
        if button.text == "first_run"
    )
    first_run.click()
    wait_for(lambda: page.execute_script(RANGES)[0] != host)
    wait_for(lambda: len(set(map(tuple, page.execute_script(RANGES)))) == 1)
    assert_quiet(page)


def test_the_page_fits_a_narrow_window_in_the_dark(
    profile: Profile, opened: Callable[..., Any]
) -> None:
    page = opened(profile, dark=True, width=400)
    wait_for(lambda: page.execute_script(CURVES) >= 3)
    assert_fits(page, 400)
    assert_quiet(page)
