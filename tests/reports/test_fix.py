"""What a fix prints: its remedies, before and after, and the files that were written."""

import io
from pathlib import Path

from rich.console import Console

from memdiag.records.fix import Fix
from memdiag.reports.fix import REPORT
from tests.reports import fix_records


def printed(fix: Fix, *, quiet: bool = False, written: tuple[Path, ...] = ()) -> list[str]:
    out = io.StringIO()
    REPORT.print_summary(fix, Console(file=out, width=80), written=written, quiet=quiet)
    return out.getvalue().splitlines()


def test_remedies_come_by_what_became_of_them_and_figures_before_and_after() -> None:
    lines = printed(fix_records.verified())
    assert lines[0].startswith("dir/m.onnx: peak 1.55 GiB → 559 MiB (0.35 ×), steady 1.46 GiB")
    start = lines.index("") + 1
    assert [line.split()[:2] for line in lines[start : start + 3]] == [
        ["applied", "good-one"],
        ["rejected", "slow-one"],
        ["refused", "no-one"],
    ]
    rows = [" ".join(line.split()) for line in lines]
    assert "peak 1.55 GiB 559 MiB 0.35 × (± 1.0 MiB)" in rows
    assert "mapped files 8.0 MiB 510 MiB 63.75 ×" in rows
    assert "size 4 10 ms 10 ms 1.02 × (0.98–1.05, 25 pairs)" in rows
    assert rows[-2].startswith("wrote dir/m.fixed.onnx in 34 s; 500 MiB of its weights are still")


def test_quiet_is_the_answer_alone_and_files_are_named_last() -> None:
    written = (Path("out/fix.html"), Path("out/fix.json"))
    answer = printed(fix_records.nothing_found(), quiet=True, written=written)
    assert answer == [
        "dir/m.onnx: nothing to fix was found, in 34 s. memdiag optimize tries options of",
        "the session and optimizers, too",
    ]
    assert printed(fix_records.verified(), written=written)[-1] == "out/   fix.html · fix.json"


def test_without_figures_there_is_no_empty_table() -> None:
    for build in (fix_records.nothing_found, fix_records.all_rejected, fix_records.unverified):
        assert not any("before" in line for line in printed(build()))
