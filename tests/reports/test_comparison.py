import io
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from memdiag.comparison.changes import column_changes
from memdiag.comparison.comparable import ComparableFigures
from memdiag.detail import MAX_LINES, Detail
from memdiag.records.comparison import (
    Bisection,
    ColumnGrowth,
    Comparison,
    ComparisonColumn,
    ComparisonKind,
    GraphSize,
)
from memdiag.records.dimension import Dimension
from memdiag.records.profile import PeakKind
from memdiag.reports.comparison import REPORT
from memdiag.reports.comparison.sentences import (
    change_sentence,
    comparison_answer,
    comparison_title,
    finding_sentences,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.units import MIB
from tests.comparison.columns import column, growth, measured, mib, phase, retaining, seconds
from tests.reports import comparisons, profiles
from tests.reports.attributions import attribution, copy
from tests.reports.findings import TIED


def shown(comparison: Comparison, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    REPORT.print_summary(comparison, console, **options)  # type: ignore[arg-type] # options by name
    return out.getvalue()


@pytest.mark.parametrize("build", comparisons.ALL)
def test_every_line_fits_eighty_columns(build: Callable[[], Comparison]) -> None:
    assert max(map(len, shown(build()).splitlines())) <= 80


def test_the_answer_is_first_and_what_differs_is_told_with_its_cause() -> None:
    text = shown(comparisons.versions())
    lines = " ".join(text.split())
    assert lines.startswith(
        "model.onnx: 3 versions of onnxruntime: steady from 1.03 GiB in 1.24.4 to 1.53 GiB"
        " in 1.31.1"
    )
    cause = "lm_head/MatMul now packs model.shared.weight"
    assert f"steady from 1.03 GiB to 1.53 GiB since 1.31.1: {cause}" in lines
    assert "latency 1.30 × that of 1.24.4 since 1.31.1" in lines
    assert "1.30.9 is not available: onnxruntime==1.30.9" in lines
    kept = f"memory kept in prepack from 555 MiB to 1,063 MiB since 1.31.1: {cause}"
    assert kept not in lines
    more = "all differences and causes, peak by phase, kept by phase, 1 note."
    assert lines.endswith(f"With -v: {more}")
    everything = " ".join(shown(comparisons.versions(), detail=Detail.ALL).split())
    assert kept in everything
    assert "note: outputs that are random" in everything


def figures(text: str) -> list[str]:
    """Return the sizes, times and ratios in `text`, as they are written."""
    return re.findall(r"-?[\d,.]+ (?:[KMG]iB|B|ms|µs|s|×)(?!\w)", text)


def without_causes(text: str) -> str:
    """Return a sentence without the sizes of its causes, which have a sign and add up."""
    return re.sub(r"[+-][\d,.]+ (?:[KMG]iB|B)", "", text)


def every_change() -> Comparison:
    """Return a comparison with changes of all metrics, as they are found in its columns."""
    slow = measured(2000, 1500, load=2.5, peak_phase="prepack")
    graph = GraphSize(nodes=12, initializers=4, parameters=2000, saved_bytes=1000 * MIB)
    columns = (
        column("a.onnx", attribution=attribution(copy("original", 500 * MIB, "w"))),
        column("b.onnx", slow, ratio=(1.3, 1.2, 1.4), graph=graph, largest_difference=0.5),
        column("c.onnx", measured(400, 90, load=0.2), ratio=(0.4, 0.3, 0.5)),
    )
    found = [
        one
        for before, after in ((0, 1), (1, 2))
        for one in column_changes(columns[before], columns[after], ComparableFigures())[0]
    ]
    return comparisons.comparison(*columns, kind="models", changes=tuple(found))


def small() -> Comparison:
    """Return saved profiles of small models, whose latencies did not race."""
    one, other = column("a.json", measured(20, 10)), column("b.json", measured(60, 50, load=2.0))
    assert other.latency is not None
    later = msgspec.structs.replace(other.latency, median_s=0.03, low_s=0.029, high_s=0.031)
    other = msgspec.structs.replace(other, latency=later)
    found, _ = column_changes(
        one, other, ComparableFigures(excluded={"latency": "they were not taken in turn"})
    )
    return comparisons.comparison(one, other, kind="profiles", changes=found)


@pytest.mark.parametrize(("steady", "is_doubted"), [(553, True), (503, False)])
def test_what_may_be_chance_is_in_the_answer(steady: float, is_doubted: bool) -> None:
    once = measured(1000, 500, times=1, spread=0, phases=())
    more = measured(1000, steady, times=1, spread=0, phases=())
    record = comparisons.comparison(
        column("a.json", once), retaining(column("b.json", more), 20), kind="profiles", changes=()
    )
    doubt = "steady from 500 MiB in a.json to 553 MiB in b.json, which may be chance"
    assert comparison_answer(record).startswith(doubt if is_doubted else SAME[:-1])


def test_memory_that_is_not_compared_is_the_answer_with_the_reason() -> None:
    columns = []
    for label, steady, runs in (("a.json", 68, 1), ("b.json", 84, None), ("c.json", 68, 1)):
        made = column(label, measured(100, steady, times=1, spread=0))
        assert made.profile is not None
        session = msgspec.structs.replace(made.profile.session, runs=runs)
        profile = msgspec.structs.replace(made.profile, session=session)
        columns.append(msgspec.structs.replace(made, profile=profile))
    a, b, c = columns
    why = "one of them was not run"
    record = comparisons.comparison(a, b, kind="profiles")
    assert comparison_answer(record) == (
        f"steady from 68 MiB in a.json to 84 MiB in b.json; no causes are named, as {why}"
    )
    record = comparisons.comparison(a, b, c, kind="profiles")
    assert comparison_answer(record) == (
        "no difference in peak and steady memory beyond the variation between runs (steady 68 MiB);"
        f" memory of b.json (steady 84 MiB) is not compared: {why}"
    )
    assert comparison_answer(comparisons.comparison(a, c, kind="profiles")).startswith(
        "no difference"
    )
    # Models that were measured side by side were run alike.
    assert "not compared" not in comparison_answer(comparisons.comparison(a, b, kind="models"))


@pytest.mark.parametrize(("kind", "what"), [("sampled", "steady"), ("exact", "peak and steady")])
def test_a_peak_that_is_not_compared_is_not_said_to_be_the_same(kind: PeakKind, what: str) -> None:
    made = column("b.json")
    assert made.profile is not None
    profile = msgspec.structs.replace(made.profile, peak_kind=kind)
    pair = column("a.json"), msgspec.structs.replace(made, profile=profile)
    text = comparison_answer(comparisons.comparison(*pair, kind="profiles"))
    assert text.startswith(f"no difference in {what} memory beyond the variation")


def test_a_sampled_peak_is_told_as_at_least() -> None:
    sampled = measured(2000, peak_kind="sampled")
    found, _ = column_changes(column("a.json"), column("b.json", sampled), ComparableFigures())
    record = comparisons.comparison(
        column("a.json"), column("b.json", sampled), kind="profiles", changes=found
    )
    assert (
        comparison_answer(record) == "peak from 1,000 MiB in a.json to at least 1.95 GiB in b.json"
    )
    assert "~: the largest sample" in shown(record)
    (peak,) = (change_sentence(record, each) for each in found if each.metric == "peak")
    assert peak.startswith("b.json: peak from 1,000 MiB to at least 1.95 GiB")


SAME = "no difference in peak and steady memory beyond the variation between runs (steady 500 MiB)"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"load": seconds(2.0)}, f"{SAME}; differences in load"),
        (
            {"load": seconds(2.0), "phases": (phase("optimize", 800, 90),)},
            f"{SAME}; differences in memory kept in optimize, load",
        ),
        ({}, f"{SAME.replace(' in peak and steady memory', '')}"),
        # Where memory differs, it alone is the answer.
        (
            {"load": seconds(2.0), "steady": mib(600)},
            "steady from 500 MiB in a.onnx to 600 MiB in b.onnx",
        ),
    ],
)
def test_the_answer_is_about_peak_and_steady_memory_first(
    after: dict[str, object], expected: str
) -> None:
    first = measured(phases=(phase("optimize", 800, 0),))
    second = msgspec.structs.replace(first, **after)
    pair = (column("a.onnx", first), column("b.onnx", second))
    found, _ = column_changes(*pair, ComparableFigures())
    assert (
        comparison_answer(comparisons.comparison(*pair, kind="models", changes=found)) == expected
    )


