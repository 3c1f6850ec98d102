from typing import Any

import pytest

from memdiag.reports.findings import (
    RuleTextBlock,
    finding_text,
    rule_documentation,
    rule_text_blocks,
)
from memdiag.reports.rule_pages import all_detectors
from memdiag.rules.rule import Detector
from tests.reports.findings import TIED
from tests.reports.rendering import replaced


def test_headings_paragraphs_lists_and_code_are_told_apart() -> None:
    text = "One\nline.\n\n## Why\n\n- `a`: first\n  goes on\n- second"
    assert list(rule_text_blocks(text)) == [
        RuleTextBlock(kind="paragraph", items=((("One line.", False),),)),
        RuleTextBlock(kind="heading", items=((("Why", False),),)),
        RuleTextBlock(
            kind="list", items=((("a", True), (": first goes on", False)), (("second", False),))
        ),
    ]


@pytest.mark.parametrize("detector", all_detectors(), ids=lambda detector: detector.rule.name)
def test_no_rule_is_left_with_markup(detector: Detector[Any, Any]) -> None:
    shown = rule_documentation(detector.rule.name)
    assert shown == tuple(rule_text_blocks(detector.documentation))
    message = "".join(text for block in shown for item in block.items for text, _ in item)
    assert len(shown) > 1
    assert "`" not in message
    assert "##" not in message


@pytest.mark.parametrize("name", ["no-such-rule", "rule", "../errors", "", "RULE", "x" * 300])
def test_what_is_no_rule_here_has_no_text(name: str) -> None:
    assert rule_documentation(name) == ()


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.334, " · 33 % of the estimated peak · "),
        (0.004, " · < 1 % of the estimated peak · "),
        (1.0, " · 100 % of the estimated peak · "),
    ],
)
def test_the_share_of_the_estimated_peak_follows_the_cost(share: float, words: str) -> None:
    assert words in finding_text(replaced(TIED, peak_share=share)).facts
    assert "estimated peak" not in finding_text(TIED).facts
