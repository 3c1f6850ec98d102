import re
from pathlib import Path
from typing import Any

import pytest

from memdiag.errors import UsageError
from memdiag.reports.rule_pages import RULE_INDEX_FILE, all_detectors, rule_page, rule_page_texts
from memdiag.rules import find_detector, model_detectors
from memdiag.rules.rule import Detector, find_by_name

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
BY_NAME = pytest.mark.parametrize(
    "detector", all_detectors(), ids=lambda detector: detector.rule.name
)


def test_the_kept_pages_are_the_rules_own() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert kept == rule_page_texts(), "run: python -m memdiag.reports.rule_pages docs/rules"


def test_codes_and_names_are_unique() -> None:
    assert len({each.rule.code for each in all_detectors()}) == len(all_detectors())
    assert len({each.rule.name for each in all_detectors()}) == len(all_detectors())


@BY_NAME
def test_a_rule_is_well_described(detector: Detector[Any, Any]) -> None:
    rule = detector.rule
    assert re.fullmatch(r"MD\d{3}", rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", rule.name)
    assert detector.detect.__module__.endswith(rule.name.replace("-", "_"))
    assert not rule.summary.endswith(".")
    assert len(rule.summary) <= 100
    assert detector.documentation.split("\n")[0].endswith(".")
    headings = re.findall(r"^## (.+)$", detector.documentation, re.MULTILINE)
    assert headings == ["Why it costs", "What to do", "Not reported"]


@BY_NAME
def test_a_rule_is_found_by_name_and_code(detector: Detector[Any, Any]) -> None:
    assert find_by_name(detector.rule.name, all_detectors()) is detector
    assert find_by_name(detector.rule.code.lower(), all_detectors()) is detector
    assert rule_page(detector) in rule_page_texts().values()
    assert detector.rule.name in rule_page_texts()[RULE_INDEX_FILE]


def test_an_unknown_rule_is_told_which_there_are() -> None:
    with pytest.raises(UsageError, match=model_detectors()[0].rule.name):
        find_detector("no-such-rule")
