"""A fix as files: the page, Markdown, the picture and the record."""

import io
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from matplotlib import image

from memdiag.errors import UsageError
from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports.fix import REPORT, draw, markdown
from tests.reports import fix_records
from tests.reports.test_profile_page import Page, embedded

FORMATS = ("html", "json", "markdown", "png", "svg")


@pytest.mark.parametrize("build", fix_records.ALL, ids=lambda build: build.__name__)
def test_every_fix_becomes_every_file_the_same_each_time(
    build: Callable[[], Fix], tmp_path: Path
) -> None:
    written = REPORT.write(build(), tmp_path / "out", FORMATS)
    assert [path.name for path in written] == [
        "fix.html", "fix.json", "fix.md", "fix.png", "fix.svg",
    ]  # fmt: skip
    assert codec.load(written[1], Fix) == build()
    # Pictures take longest: once is enough.
    again = FORMATS if build is fix_records.verified else ("html", "json", "markdown")
    for format, path in zip(FORMATS, written, strict=True):
        assert format not in again or REPORT.render(build(), format) == path.read_bytes()


def test_a_format_that_fixes_do_not_have_is_refused_by_name() -> None:
    assert REPORT.formats() == FORMATS
    with pytest.raises(
        UsageError, match=r"'treemap' is not a report format of a fix\. Choose from"
    ):
        REPORT.render(fix_records.verified(), "treemap")


def test_the_page_says_it_all_with_exact_bytes_on_hover() -> None:
    page = Page(REPORT.page(fix_records.verified()))
    words = " ".join(page.text.split())
    for message in (
        "Peak 1.55 GiB → 559 MiB (0.35 ×), steady 1.46 GiB → 540 MiB (0.36 ×).",
        "Remedies applied to a copy of the model: good-one.",
        "1.02 × (0.98–1.05) that before, with size 4: the largest ratio of ",
        "Largest difference 2.4e-06 of the largest value",
        "(allowed 6.1e-05: sums of 1,024 products).",
        "The files alone: no option has to be set, and no variable.",
        "keep them together, because 500 MiB of the weights are in dir/m.onnx.",
        "Load dir/m.fixed.onnx instead of dir/m.onnx.",
        "Verified on 1.31.1; 1.20.0 and newer can load it (by its versions of the IR and"
        " operators).",
        "memdiag fix dir/m.onnx",
    ):
        assert message in words
    titles = {attrs.get("title") for _, attrs in page.elements}
    assert {f"{1583 << 20:,} bytes", f"{559 << 20:,} bytes", f"{540 << 20:,} bytes"} <= titles
    assert codec.decode(embedded(page, "fix").encode(), Fix) == fix_records.verified()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (fix_records.nothing_found, "Nothing to fix was found."),
        (fix_records.all_rejected, "Nothing: no remedy that was tried is worth it."),
        (fix_records.dry_run, "these remedies would be tried: good-one. "),
        (fix_records.unverified, "Changed, but not verified: the model could not be run."),
    ],
    ids=lambda value: getattr(value, "__name__", "message"),
)
def test_a_fix_without_figures_has_no_empty_table(build: Callable[[], Fix], message: str) -> None:
    page = Page(REPORT.page(build()))
    assert message in " ".join(page.text.split())
    assert "Before and after" not in page.text
    assert "| figure |" not in markdown(build())


def test_the_page_asks_nobody_for_anything_and_obeys_no_name() -> None:
    page = Page(REPORT.page(fix_records.hostile(fix_records.verified())))
    assert page.links == {"data:,", "#main"}
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert page.text.count("</script><img src=x onerror=alert(1)>[red]x[/red]") > 10


def test_markdown_has_the_tables_and_no_name_is_markup() -> None:
    text = markdown(fix_records.verified())
    assert text.startswith("## Fix of `m.onnx`\n\n**Peak 1.55 GiB → 559 MiB")
    assert "| steady | 1.46 GiB | 540 MiB | 0.36 × |" in text
    assert "| size 4 | 10 ms | 10 ms | 1.02 × (0.98–1.05, 25 pairs) |" in text
    assert text.index("| **applied** | `good-one`") < text.index("| rejected | `slow-one`")
    evil = markdown(fix_records.hostile(fix_records.verified()))
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", evil)
    assert "script" in outside
    assert re.search(r"(?<!\\)<", outside) is None
    assert "\x1b" not in evil


def test_the_picture_shows_before_and_after_and_the_slowest_first() -> None:
    figure = draw(fix_records.verified())
    sizes, ratios = figure.axes
    assert {text.get_text() for text in sizes.texts} == {
        "1.55 GiB", "559 MiB", "1.46 GiB", "540 MiB", "500 MiB", "501 MiB",
    }  # fmt: skip
    assert [label.get_text() for label in ratios.get_yticklabels()] == ["size 4", "size 1"]
    assert [text.get_text() for text in figure.texts] == [
        "m.onnx",
        "Peak 1.55 GiB → 559 MiB (0.35 ×), steady 1.46 GiB → 540 MiB (0.36 ×).",
    ]


def test_the_picture_is_not_blank() -> None:
    content = REPORT.render(fix_records.verified(), "png")
    pixels = numpy.asarray(image.imread(io.BytesIO(content), format="png"))
    assert pixels.shape[1] == 1600
    assert len(zlib.compress((pixels * 255).astype(numpy.uint8).tobytes())) > 20_000


def test_the_scalable_picture_keeps_its_letters_and_obeys_no_name() -> None:
    text = REPORT.render(fix_records.verified(), "svg").decode()
    assert ">m.onnx</text>" in text
    assert ">559 MiB</text>" in text
    evil = REPORT.render(fix_records.verified(model="<img src=x onerror=alert(1)>"), "svg").decode()
    assert ">&lt;img src=x onerror=alert(1)&gt;</text>" in evil
    assert "<img" not in evil


def test_what_is_drawn_in_the_page_is_what_was_recorded() -> None:
    charts = json.loads(embedded(Page(REPORT.page(fix_records.verified())), "charts"))
    assert [row["ratio"] for row in charts["latencies"]] == [0.99, 1.02]
    assert charts["latencies"][1]["inputs"] == "size 4"
