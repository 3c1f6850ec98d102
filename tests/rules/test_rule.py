from collections.abc import Iterator

from memdiag.rules.rule import Detector, Rule, run_detectors


def detector(name: str, number: int) -> Detector[int, int]:
    def detect(context: int) -> Iterator[int]:
        yield context // number

    return Detector(Rule(code="MD999", name=name, summary=""), detect, "")


def test_a_defect_of_one_rule_does_not_lose_the_findings_of_others() -> None:
    detectors = [detector("half", 2), detector("defective", 0), detector("third", 3)]
    findings, notes = run_detectors(detectors, 12, "program")
    assert findings == [6, 4]
    (note,) = notes
    assert note.startswith("rule defective failed on this program")
    assert "ZeroDivisionError" in note
