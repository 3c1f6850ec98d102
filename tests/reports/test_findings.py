from typing import Any

import pytest

from memdiag.reports.findings import Block, blocks, rule_documentation
from memdiag.reports.rule_pages import all_detectors
from memdiag.rules.rule import Detector


def test_headings_paragraphs_lists_and_code_are_told_apart() -> None:
    text = "One\nline.\n\n## Why\n\n- `a`: first\n  goes on\n- second"
    assert list(blocks(text)) == [
        Block(kind="paragraph", items=((("One line.", False),),)),
        Block(kind="heading", items=((("Why", False),),)),
        Block(kind="list", items=((("a", True), (": first goes on", False)), (("second", False),))),
    ]


@pytest.mark.parametrize("detector", all_detectors(), ids=lambda each: each.rule.name)
def test_no_rule_is_left_with_markup(detector: Detector[Any, Any]) -> None:
    shown = rule_documentation(detector.rule.name)
    assert shown == tuple(blocks(detector.documentation))
    said = "".join(text for block in shown for item in block.items for text, _ in item)
    assert len(shown) > 1
    assert "`" not in said
    assert "##" not in said


@pytest.mark.parametrize("name", ["no-such-rule", "rule", "../errors", "", "RULE"])
def test_what_is_no_rule_here_has_no_text(name: str) -> None:
    assert rule_documentation(name) == ()
