"""What the tests of the rules share: a comparison of predicted and measured bytes that is kept."""

import json
from collections.abc import Callable

import pytest

from memdiag.records.finding import Finding
from tests.rules.measuring import NEWEST

Agrees = Callable[..., None]


@pytest.fixture
def agrees(record_property: Callable[[str, object], None]) -> Agrees:
    """Return a function that asserts that a prediction and a measurement agree within 5 %.

    Both go to the JUnit report as a property, from which ``python -m benchmarks.predictions``
    makes its table.
    """

    def check(
        finding: Finding,
        measured: int,
        version: str = NEWEST,
        *,
        predicted: int | None = None,
        figure: str = "steady",
        rel: float = 0.05,
        abs: int = 0,
    ) -> None:
        if predicted is None:
            predicted = finding.peak_bytes if figure == "peak" else finding.bytes
        record_property(
            "prediction",
            json.dumps([finding.rule, finding.name, figure, version, predicted, measured]),
        )
        assert measured == pytest.approx(predicted, rel=rel, abs=abs)

    return check
