"""Names in Markdown: code and text that obey nothing; and the order of a report."""

import pytest

from memdiag.reports import markdown as md
from tests.reports import profiles, tied_xray
from tests.reports.rendering import markdown


def test_every_row_of_a_table_has_the_same_number_of_cells() -> None:
    for profile in (profiles.tied_if(), profiles.hostile(), tied_xray.with_attribution()):
        cells: list[int] = []
        for line in [*markdown(profile).splitlines(), ""]:
            if line.startswith("|"):
                cells.append(line.replace(r"\|", "").count("|"))
            elif cells:
                assert len(set(cells)) == 1
                cells = []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "`plain`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("", ""),
        ("a|b", "`a|b`"),
    ],
)
def test_code_is_fenced_by_more_than_it_holds(name: str, expected: str) -> None:
    assert md.code_span(name) == expected


def test_pipes_are_escaped_in_tables_only() -> None:
    assert md.code_span("a|b", in_table=True) == r"`a\|b`"
    assert md.code_span("a|b") == "`a|b`"


def test_nobody_is_mentioned() -> None:
    assert "@\u2060everyone" in md.escape("hello @everyone")


def test_the_order_is_that_of_the_console() -> None:
    lines = markdown(tied_xray.with_attribution()).splitlines()
    order = (
        *("**Peak", "**Result:**", "**What to do:**", "| phase", "### Owners of the memory"),
        *("| owner", "| weight", "### What moved memory", "### Runs"),
    )
    places = [next(i for i, line in enumerate(lines) if line.startswith(part)) for part in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("lines", "language", "block"),
    [
        (["a", "  b"], "python", "```python\na\n  b\n```"),
        (["````"], "", "`````\n````\n`````"),
        ([], "python", ""),
    ],
)
def test_a_block_of_code_is_fenced_by_more_backticks_than_it_holds(
    lines: list[str], language: str, block: str
) -> None:
    assert md.code_block(lines, language) == block