@pytest.mark.parametrize("build", [every_change, small, comparisons.versions])
def test_every_figure_of_a_sentence_is_in_a_table(build: Callable[[], Comparison]) -> None:
    record = build()
    cells, captioned = set(), set()
    for _, table in comparison_tables(record):
        texts = {cell.text for row in table.rows for cell in row.cells}
        cells |= texts
        # Tables by phase are in MiB, as their captions say.
        captioned |= {f"{text} MiB" for text in texts if "MiB" in table.caption}
    known = {part for text in cells | captioned for part in (text, text.partition(" ± ")[0])}
    sentences = (
        comparison_answer(record),
        *(change_sentence(record, each) for each in record.changes),
    )
    printed = {figure for text in sentences for figure in figures(without_causes(text))}
    assert len(printed) >= 4
    assert printed - known == set()


def test_two_columns_are_told_in_the_order_of_the_arguments() -> None:
    found, _ = column_changes(
        column("a.onnx", measured(2000, 1500)), column("b.onnx"), ComparableFigures()
    )
    falling = comparisons.comparison(
        column("a.onnx", measured(2000, 1500)), column("b.onnx"), kind="models", changes=found
    )
    text = comparison_answer(falling)
    assert "peak from 1.95 GiB in a.onnx to 1000 MiB in b.onnx" in text.replace("1,000", "1000")
    assert comparison_answer(every_change()).startswith(
        "peak between 400 MiB in c.onnx and 1.95 GiB in b.onnx"
    )


