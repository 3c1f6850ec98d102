import pytest

from memdiag.detectors import detectors
from memdiag.reporters.views import rule_text
from memdiag.reporters.views.rule_text import Block


def test_headings_paragraphs_lists_and_code_are_told_apart() -> None:
    text = "One\nline.\n\n## Why\n\n- `a`: first\n  goes on\n- second"
    assert list(rule_text.blocks(text)) == [
        Block(kind="paragraph", items=((("One line.", False),),)),
        Block(kind="heading", items=((("Why", False),),)),
        Block(kind="list", items=((("a", True), (": first goes on", False)), (("second", False),))),
    ]


@pytest.mark.parametrize("rule", [each.rule.name for each in detectors()])
def test_no_rule_is_left_with_markup(rule: str) -> None:
    shown = rule_text.build(rule)
    said = "".join(text for block in shown for item in block.items for text, _ in item)
    assert len(shown) > 1
    assert "`" not in said
    assert "##" not in said


def test_a_rule_of_another_version_has_no_text() -> None:
    assert rule_text.build("no-such-rule") == ()
