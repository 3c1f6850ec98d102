"""Summaries keep to a terminal's width and obey no name, whatever the names are."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.schemas import ReportedRecord
from tests.reports import (
    comparisons,
    estimates,
    fix_records,
    gpus,
    growths,
    profiles,
    runs,
    tied_xray,
)
from tests.reports.hostile_texts import hostile
from tests.reports.rendering import printed

WRITTEN = (Path("some folder") / f"x{'y' * 200}" / "a.json",)
NEAR = fix_records.point("arena-off", at=(150, 75), ratio=1.0, fits=False)
RECORDS: dict[str, ReportedRecord] = {
    "profile": tied_xray.with_xrays(),
    "generation": profiles.generated(),
    "failed profile": profiles.failed(),
    "profile of a GPU": gpus.compared_profile(),
    "xray": tied_xray.attribution(),
    "comparison": comparisons.versions(),
    "optimizers": comparisons.optimizers(),
    "rewritten model": fix_records.verified(),
    "options": fix_records.fix(),
    "nearest to a budget": fix_records.fix(NEAR, (fix_records.DEFAULTS, NEAR)),
    "nothing verified": fix_records.unmeasured(),
    "run": runs.server(),
    "watched run": runs.watched_with_xray(),
    "growth": growths.kept(),
    "estimate": estimates.grid(),
}
BY_NAME = pytest.mark.parametrize("name", RECORDS)


def lines_of(name: str, *, encoding: str = "utf-8", width: int = 80) -> list[str]:
    """Return the lines of a hostile record, but for a program, which would not run if broken."""
    text = printed(hostile(RECORDS[name]), written=WRITTEN, encoding=encoding, width=width)
    return text.partition("import onnxruntime")[0].splitlines()  # it comes last


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@BY_NAME
def test_a_pipe_gets_plain_text_of_eighty_columns(name: str, encoding: str) -> None:
    lines = lines_of(name, encoding=encoding)
    assert max(map(cell_len, lines)) <= 80
    assert not {"\x1b", "\u202e"} & {*"".join(lines)}
    assert all(line == line.rstrip() for line in lines)


@BY_NAME
def test_markup_stays_text_and_escapes_are_spelt_out(name: str) -> None:
    text = "\n".join(lines_of(name, width=5000))  # for nothing to be broken
    assert "\\x1b[31m" in text
    assert "[red]x[/red]" in text
    assert "</script><img src=x onerror=alert(1)>" in text


@BY_NAME
def test_a_terminal_without_colour_gets_the_same(name: str) -> None:
    terminal = printed(RECORDS[name], is_terminal=True)
    assert [line.rstrip() for line in terminal.splitlines()] == printed(RECORDS[name]).splitlines()


@BY_NAME
def test_usual_summaries_have_at_most_thirty_lines(name: str) -> None:
    """A program of a fix has a dozen lines more."""
    for detail in (Detail.ANSWER, Detail.USUAL):
        text = printed(RECORDS[name], detail=detail, written=(Path("a/b.json"),))
        assert len(text.partition("import onnxruntime")[0].splitlines()) <= MAX_LINES
        assert ("With -v:" in text) <= (detail is Detail.USUAL)
