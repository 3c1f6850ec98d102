"""The lines of a comparison: one clock for samples, layers and phases of a column."""

import msgspec

from memdiag.reports.views import comparison_lines
from tests.comparison.columns import column
from tests.reports import profiles


def test_the_clock_starts_where_the_session_does() -> None:
    line = comparison_lines.build(msgspec.structs.replace(column("a"), profile=profiles.tied_if()))
    assert line is not None
    assert line.t_s[0] == 0
    assert (line.bands[0].phase, line.bands[0].start_s) == ("parse", 0)
    assert line.bands[-1].phase == "steady"
    assert line.bands[-1].end_s == line.t_s[-1]
    assert line.first_run_s == line.bands[-1].start_s


def test_the_layers_of_a_line_add_up_to_it() -> None:
    for profile, names in (
        (profiles.tied_if(), ["file-backed", "anonymous"]),
        (profiles.with_shared(), ["file-backed", "shared", "anonymous"]),
        (profiles.sampled(), ["resident"]),
    ):
        line = comparison_lines.build(msgspec.structs.replace(column("a"), profile=profile))
        assert line is not None
        assert [layer.name for layer in line.layers] == names
        sums = map(sum, zip(*(layer.above_bytes for layer in line.layers), strict=True))
        assert tuple(sums) == line.above_bytes


def test_what_was_not_measured_has_no_line() -> None:
    assert comparison_lines.build(msgspec.structs.replace(column("a"), profile=None)) is None
    unseen = msgspec.structs.replace(column("a"), profile=profiles.nothing_seen())
    assert comparison_lines.build(unseen) is None
