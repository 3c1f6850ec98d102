"""A tuning as files: the page with all points, Markdown, the Pareto front and the record."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from memdiag.records.tuning import Tuning
from memdiag.reports.tuning import REPORT, markdown

from memdiag.records import codec
from memdiag.reports import report_of
from tests.reports import fix_records, tuning_records
from tests.reports.test_profile_page import Page, embedded

FORMATS = ("html", "json", "markdown", "png", "svg")


def chosen() -> Tuning:
    return tuning_records.tuning()


def defaults() -> Tuning:
    return tuning_records.tuning(tuning_records.DEFAULTS)


def nearest() -> Tuning:
    near = tuning_records.point("arena-off", at=(150, 75), ratio=1.0, fits=False)
    return tuning_records.tuning(near, (tuning_records.DEFAULTS, near))


def rewritten() -> Tuning:
    point = tuning_records.point("rewrite", "arena-off", at=(120, 60), ratio=1.0, on_front=True)
    return tuning_records.tuning(
        point, (tuning_records.DEFAULTS, point), fix=fix_records.verified(), sessions=3
    )


def alone() -> Tuning:
    return tuning_records.tuning(tuning_records.DEFAULTS, (tuning_records.DEFAULTS,))


def unmeasured() -> Tuning:
    return msgspec.structs.replace(
        tuning_records.tuning(fix=fix_records.verified()),
        **{"points": (), "chosen": (), "program": "", "before": None, "after": None},
        latencies=(),
    )


ALL = (chosen, defaults, nearest, rewritten, alone, unmeasured)


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.__name__)
def test_every_tuning_becomes_every_file(build: Callable[[], Tuning], tmp_path: Path) -> None:
    written = REPORT.write(build(), tmp_path / "out", FORMATS)
    assert [path.name for path in written] == [
        "tune.html", "tune.json", "tune.md", "tune.png", "tune.svg",
    ]  # fmt: skip
    assert codec.load(written[1], Tuning) == build()


def test_fixes_and_tunings_are_two_kinds() -> None:
    assert report_of(chosen()).name == "tuning"
    assert report_of(fix_records.verified()).name == "fix"


def words(build: Callable[[], Tuning]) -> str:
    return " ".join(Page(REPORT.page(build())).text.split())


def test_the_page_says_what_was_won_how_to_set_it_up_and_what_was_tried() -> None:
    page = words(chosen)
    for message in (
        "Peak 200 MiB → 150 MiB (0.75 ×), steady 150 MiB → 75 MiB (0.50 ×).",
        "Chosen: disable-prepacking + mmap-threshold.",
        "1.02 × (0.97–1.07) that before.",
        "session.disable_prepacking=1.",
        "Create the session as the program below does.",
        "import onnxruntime as ort",
        "6 combinations; 20 sessions were started in 12 s.",
        "it does not run:",
    ):
        assert message in page


def test_the_points_can_be_sorted_by_number_and_the_chosen_one_is_marked() -> None:
    page = Page(REPORT.page(chosen()))
    rows = [attrs for tag, attrs in page.elements if tag == "tr" and attrs.get("class") == "peak"]
    assert len(rows) == 1
    assert page.text.count("on the front") == 3
    values = [attrs["data-value"] for tag, attrs in page.elements if "data-value" in attrs]
    assert str(75 << 20) in values
    assert values.count("-1") == 5 + 1 + 1  # a point that does not run; two that were not compared


def test_where_nothing_is_worth_it_the_page_says_so_and_shows_no_change() -> None:
    page = words(defaults)
    assert "No option is worth it: the defaults are the best that was found." in page
    assert "Keep the defaults." in page
    assert "Before and after" not in page
    assert "Nothing fits the budget; the nearest is: peak" in words(nearest)


def test_the_files_of_a_rewritten_model_are_named() -> None:
    page = words(rewritten)
    assert "keep them together, because 500 MiB of the weights are in dir/m.onnx." in page
    assert "good-one" in page


def test_what_is_drawn_in_the_page_is_what_can_be_used() -> None:
    charts = json.loads(embedded(Page(REPORT.page(chosen())), "charts"))
    drawn = [(one["number"], one["label"], one["is_chosen"]) for one in charts["points"]]
    assert drawn == [
        (1, "optimization-off", False),
        (2, "disable-prepacking + mmap-threshold", True),
        (3, "disable-prepacking", False),
        (0, "defaults", False),
    ]


def test_hostile_names_are_text_in_every_file() -> None:
    evil = fix_records.hostile(chosen())
    page = Page(REPORT.page(evil))
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert page.text.count("</script><img src=x onerror=alert(1)>[red]x[/red]") > 10
    picture = REPORT.render(evil, "svg").decode()
    assert "optimization-off\\x1b[31m" in picture
    assert "<img" not in picture
    assert "\x1b" not in markdown(evil)


def test_markdown_has_the_program_and_the_front() -> None:
    text = markdown(chosen())
    assert text.startswith("## Tuning of `m.onnx`\n\n**Peak 200 MiB")
    assert "```python\nimport onnxruntime as ort\n```" in text
    row = "| `disable-prepacking + mmap-threshold` | 150 MiB | 75 MiB | 1.02 × (0.97–1.07) |"
    assert f"{row} **chosen** |" in text
    assert "6 combinations; the Pareto front" in text
