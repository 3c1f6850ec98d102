"""Summaries keep to a terminal's width and obey no name, whatever the names are."""

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.comparison import Comparison
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from tests.reports import (
    comparisons,
    estimates,
    fix_records,
    growths,
    profiles,
    runs,
    tied_xray,
)
from tests.reports.fix_records import EVIL, hostile

WRITTEN = (Path("some folder") / f"x{'y' * 200}" / "a.json",)


def fix() -> ReportedRecord:
    return hostile(fix_records.verified())


def options() -> ReportedRecord:
    return hostile(fix_records.fix())


def nearest() -> ReportedRecord:
    near = fix_records.point("arena-off", at=(150, 75), ratio=1.0, fits=False)
    return hostile(fix_records.fix(near, (fix_records.DEFAULTS, near)))


def comparison() -> Comparison:
    """Return columns, causes and notes that are as hostile as those of fixes."""
    made = comparisons.versions()
    first, missing, last = (
        msgspec.structs.replace(column, label=column.label + EVIL, model=EVIL)
        for column in made.columns
    )
    return msgspec.structs.replace(
        made,
        columns=(first, msgspec.structs.replace(missing, message=EVIL), last),
        changes=tuple(
            msgspec.structs.replace(one, from_=one.from_ + EVIL, to=one.to + EVIL, why=EVIL)
            for one in made.changes
        ),
        notes=(EVIL,),
    )


def run() -> ReportedRecord:
    return runs.hostile(EVIL)


def growth() -> ReportedRecord:
    made = growths.kept()
    blocks = msgspec.structs.replace(made.blocks[0], content=EVIL)
    return msgspec.structs.replace(
        made,
        subject=EVIL,
        sentence=f"kept values: {EVIL}",
        notes=(EVIL,),
        message=EVIL,
        blocks=(blocks,),
        dimensions={EVIL: (1, 2)},
        varied=("shape",),
        onnxruntime=EVIL,
    )


def estimate() -> ReportedRecord:
    return estimates.hostile(EVIL)


BUILDERS = (fix, options, nearest, comparison, run, growth, estimate)


def printed(record: ReportedRecord, console: Console) -> list[str]:
    report_of(record).print_summary(record, console, written=WRITTEN, detail=Detail.ALL)
    assert isinstance(console.file, io.TextIOWrapper)
    console.file.seek(0)
    return console.file.read().splitlines()


def file(encoding: str = "utf-8") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def without_program(lines: list[str]) -> list[str]:
    """Return `lines` without the program of a fix, whose lines would not run if broken."""
    starts = [i for i, line in enumerate(lines) if line.startswith("import onnxruntime")]
    if not starts:
        return lines
    (start,) = starts
    return lines[:start]  # it comes last


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_pipe_gets_plain_text_of_eighty_columns(
    build: Callable[[], ReportedRecord], encoding: str
) -> None:
    record = build()
    lines = without_program(printed(record, Console(file=file(encoding), width=80)))
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_terminal_without_colour_gets_the_same(build: Callable[[], ReportedRecord]) -> None:
    record = build()
    terminal = Console(file=file(), width=80, force_terminal=True, color_system=None)
    lines = printed(record, terminal)
    assert [line.rstrip() for line in lines] == printed(record, Console(file=file(), width=80))


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_markup_stays_text_and_escapes_are_spelt_out(build: Callable[[], ReportedRecord]) -> None:
    # Wide enough for nothing to be broken.
    text = "\n".join(printed(build(), Console(file=file(), width=5000)))
    assert "\\x1b[31m" in text
    assert "[red]x[/red]" in text
    assert "</script><img src=x onerror=alert(1)>" in text


@pytest.mark.parametrize(
    "record",
    [
        tied_xray.with_attribution(),
        profiles.tied_if(),
        profiles.failed(),
        estimates.single(),
        runs.server(),
        growths.kept(),
    ],
    ids=lambda record: type(record).__name__,
)
@pytest.mark.parametrize("detail", Detail)
def test_usual_summaries_have_at_most_thirty_lines(record: ReportedRecord, detail: Detail) -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    report_of(record).print_summary(record, console, written=(Path("a/b.json"),), detail=detail)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert detail is Detail.ALL or len(lines) <= MAX_LINES
    assert ("With -v:" in console.file.getvalue()) <= (detail is Detail.USUAL)
