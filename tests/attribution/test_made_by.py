import numpy as np
import pytest

from memdiag.attribution.layouts import Uses
from memdiag.attribution.made_by import maker
from memdiag.attribution.subjects import Subject
from memdiag.attribution.usage import Consumer
from memdiag.records.profile import Span

SUBJECT = Subject(
    names=("w",),
    values=np.zeros(1),
    uses=Uses(),
    consumers=(
        Consumer("embed", "Gather", 0),
        Consumer("turn", "Transpose", 0),
        Consumer("product", "MatMul", 1, ("Transpose",)),
        Consumer("conv", "Conv", 1),
    ),
)


def span(name: str, modified: bool) -> Span:
    return Span(
        name=name,
        phase="optimize",
        step=1,
        modified=modified,
        start_s=0.0,
        end_s=1.0,
        start_rss_bytes=0,
        net_rss_bytes=0,
        peak_rss_bytes=0,
        peak_kind="exact",
    )


@pytest.mark.parametrize(
    ("kind", "transformer", "expected"),
    [
        ("original", "", "parse"),
        ("packed", "", "prepack · product"),
        ("transposed", "ConstantFolding", "ConstantFolding · turn"),
        ("reordered", "NchwcTransformer", "NchwcTransformer · embed and 3 more"),
    ],
)
def test_a_copy_is_laid_to_what_the_graph_and_the_log_say(
    kind: str, transformer: str, expected: str
) -> None:
    assert maker([span(transformer, True)])(SUBJECT, kind) == expected


def test_a_transformer_that_changed_nothing_made_nothing() -> None:
    assert maker([span("ConstantFolding", False)])(SUBJECT, "transposed") is None
