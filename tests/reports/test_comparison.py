"""What is told of compared columns: the answer, what differs with its causes, and the tables."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memdiag.comparison.changes import column_changes
from memdiag.comparison.comparable import ComparableFigures
from memdiag.detail import MAX_LINES, Detail
from memdiag.records.comparison import (
    Bisection,
    ColumnFigures,
    ColumnGrowth,
    Comparison,
    ComparisonColumn,
    ComparisonKind,
    FigureChange,
    GraphSize,
)
from memdiag.records.dimension import Dimension
from memdiag.reports.comparison.sentences import (
    change_sentence,
    comparison_answer,
    comparison_title,
    finding_sentences,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.units import MIB
from tests.comparison.columns import column, growth, measured, mib, phase, retaining, seconds
from tests.reports import comparisons
from tests.reports.attributions import attribution, copy
from tests.reports.findings import TIED
from tests.reports.rendering import assert_sentences_approved, printed, replaced, table_lines, words


def compared(*columns: ComparisonColumn, kind: ComparisonKind = "models") -> Comparison:
    """Return columns with the changes that are found from each to the next."""
    changes = [
        change
        for before, after in pairwise(columns)
        for change in column_changes(before, after, ComparableFigures())[0]
    ]
    return comparisons.comparison(*columns, kind=kind, changes=tuple(changes))


def models(before: ColumnFigures, after: ColumnFigures) -> Comparison:
    return compared(column("a.onnx", before), column("b.onnx", after))


def profiled(*steady: float, **changes: Any) -> list[ComparisonColumn]:
    """Return saved profiles of one process each, with changes of the second."""
    figures = (measured(1000, size, times=1, spread=0, phases=()) for size in steady)
    columns = [column(f"{label}.json", taken) for label, taken in zip("abc", figures, strict=False)]
    columns[1] = replaced(columns[1], **{f"profile__{name}": to for name, to in changes.items()})
    return columns


def profiles_of(*columns: ComparisonColumn, **more: Any) -> Comparison:
    return comparisons.comparison(*columns, kind="profiles", **more)


def every_change() -> Comparison:
    """Return a comparison with changes of all metrics, as they are found in its columns."""
    slow = measured(2000, 1500, load=2.5, peak_phase="prepack")
    graph = GraphSize(nodes=12, initializers=4, parameters=2000, saved_bytes=1000 * MIB)
    return compared(
        column("a.onnx", attribution=attribution(copy("original", 500 * MIB, "w"))),
        column("b.onnx", slow, ratio=(1.3, 1.2, 1.4), graph=graph, largest_difference=0.5),
        column("c.onnx", measured(400, 90, load=0.2), ratio=(0.4, 0.3, 0.5)),
    )


def small() -> Comparison:
    """Return saved profiles of small models, whose latencies did not race."""
    slower = {"latency__median_s": 0.03, "latency__low_s": 0.029, "latency__high_s": 0.031}
    first = column("a.json", measured(20, 10))
    other = replaced(column("b.json", measured(60, 50, load=2.0)), **slower)
    excluded = ComparableFigures(excluded={"latency": "they were not taken in turn"})
    return profiles_of(first, other, changes=column_changes(first, other, excluded)[0])


def retained(before: int, after: int) -> Comparison:
    """Return releases of which the second takes 30 MiB more, with what malloc retains of each."""
    columns = (
        retaining(column("1.24.4", measured(188, 170)), before),
        retaining(column("1.32.0", measured(188, 200)), after),
    )
    change = comparisons.change("steady", "1.32.0", bytes=30 * MIB)
    return comparisons.comparison(*columns, changes=(change,))


def created(kind: ComparisonKind) -> Comparison:
    """Return releases on which the session was created and not run."""
    columns = (column(name, measured(90, 87)) for name in ("1.24.4", "1.32.0"))
    return comparisons.comparison(
        *(replaced(made, profile__session__runs=None) for made in columns), kind=kind
    )


def bisected(
    before: ColumnGrowth, after: ColumnGrowth | None, *, is_found: bool = True
) -> Comparison:
    """Return the search for a change of growth between two releases."""
    columns = (column("1.23.2", growth=before), column("1.24.4", growth=after))
    ends = ("1.23.2", "1.24.4") if is_found else (None, None)
    search = Bisection(metric="growth", before=ends[0], after=ends[1], candidates=9)
    return comparisons.comparison(*columns, bisection=search)


FOLDING = measured(phases=(phase("optimize", 800, 0),))
SLOWER = replaced(FOLDING, load=seconds(2.0))
KEEPS = replaced(SLOWER, phases=(phase("optimize", 800, 90),))
LARGER = replaced(SLOWER, steady=mib(600))
MAPPED = measured(1000, 500, phases=(), anonymous=mib(20), file=mib(480))
NOT_RUN = profiled(68, 84, 68, session__runs=None)
FREED = profiled(500, 553)
ANSWERS = {
    "every metric": every_change(),
    "small": small(),
    "falling": models(measured(2000, 1500), measured()),
    "slower": models(FOLDING, SLOWER),
    "slower, keeps more in a phase": models(FOLDING, KEEPS),
    "slower and larger: memory alone": models(FOLDING, LARGER),
    "mapped": models(measured(phases=()), MAPPED),
    "equal": models(FOLDING, FOLDING),
    "sampled peak": profiles_of(*profiled(500, 500, peak_kind="sampled")),
    "exact peak": profiles_of(*profiled(500, 500, peak_kind="exact")),
    "sampled peak, larger": compared(
        column("a.json"), column("b.json", measured(2000, peak_kind="sampled")), kind="profiles"
    ),
    "may be chance": profiles_of(FREED[0], retaining(FREED[1], 20)),
    "less than may be chance": profiles_of(*profiled(500, 503)),
    "one of two was not run": profiles_of(*NOT_RUN[:2]),
    "one of three was not run": profiles_of(*NOT_RUN),
    "both were run": profiles_of(NOT_RUN[0], NOT_RUN[2]),
    # They were measured side by side, and thus alike.
    "one of two models was not run": comparisons.comparison(*NOT_RUN[:2], kind="models"),
    "no release runs": created("onnxruntime"),
    "no saved profile was run": created("profiles"),
    "mostly what malloc keeps": retained(10, 30),
    "partly what malloc keeps": retained(10, 15),
}
BISECTIONS = {
    "begins": bisected(growth(), growth(2000)),
    "ends": bisected(growth(2000), growth()),
    "changes": bisected(growth(500), growth(2000)),
    "does not change": bisected(growth(500), growth(500), is_found=False),
    "none": bisected(growth(), growth(), is_found=False),
    "undecided": bisected(growth(), growth(verdict="undecided"), is_found=False),
    "known of one": bisected(growth(), None, is_found=False),
}


def test_the_answer_is_about_memory_first_and_says_what_is_not_compared() -> None:
    sentences = {case: (comparison_answer(record),) for case, record in ANSWERS.items()}
    assert_sentences_approved("comparison_answers", sentences)


def test_a_bisection_of_growth_says_what_begins_or_ends() -> None:
    sentences = {
        case: (words(record, detail=Detail.ANSWER),) for case, record in BISECTIONS.items()
    }
    assert_sentences_approved("comparison_bisections_of_growth", sentences)


def test_each_change_is_told_with_its_figures() -> None:
    assert {change.metric for change in every_change().changes} == {
        *("steady", "peak", "kept", "load", "latency", "disk", "outputs")
    }
    records = {
        **{case: ANSWERS[case] for case in ("every metric", "mapped", "sampled peak, larger")},
        "growth": TABLES["growth"],
    }
    sentences = {
        case: [change_sentence(record, change) for change in record.changes]
        for case, record in records.items()
    }
    assert_sentences_approved("comparison_changes", sentences)


def figures(text: str) -> set[str]:
    """Return the sizes, times and ratios in `text`, but for sizes of causes, which add up."""
    text = re.sub(r"[+-][\d,.]+ (?:[KMG]iB|B)", "", text)
    return {*re.findall(r"-?[\d,.]+ (?:[KMG]iB|B|ms|µs|s|×)(?!\w)", text)}


@pytest.mark.parametrize("build", [every_change, small, comparisons.versions])
def test_every_figure_of_a_sentence_is_in_a_table(build: Callable[[], Comparison]) -> None:
    record = build()
    known = set()
    for _, table in comparison_tables(record):
        texts = {cell.text for row in table.rows for cell in row.cells}
        # Tables by phase are in MiB, as their captions say.
        known |= texts | {f"{text} MiB" for text in texts if "MiB" in table.caption}
    known |= {text.partition(" ± ")[0] for text in known}
    sentences = (change_sentence(record, change) for change in record.changes)
    told = figures(" ".join((comparison_answer(record), *sentences)))
    assert len(told) >= 4
    assert told - known == set()
    # The medians of columns that ran in turn would be another figure for the same thing.
    assert build is not every_change or "13 ms" not in known


KEPT = (phase("parse", 500, 500), phase("constant_fold", 1000, 20), phase("prepack", 620, 100))
GROWN = measured(1000, 620, phases=KEPT)
NO_COUNTS = GraphSize(nodes=12, initializers=None, parameters=None, saved_bytes=MIB)
UNCOUNTED = [column(label, graph=NO_COUNTS) for label in ("a.json", "b.json")]
TABLES = {
    "phases add up": models(measured(), GROWN),
    "sums of medians are off": models(measured(), replaced(GROWN, steady=mib(640, 1))),
    "measured once": models(measured(times=1), measured(times=1)),
    "measured once and three times": models(measured(times=1), measured(times=3)),
    "outputs were not compared": profiles_of(*UNCOUNTED),
    "outputs are equal": profiles_of(UNCOUNTED[0], replaced(UNCOUNTED[1], largest_difference=0.0)),
    "outputs have other shapes": profiles_of(
        UNCOUNTED[0], replaced(UNCOUNTED[1], difference="other shapes")
    ),
    "sampled peak": ANSWERS["sampled peak, larger"],
    "growth": compared(
        column("1.20.1", growth=growth(2000)), column("1.21.0", growth=growth()), kind="onnxruntime"
    ),
}


def test_tables_have_the_columns_that_are_known_and_rows_that_add_up() -> None:
    lines = {
        case: [line for _, table in comparison_tables(record) for line in table_lines(table)]
        for case, record in TABLES.items()
    }
    assert_sentences_approved("comparison_tables", lines)
    for row in dict(comparison_tables(TABLES["phases add up"]))["Kept by phase"].rows:
        *parts, total = (int(cell.text) for cell in row.cells[1:])
        assert sum(parts) == total


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
    sizes = [
        (Dimension(name=name, size=4, role="batch", source="chosen", reason=""),) if name else ()
        for name in names
    ]
    columns = [
        replaced(column(label), profile__dimensions=dimensions)
        for label, dimensions in zip(("a.onnx", "b.onnx"), sizes, strict=True)
    ]
    record = comparisons.comparison(*columns, kind="models", dimensions=sizes[0])
    assert comparison_title(record) == expected


def causes(count: int) -> str:
    return "; ".join(f"{'-' if i == 1 else '+'}{90 - i} MiB, cause {i} of it" for i in range(count))


def differing(count: int) -> Comparison:
    """Return columns that differ from the first in all figures, for five causes each."""
    columns = [column("a.onnx"), *(column(f"b{i}.onnx", measured(2000)) for i in range(1, count))]
    metrics = ("steady", "mapped", "peak", "kept", "load", "latency", "disk", "outputs")
    changes = (
        comparisons.change(metric, made.label, from_="a.onnx", why=causes(5), phase="prepack")
        for made in columns[1:]
        for metric in metrics
    )
    return comparisons.comparison(*columns, kind="models", changes=tuple(changes))


@pytest.mark.parametrize(("count", "named"), [(2, 3), (3, 2), (4, 3), (5, 1), (7, 1)])
def test_every_column_has_its_largest_causes_in_thirty_lines(count: int, named: int) -> None:
    record = differing(count)
    written = (Path("reports/a.compare/comparison.html"),)
    text = printed(record, detail=Detail.USUAL, written=written)
    assert len(text.splitlines()) <= MAX_LINES
    for index in range(1, count):
        first = "; ".join(causes(5).split("; ")[:named])
        steady = f"b{index}.onnx: steady from 500 MiB to 500 MiB: {first}"
        assert f"{steady}; and {5 - named} more causes, together +" in " ".join(text.split())
    everything = words(record)
    assert everything.count(causes(5)) == 7 * (count - 1)  # the peak has those of steady
    assert "more cause" not in everything


def told(why: str, max_causes: int | None = None) -> str:
    """Return what is told of a change with the causes `why`."""
    change: FigureChange = comparisons.change("steady", "b.onnx", from_="a.onnx", why=why)
    record = compared(column("a.onnx"), column("b.onnx"))
    if max_causes is None:
        return change_sentence(record, change)
    return change_sentence(record, change, max_causes=max_causes)


@pytest.mark.parametrize(
    ("why", "most", "expected"),
    [
        pytest.param(causes(4), 3, causes(4), id="as short as its count"),
        pytest.param(causes(4), 2, "; and 2 more causes, together +175 MiB", id="longer"),
        pytest.param(
            *("+90 MiB, w; -1,000 MiB, x; +1.50 GiB not explained", 1),
            "+90 MiB, w; and 2 more causes, together +536 MiB",
            id="all have a size",
        ),
        pytest.param(
            *("+90 MiB, w; +9 MiB, x; a part of the +99 MiB of the arena", 1),
            "+90 MiB, w; and 2 more causes",
            id="one has no size",
        ),
        pytest.param(
            *("+90 MiB, w; +9 MiB, x; -9 MiB, y", 1),
            "+90 MiB, w; and 2 more causes, together 0 B",
            id="sum is nothing",
        ),
        pytest.param(
            *("+90 MiB, w; -40 MiB, x; +40 MiB, y; +1 MiB, z", 2),
            "+90 MiB, w; and 3 more causes, together +1.0 MiB",
            id="no half of two that cancel",
        ),
        pytest.param(
            *("+90 MiB, w; -40 MiB, x; +41 MiB, y; +1 MiB, z", 2),
            "+90 MiB, w; -40 MiB, x; and 2 more causes, together +42 MiB",
            id="two that do not cancel",
        ),
    ],
)
def test_causes_that_are_left_out_are_counted_and_summed(
    why: str, most: int, expected: str
) -> None:
    assert told(why, most).endswith(expected)


def test_long_causes_are_whole_and_only_a_very_long_one_loses_its_middle() -> None:
    name = "bert.encoder.layer.{}.attention.self.query.weight_quantized_and_transposed"
    long = [f"-{9 - n}0 MiB, int8.onnx keeps {name.format(n)} as it is" for n in range(3)]
    sentence = told("; ".join((*long, "-4 MiB not explained")))
    assert all(cause in sentence for cause in long)
    sentence = told(f"-9 MiB, {'n' * 10_000}; {long[0]}")
    assert len(sentence) < 500
    assert "-9 MiB, n" in sentence
    assert sentence.endswith(long[0])


WASTE_COSTS = "b.onnx: waste costs 500 MiB at steady state (measured). memdiag explain waste"


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            {"rewrites": ("hoist",)},
            "says why; memdiag fix 'my models/b.onnx' --only waste tries remedies",
        ),
        ({"rewrites": ()}, "says why"),
        ({"rewrites": None}, "says why"),
        ({"evidence": "refuted"}, None),
        ({"bytes": 0, "peak_bytes": 0}, None),
    ],
)
def test_a_finding_that_one_column_has_is_named_with_what_to_do(
    changes: dict[str, object], ending: str | None
) -> None:
    fields = {"bytes": 500 * MIB, "evidence": "measured", **changes}
    both, only = (replaced(TIED, name=name, **fields) for name in ("duplicates", "waste"))
    first = replaced(column("a.onnx"), profile__findings=(both,))
    second = replaced(column("b.onnx", model="my models/b.onnx"), profile__findings=(both, only))
    record = comparisons.comparison(first, second, kind="models")
    assert finding_sentences(record) == ([f"{WASTE_COSTS} {ending}"] if ending else [])
    assert (WASTE_COSTS in words(record, detail=Detail.ANSWER)) == bool(ending)
    # What the rules know of another release may be less.
    newer = replaced(second, onnxruntime="1.32.0")
    assert finding_sentences(comparisons.comparison(first, newer, kind="models")) == []