def test_every_phase_that_kept_memory_is_in_the_table_and_rows_add_up() -> None:
    before = column("a.onnx", measured(1000, 500))
    grown = measured(
        1000,
        620,
        phases=(
            phase("parse", 500, 500),
            phase("constant_fold", 1000, 20),
            phase("prepack", 620, 100),
        ),
    )
    after = column("b.onnx", grown)
    found, _ = column_changes(before, after, ComparableFigures())
    record = comparisons.comparison(before, after, kind="models", changes=found)
    table = dict(comparison_tables(record))["Kept by phase"]
    headings = [column.heading for column in table.columns]
    assert headings[1:] == ["parse", "constant fold", "prepack", "total (steady)"]
    for row in table.rows:
        *parts, total = (int(cell.text) for cell in row.cells[1:])
        assert sum(parts) == total
    assert "medians" not in table.caption
    off = column("b.onnx", msgspec.structs.replace(grown, steady=mib(640, 1)))
    record = comparisons.comparison(before, off, kind="models", changes=found)
    assert (
        "sums are off by up to 20 MiB" in dict(comparison_tables(record))["Kept by phase"].caption
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("batch", "batch"), "2 models at batch 4"),
        (("batch", "rows"), "2 models, a.onnx at batch 4, b.onnx at rows 4"),
        (("batch", None), "2 models, a.onnx at batch 4, b.onnx with fixed sizes"),
    ],
)
def test_sizes_are_named_once_where_the_models_agree(
    names: tuple[str | None, ...], expected: str
) -> None:
    columns = []
    for label, name in zip(("a.onnx", "b.onnx"), names, strict=True):
        size = Dimension(name=name or "", size=4, role="batch", source="chosen", reason="")
        made = column(label)
        assert made.profile is not None
        profile = msgspec.structs.replace(made.profile, dimensions=(size,) if name else ())
        columns.append(msgspec.structs.replace(made, profile=profile))
    first = columns[0].profile
    assert first is not None
    comparison = comparisons.comparison(*columns, kind="models", dimensions=first.dimensions)
    assert comparison_title(comparison) == expected


def test_long_causes_are_whole_and_only_a_very_long_one_loses_its_middle() -> None:
    name = "bert.encoder.layer.{}.attention.self.query.weight_quantized_and_transposed"
    causes = [f"-{9 - n}0 MiB, int8.onnx keeps {name.format(n)} as it is" for n in range(3)]
    found = comparisons.change("steady", "1.31.1", why="; ".join((*causes, "-4 MiB not explained")))
    sentence = change_sentence(comparisons.versions(), found)
    assert len(sentence) > 320
    assert all(cause in sentence for cause in causes)
    longest = comparisons.change("steady", "1.31.1", why=f"-9 MiB, {'n' * 10_000}; {causes[0]}")
    sentence = change_sentence(comparisons.versions(), longest)
    assert len(sentence) < 500
    assert "-9 MiB, n" in sentence
    assert sentence.endswith(causes[0])


@pytest.mark.parametrize(
    ("times", "caption"),
    [((5, 5), "; medians of 5 fresh"), ((1, 1), ""), ((1, 3), "; medians of 1 to 3 fresh")],
)
def test_the_table_says_how_often_its_columns_were_measured(
    times: tuple[int, int], caption: str
) -> None:
    columns = [
        column(label, measured(times=count)) for label, count in zip("ab", times, strict=True)
    ]
    (memory, *_) = comparison_tables(comparisons.comparison(*columns, kind="models"))
    start = memory.table.caption.removeprefix("above the baseline")
    assert start.startswith(caption)
    assert bool(start) is bool(caption)


