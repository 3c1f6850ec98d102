"""The table of models in an X-ray: the same on the terminal, in Markdown and on the page."""

import io
import re

import msgspec
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.attribution import Attribution, SearchedModel
from memdiag.reports.xray import REPORT
from memdiag.units import MIB
from tests.reports import attributions

SHARED = ["model", "weights", "copies", "size of copies", "÷ weights", "shared"]


def xray(*, shared: bool) -> Attribution:
    models = tuple(SearchedModel(name=f"{name}.onnx", weight_bytes=4 * MIB) for name in "ab")
    record = attributions.attribution(models=models)
    both = (0, 1) if shared else (1,)
    copies = (
        attributions.copy("original", 3 * MIB, "w", models=(0,)),
        attributions.copy("original", 2 * MIB, "s", models=both),
    )
    return msgspec.structs.replace(record, copies=copies)


def headings(record: Attribution) -> list[list[str]]:
    """Return the headings of the models' table in each format."""
    stream = io.StringIO()
    REPORT.print_summary(record, Console(file=stream, width=120), detail=Detail.ALL)
    lines = [re.split(r"\s{2,}", line.strip()) for line in stream.getvalue().splitlines()]
    in_markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in REPORT.markdown(record).splitlines()
        if line.startswith("| model ")
    ]
    page = REPORT.render(record, "html").decode()
    _, _, section = page.partition(">Models</h2>")
    in_html = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', section.partition("</thead>")[0])
    return [next(line for line in lines if line[0] == "model"), *in_markdown, in_html]


def test_the_headings_are_the_same_everywhere() -> None:
    assert headings(xray(shared=True)) == [SHARED] * 3


def test_a_column_without_a_shared_copy_is_left_out() -> None:
    assert headings(xray(shared=False)) == [SHARED[:-1]] * 3


def test_the_memory_that_belongs_to_no_model_is_named_beneath_the_table() -> None:
    several = xray(shared=True)
    single = msgspec.structs.replace(several, models=several.models[:1], copies=())
    for record, times in ((several, 1), (single, 0)):
        stream = io.StringIO()
        REPORT.print_summary(record, Console(file=stream, width=300), detail=Detail.ALL)
        in_markdown = REPORT.markdown(record)
        page = REPORT.render(record, "html").decode()
        for text in (stream.getvalue(), in_markdown, page):
            assert text.count("Only weights are attributed to a model: arena slack") == times
