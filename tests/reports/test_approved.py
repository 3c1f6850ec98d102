"""Each kind of record on a terminal and in Markdown, compared with texts that were approved."""

from pathlib import Path

import pytest

from memdiag.detail import Detail
from tests.reports.records import RECORDS, VARIANTS
from tests.reports.rendering import APPROVED, markdown, printed
from tests.snapshots import assert_approved

WRITTEN = (Path("reports/x/report.html"), Path("reports/x/report.md"))


@pytest.mark.parametrize("name", RECORDS)
def test_a_terminal_shows_as_much_as_is_asked_for(name: str) -> None:
    """The details are those of ``--quiet``, of neither option and of ``-v``."""
    texts = [
        f"===== {detail.name}\n{printed(RECORDS[name](), detail=detail, written=WRITTEN)}"
        for detail in Detail
    ]
    assert_approved("\n".join(texts), APPROVED / f"{name}.txt")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_terminal_shows_every_variant(name: str) -> None:
    assert_approved(printed(VARIANTS[name]()), APPROVED / f"{name}.txt")


@pytest.mark.parametrize("name", [*RECORDS, "fix_options", "profile_gpu"])
def test_markdown_is_what_was_approved(name: str) -> None:
    build = RECORDS.get(name) or VARIANTS[name]
    assert_approved(markdown(build()), APPROVED / f"{name}.md")