def test_every_metric_is_told_of_one_statistic() -> None:
    comparison = every_change()
    metrics = {one.metric for one in comparison.changes}
    assert metrics == {"steady", "peak", "kept", "load", "latency", "disk", "outputs"}
    sentences = [change_sentence(comparison, each) for each in comparison.changes]
    assert "b.onnx: latency 1.30 × that of a.onnx" in sentences
    assert "c.onnx: latency from 1.30 × to 0.40 × that of a.onnx" in sentences
    # The medians of columns that ran in turn would be another figure for the same thing.
    assert not any(
        "13 ms" in cell.text
        for _, table in comparison_tables(comparison)
        for row in table.rows
        for cell in row.cells
    )


def test_models_are_shown_where_they_differ_only() -> None:
    assert "parameters" not in shown(comparisons.versions(), detail=Detail.ALL)
    text = shown(comparisons.optimizers(), detail=Detail.ALL)
    row = next(line for line in text.splitlines() if line.startswith("onnxruntime-extended  "))
    assert "onnxruntime-extended" in row
    assert "22,617,680" in text
    assert "700 MiB" in text
    assert "onnxsim did not end in time" in text
    assert "2.4e-06" in text


@pytest.mark.parametrize(("difference", "is_there"), [(None, False), (0.0, True)])
def test_columns_that_are_empty_in_all_rows_are_left_out(
    difference: float | None, is_there: bool
) -> None:
    graph = GraphSize(nodes=12, initializers=None, parameters=None, saved_bytes=MIB)
    pair = [column(label, graph=graph) for label in ("a.json", "b.json")]
    pair[1] = msgspec.structs.replace(pair[1], largest_difference=difference)
    tables = dict(comparison_tables(comparisons.comparison(*pair, kind="profiles")))
    assert [each.heading for each in tables["Models"].columns] == ["model", "nodes", "on disk"]
    headings = [each.heading for each in tables["Speed and outputs"].columns]
    assert ("outputs" in headings) is is_there


def test_the_same_beside_itself_says_that_nothing_differs() -> None:
    text = shown(comparisons.alike())
    assert "no difference beyond the variation between runs" in text
    assert "equal" in text


def test_quiet_is_the_answer_alone() -> None:
    assert len(shown(comparisons.alike(), detail=Detail.ANSWER).splitlines()) == 1
    quiet = shown(comparisons.bisected(), detail=Detail.ANSWER)
    assert "steady jumps from 1.24.4 to 1.31.1 (3 of 12 versions were tried)" in " ".join(
        quiet.split()
    )


@pytest.mark.parametrize(
    ("before", "after", "is_found", "sentence"),
    [
        (
            growth(),
            growth(2000),
            True,
            "growth begins in 1.24.4: 2 KiB a run (malloc blocks in use), none in 1.23.2",
        ),
        (
            growth(2000),
            growth(),
            True,
            "growth ends in 1.24.4: none, 2 KiB a run (malloc blocks in use) in 1.23.2",
        ),
        (
            growth(500),
            growth(2000),
            True,
            "growth changes in 1.24.4: 2 KiB a run (malloc blocks in use), 500 B a run (malloc"
            " blocks in use) in 1.23.2",
        ),
        (
            growth(500),
            growth(500),
            False,
            "growth does not differ between the ends of the range: 500 B a run (malloc blocks in"
            " use) in 1.23.2, 500 B a run (malloc blocks in use) in 1.24.4",
        ),
        (growth(), growth(), False, "memory grows neither in 1.23.2 nor in 1.24.4"),
        (
            growth(),
            growth(verdict="undecided"),
            False,
            "growth is known of fewer than two versions",
        ),
        (growth(), None, False, "growth is known of fewer than two versions"),
    ],
)
def test_a_bisection_of_growth_says_what_begins_or_ends(
    before: ColumnGrowth, after: ColumnGrowth | None, is_found: bool, sentence: str
) -> None:
    columns = (column("1.23.2", growth=before), column("1.24.4", growth=after))
    ends = [each.label if is_found else None for each in columns]
    search = Bisection(metric="growth", before=ends[0], after=ends[1], candidates=9)
    text = shown(comparisons.comparison(*columns, bisection=search))
    assert f"{sentence} (2 of 9 versions were tried)" in " ".join(text.split())


