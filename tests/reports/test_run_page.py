"""The page of a recorded program, and its picture."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records.run import ProgramRun, TreeSamples
from memdiag.reports.page import MAX_PAGE_BYTES
from tests.reports import runs
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
from tests.reports.hostile_texts import hostile
from tests.reports.rendering import html, replaced

SECTIONS = (
    *("Findings", "Timeline", "Sessions", "Remarks", "Peak and largest rises", "Who owns it"),
    *("Input shapes", "Processes", "Notes", "Environment", "The program"),
)


def titles(run: ProgramRun) -> list[str]:
    return re.findall("<h2[^>]*>(.*?)</h2>", html(run))


def test_the_page_has_a_section_for_each_part() -> None:
    headings = titles(runs.server())
    assert [title for title in headings if " of " not in title and " in " not in title] == [
        *SECTIONS
    ]
    assert headings.count("Phases of session 4 (a.onnx)") == 1
    assert "Timeline" not in titles(runs.empty())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1020, "1,008 more sessions are in the tables only"),
        (13, "1 more session is in the tables only"),
        (12, None),
    ],
)
def test_what_is_not_listed_is_counted(count: int, text: str | None) -> None:
    page = html(runs.run(*(runs.session(i, created_s=i / 1000) for i in range(1, count + 1))))
    assert ("in the tables only" in page) == (text is not None)
    assert text is None or text in page
    assert ("and 20 more rows, in the record (JSON)." in page) == (count == 1020)
    assert len(page) < MAX_PAGE_BYTES


def page_of(*samples: tuple[float, int]) -> str:
    """Return the page of a recording with these times and sizes."""
    times, sizes = zip(*samples, strict=True)
    none: dict[str, Any] = dict.fromkeys(("proportional_t_s", "pss_bytes", "swap_bytes"), ())
    return html(runs.run(samples=TreeSamples(t_s=times, rss_bytes=sizes, **none)))


def test_the_longest_time_between_samples_is_stated() -> None:
    # Of equal samples only the first and last are stored: the time between them is no gap.
    level = (0.0, 1), (0.01, 2), (8.0, 2)
    assert "Two samples that differ are at most 10 ms apart" in page_of(*level)
    assert "Two samples that differ are at most 350 ms apart" in page_of(*level, (8.35, 9))
    assert "samples that differ" not in page_of((0.0, 1), (8.0, 1))


def test_marks_of_runs_and_shapes_are_on_the_page() -> None:
    page = html(runs.server())
    assert "raised the peak" in page
    assert "x: 1×3×640×640" in page
    charts = page.partition('id="charts">')[2].partition("</script>")[0]
    assert "run of session 1 (a.onnx)" in charts


def test_a_finding_has_the_documentation_of_its_rule() -> None:
    known, unknown = "duplicate-session", "no-such-rule"
    (finding,) = runs.server().findings
    findings = tuple(replaced(finding, name=rule) for rule in (known, unknown))
    page = html(replaced(runs.server(), findings=findings))
    assert f'<details id="rule-{known}">' in page
    assert f'<details id="rule-{unknown}">' not in page


HOVER_TEXTS = (
    ("runs", 0, ("peak raised to 210 MiB", "session 1 (a.onnx)", "x: 1×3×640×640")),
    ("phases", 0, ("parse of session 1",)),
    ("sessions", 0, ("session 1 a.onnx", "created at app/main.py:8", "runs: 6")),
    ("process 100", 3, ("200 MiB in process 100", "anonymous 180 MiB")),
)


def test_the_timeline_is_drawn_hovered_and_zoomed_by_buttons_and_keys(
    opened: Callable[..., Any],
) -> None:
    page = drawn(opened(runs.server(), inline=True), traces=6)
    (only,) = requested(page)
    assert only.startswith("file:///")
    assert_fits(page, 1280)
    assert_lanes_bars_and_tiles(page)
    for trace, point, parts in HOVER_TEXTS:
        text = hover_text(page, trace, point, find="findIndex")
        assert [part for part in parts if part not in text] == []
    assert page.execute_script(RANGE) == [0, 10]
    choices = buttons(page)
    assert [*choices] == ["whole run", *(f"creation of session {number}" for number in range(1, 6))]
    choices["creation of session 4"].click()
    wait_for(lambda: 2 < page.execute_script(RANGE)[0] <= 3)
    assert page.execute_script(RANGE)[1] == pytest.approx(4.08)
    assert is_pressed(choices["creation of session 4"])
    assert not is_pressed(choices["whole run"])
    page.execute_script("document.getElementById('timeline').focus()")
    page.switch_to.active_element.send_keys("0")
    wait_for(lambda: page.execute_script(RANGE) == [0, 10])
    page.switch_to.active_element.send_keys("+")
    wait_for(lambda: page.execute_script(RANGE) == [2.5, 7.5])
    assert not is_pressed(choices["whole run"])
    assert_quiet(page)


def assert_lanes_bars_and_tiles(page: Any) -> None:
    """Check what is drawn of `runs.server()`."""
    bars = "return document.querySelectorAll('#timeline .barlayer .point').length"
    assert page.execute_script(bars) >= 5
    wait_for(lambda: page.execute_script(TILES) > 5)
    labels = page.execute_script("return document.getElementById('timeline').textContent")
    assert "100 python main.py" in labels
    assert "4 a.onnx" in labels


def test_a_dark_phone_draws_sorts_prints_and_saves(opened: Callable[..., Any]) -> None:
    page = drawn(opened(runs.server(), dark=True, width=390), traces=6)
    assert_fits(page, 390)
    assert_lanes_bars_and_tiles(page)
    assert [*buttons(page)][1:] == [f"session {number}" for number in range(1, 6)]
    titles = page.execute_script(
        "const edge = document.getElementById('timeline').getBoundingClientRect().right;"
        "return [...document.querySelectorAll('#timeline .annotation')].map((each) =>"
        " [each.textContent, each.getBoundingClientRect().right <= edge])"
    )
    assert all(text.endswith("MiB") and fits for text, fits in titles), titles
    assert len(titles) == 4
    headings = page.find_elements("css selector", "table.dense thead th")
    index = [heading.text for heading in headings].index("raised by")
    headings[index].find_element("css selector", "button").send_keys("\n")
    values = page.execute_script(
        "return [...document.querySelectorAll('table.dense tbody tr')].map((row) =>"
        f" Number(row.cells[{index}].dataset.value))"
    )
    assert values == sorted(values, reverse=True)
    assert values[0] == 210 * runs.MIB
    with emulate_print(page):
        page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        folded = "return document.querySelectorAll('details:not([open])').length"
        assert page.execute_script(folded) == 0
    assert downloaded(page, "run.json", ProgramRun) == runs.server()
    assert_quiet(page)


def test_each_of_many_creations_can_be_shown_on_a_phone(opened: Callable[..., Any]) -> None:
    sessions = [
        runs.session(i, created_s=2.0 * i, released_s=2.0 * i + 1.5, path="/m/" + 40 * "x")
        for i in range(1, 21)
    ]
    page = opened(runs.run(*sessions, duration_s=60.0), width=390)
    wait_for(lambda: page.execute_script(RANGE) == [0, 60])
    (whole_run,) = buttons(page).values()
    choice = page.find_element("css selector", "#ranges > select")
    options = choice.find_elements("css selector", "option")
    assert len(options) == 1 + len(sessions)
    options[17].click()
    wait_for(lambda: 33 < page.execute_script(RANGE)[0] <= 34 < page.execute_script(RANGE)[1] < 36)
    whole_run.click()
    wait_for(lambda: page.execute_script(RANGE) == [0, 60])
    assert choice.get_property("value") == ""
    text = "return document.querySelector('#timeline .textpoint:last-child').textContent.trim()"
    wait_for(lambda: re.fullmatch("20 x{5,30}…", page.execute_script(text)))
    assert_fits(page, 390)
    assert_quiet(page)


def test_hostile_names_stay_text_on_a_phone(opened: Callable[..., Any]) -> None:
    evil = "</script><img src=x onerror=alert(1)><b>%{x}</b>" + "m" * 300
    record = replaced(hostile(runs.server(), evil), xrays=runs.server().xrays)
    page = drawn(opened(record, width=390), traces=6)
    assert_fits(page, 390)
    assert is_free_of_images(page)
    assert "<img src=x onerror" in hover_text(page, "sessions", 0, find="findIndex")
    assert_quiet(page)
