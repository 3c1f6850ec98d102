"""The table of models in an X-ray: the same on the terminal, in Markdown and on the page."""

import re

import pytest

from memdiag.records.attribution import Attribution, SearchedModel
from memdiag.units import MIB
from tests.reports import attributions
from tests.reports.rendering import html, markdown, printed, replaced

SHARED = ["model", "weights", "copies", "size of copies", "÷ weights", "shared"]


def xray(*, shared: bool) -> Attribution:
    models = tuple(SearchedModel(name=f"{name}.onnx", weight_bytes=4 * MIB) for name in "ab")
    copies = (
        attributions.copy("original", 3 * MIB, "w", models=(0,)),
        attributions.copy("original", 2 * MIB, "s", models=(0, 1) if shared else (1,)),
    )
    return attributions.attribution(models=models, copies=copies)


def headings(record: Attribution) -> list[list[str]]:
    """Return the headings of the models' table in each format."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed(record, width=120).splitlines()]
    in_markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown(record).splitlines()
        if line.startswith("| model ")
    ]
    section = html(record).partition(">Models</h2>")[2].partition("</thead>")[0]
    in_html = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', section)
    return [next(line for line in lines if line[0] == "model"), *in_markdown, in_html]


@pytest.mark.parametrize(("shared", "expected"), [(True, SHARED), (False, SHARED[:-1])])
def test_the_headings_are_the_same_everywhere(shared: bool, expected: list[str]) -> None:
    """Without a shared copy there is no column of shared copies."""
    assert headings(xray(shared=shared)) == [expected] * 3


@pytest.mark.parametrize(("models", "times"), [(2, 1), (1, 0)])
def test_the_memory_that_belongs_to_no_model_is_named_beneath_the_table(
    models: int, times: int
) -> None:
    several = xray(shared=True)
    copies = several.copies if models > 1 else ()
    record = replaced(several, models=several.models[:models], copies=copies)
    for text in (printed(record, width=300), markdown(record), html(record)):
        assert text.count("Only weights are attributed to a model: arena slack") == times


def test_models_have_a_row_each_and_weights_name_theirs() -> None:
    absent = SearchedModel(name="c.onnx", weight_bytes=MIB)
    made = xray(shared=True)
    (mine, shared) = made.copies
    record = replaced(made, models=(*made.models, absent), copies=(mine, mine, shared))
    lines = [" ".join(line.split()) for line in printed(record).splitlines()]
    start = lines.index("model weights copies size of copies ÷ weights shared")
    assert lines[start + 1 : start + 3] == [
        "a.onnx 4.0 MiB 3 8.0 MiB 2.0 × 2.0 MiB",
        "b.onnx 4.0 MiB 1 2.0 MiB 0.5 × 2.0 MiB",
    ]
    assert "No weight was found of: c.onnx." in lines
    assert "a.onnx: w 2 6.0" in lines