def test_the_growth_of_each_version_is_a_row() -> None:
    columns = (column("1.20.1", growth=growth(2000)), column("1.21.0", growth=growth()))
    text = shown(comparisons.comparison(*columns))
    table = text[text.index("growth  verdict") :].splitlines()
    assert [*table[1].split()] == [
        *("1.20.1", "leak", "malloc", "blocks", "in", "use"),
        *("2,000", "B", "1,960", "to", "2,040", "B", "1,000"),
    ]
    assert table[2].split() == ["1.21.0", "flat", "1,000"]
    assert "growth  verdict" not in shown(comparisons.versions())
    change = column_changes(columns[0], columns[1], ComparableFigures())[0][0]
    sentence = "growth from 2 KiB a run (malloc blocks in use) to none since 1.21.0"
    assert change_sentence(comparisons.comparison(*columns), change) == sentence


def test_nothing_measured_is_said_with_the_reasons() -> None:
    text = shown(comparisons.nothing())
    assert "nothing could be measured" in text
    assert "a.onnx failed: parse: no such file" in text


def test_names_are_text_and_files_are_named() -> None:
    written = (Path("reports/x/comparison.html"), Path("reports/x/comparison.json"))
    text = shown(comparisons.hostile(), written=written)
    assert "[red]x[/red]" in text
    assert "comparison.html · comparison.json" in text
    assert profiles.HOSTILE[:20] in text


def causes(count: int) -> str:
    return "; ".join(f"{'-' if i == 1 else '+'}{90 - i} MiB, cause {i} of it" for i in range(count))


def differing(count: int, kind: ComparisonKind = "models") -> Comparison:
    """Return columns that differ from the first in all figures, for five causes each."""
    columns = [column("a.onnx"), *(column(f"b{i}.onnx", measured(2000)) for i in range(1, count))]
    metrics = ("steady", "mapped", "peak", "kept", "load", "latency", "disk", "outputs")
    changes = (
        comparisons.change(metric, each.label, from_="a.onnx", why=causes(5), phase="prepack")
        for each in columns[1:]
        for metric in metrics
    )
    return comparisons.comparison(*columns, kind=kind, changes=tuple(changes))


@pytest.mark.parametrize(("count", "named"), [(2, 3), (3, 2), (4, 3), (5, 1), (7, 1)])
def test_every_column_has_its_largest_causes_in_thirty_lines(count: int, named: int) -> None:
    text = shown(differing(count), written=(Path("reports/a.compare/comparison.html"),))
    assert len(text.splitlines()) <= MAX_LINES
    sentences = " ".join(text.split())
    for index in range(1, count):
        first = "; ".join(causes(5).split("; ")[:named])
        steady = f"b{index}.onnx: steady from 500 MiB to 500 MiB: {first}"
        assert f"{steady}; and {5 - named} more causes, together +" in sentences
    assert "all differences and causes" in sentences
    everything = " ".join(shown(differing(count), detail=Detail.ALL).split())
    assert everything.count(causes(5)) == 7 * (count - 1)  # the peak has those of steady
    assert "more cause" not in everything


def test_a_cause_that_takes_no_more_room_than_its_count_is_named() -> None:
    change = comparisons.change("steady", "b.onnx", from_="a.onnx", why=causes(4))
    record = comparisons.comparison(
        column("a.onnx"), column("b.onnx"), kind="models", changes=(change,)
    )
    assert causes(4) in change_sentence(record, change, max_causes=3)
    few = change_sentence(record, change, max_causes=2)
    assert few.endswith("; and 2 more causes, together +175 MiB")


@pytest.mark.parametrize(
    ("hidden", "ending"),
    [
        ("-1,000 MiB, x; +1.50 GiB not explained", "and 2 more causes, together +536 MiB"),
        ("+9 MiB, x; -9 MiB, y", "and 2 more causes, together 0 B"),
        ("+9 MiB, x; a part of the +99 MiB of the arena", "and 2 more causes"),
    ],
)
def test_causes_that_are_left_out_are_summed_where_all_have_a_size(
    hidden: str, ending: str
) -> None:
    change = comparisons.change("steady", "b.onnx", from_="a.onnx", why=f"+90 MiB, w; {hidden}")
    record = comparisons.comparison(
        column("a.onnx"), column("b.onnx"), kind="models", changes=(change,)
    )
    assert change_sentence(record, change, max_causes=1).endswith(f"; {ending}")


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ("-40 MiB, x; +40 MiB, y; +1 MiB, z", "+90 MiB, w; and 3 more causes, together +1.0 MiB"),
        ("-40 MiB, x; +41 MiB, y; +1 MiB, z", "+90 MiB, w; -40 MiB, x; and 2 more"),
    ],
)
def test_no_half_of_causes_that_cancel_stands_alone(others: str, shown: str) -> None:
    change = comparisons.change("steady", "b.onnx", from_="a.onnx", why=f"+90 MiB, w; {others}")
    record = comparisons.comparison(
        column("a.onnx"), column("b.onnx"), kind="models", changes=(change,)
    )
    assert shown in change_sentence(record, change, max_causes=2)


def test_mapped_memory_is_told_with_what_is_anonymous() -> None:
    after = measured(1000, 500, phases=(), anonymous=mib(20), file=mib(480))
    pair = (column("a.onnx", measured(phases=())), column("b.onnx", after))
    found, _ = column_changes(*pair, ComparableFigures())
    record = comparisons.comparison(*pair, kind="models", changes=found)
    assert comparison_answer(record) == f"{SAME}; mapped from 10 MiB in a.onnx to 480 MiB in b.onnx"
    (sentence,) = (change_sentence(record, each) for each in found)
    mapped = "b.onnx: mapped from 10 MiB to 480 MiB, anonymous from 490 MiB to 20 MiB"
    assert sentence.startswith(mapped)


def with_findings(made: ComparisonColumn, *rules: str, **changes: object) -> ComparisonColumn:
    found = (msgspec.structs.replace(TIED, name=rule, **changes) for rule in rules)
    profile = msgspec.structs.replace(profiles.tied_if(), findings=tuple(found))
    return msgspec.structs.replace(made, profile=profile)


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            {"rewrites": ("hoist",)},
            "says why; memdiag fix 'my models/b.onnx' --only waste tries remedies",
        ),
        ({"rewrites": ()}, "says why"),
        ({"rewrites": None}, "says why"),
        ({"evidence": "refuted"}, ""),
        ({"bytes": 0, "peak_bytes": 0}, ""),
    ],
)
def test_a_finding_that_one_column_has_is_named_with_what_to_do(
    changes: dict[str, object], ending: str
) -> None:
    other = column("b.onnx", model="my models/b.onnx")
    changes = {"bytes": 500 * MIB, "evidence": "measured", **changes}
    columns = (
        with_findings(column("a.onnx"), "duplicates", **changes),
        with_findings(other, "duplicates", "waste", **changes),
    )
    record = comparisons.comparison(*columns, kind="models")
    costs = "b.onnx: waste costs 500 MiB at steady state (measured). memdiag explain waste"
    assert finding_sentences(record) == ([f"{costs} {ending}"] if ending else [])
    if ending:
        assert costs in " ".join(shown(record, detail=Detail.ANSWER).split())
    # What the rules know of another release may be less.
    newer = msgspec.structs.replace(columns[1], onnxruntime="1.32.0")
    assert finding_sentences(comparisons.comparison(columns[0], newer, kind="models")) == []


@pytest.mark.parametrize(("retained", "is_said"), [(20, True), (5, False)])
def test_a_change_that_is_mostly_what_malloc_keeps_is_called_so(
    retained: int, is_said: bool
) -> None:
    before = retaining(column("1.24.4", measured(188, 170), profile=profiles.tied_if()), 10)
    after = column("1.32.0", measured(188, 200), profile=profiles.tied_if())
    change = comparisons.change("steady", "1.32.0", bytes=30 * MIB)
    answer = comparison_answer(
        comparisons.comparison(before, retaining(after, 10 + retained), changes=(change,))
    )
    assert ("mostly freed memory that malloc keeps" in answer) is is_said
    assert ("MALLOC_MMAP_THRESHOLD_=131072" in answer) is is_said


def test_models_that_did_not_run_are_not_said_to_be_alike() -> None:
    made = profiles.tied_if()
    session = msgspec.structs.replace(made.session, runs=None)
    created = msgspec.structs.replace(made, session=session)
    columns = [column(name, measured(90, 87), profile=created) for name in ("1.24.4", "1.32.0")]
    answer = comparison_answer(comparisons.comparison(*columns))
    assert answer.startswith("the model does not run with these inputs: the sessions were only")
    saved = comparison_answer(comparisons.comparison(*columns, kind="profiles"))
    assert "does not run" not in saved
