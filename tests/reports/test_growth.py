"""Growth on a terminal, in Markdown, as a picture and as data, for each verdict."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from memdiag.api.load import load_reported
from memdiag.detail import Detail
from memdiag.records.growth import GrowingBlocks, Growth
from memdiag.reports import github, report_of
from memdiag.reports.growth.blocks import malloc_block_table
from memdiag.reports.growth.chart import growth_chart
from memdiag.reports.growth.owners import growth_owner_table, owner_series
from memdiag.reports.growth.picture import draw
from tests.reports import growths
from tests.reports.growths import VERDICTS


def summary(growth: Growth, *, detail: Detail = Detail.ALL, color: bool = False) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=color)
    report_of(growth).print_summary(growth, console, detail=detail)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(growth: Growth) -> dict[str, list[str]]:
    cells = [[cell.text for cell in row.cells] for row in growth_owner_table(growth).rows]
    return {row[0]: row for row in cells}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_its_sentence_its_owners_and_its_advice(verdict: str) -> None:
    growth = VERDICTS[verdict]()
    text = summary(growth)
    words = " ".join(text.split())
    name = growth.subject if growth.kind == "program" else "encoder.onnx"
    assert words.startswith(f"{name}: {growth.sentence}.")
    assert growth.advice[1:] in words
    assert ("What to do" in text) == bool(growth.advice)
    strong = {row.cells[0].text for row in growth_owner_table(growth).rows if row.is_strong}
    expected = {
        "flat": set(),
        "high_water": {"arena slack"},
        "patterns": {"memory patterns"},
        "retained": {"retained by malloc"},
    }
    assert strong == expected.get(verdict, {"malloc blocks in use"})
    markdown = report_of(growth).render(growth, "markdown").decode()
    assert "| resident set |" in markdown
    assert ("**What to do:**" in markdown) == bool(growth.advice)


@pytest.mark.parametrize(
    ("verdict", "color"),
    [("leak", "31"), ("kept", "31"), ("flat", "32"), ("plateau", "32"), ("retained", "33")],
)
def test_the_verdict_is_coloured(verdict: str, color: str) -> None:
    assert summary(VERDICTS[verdict](), color=True).startswith(f"\x1b[1;{color}m")


def test_quiet_is_the_verdict_alone() -> None:
    growth = growths.flat()
    assert summary(growth, detail=Detail.ANSWER) == (
        "encoder.onnx: no growth: the resident set is 67 MiB after 1,000 runs.\n"
    )


def test_of_reloads_the_resident_set_after_some_is_listed() -> None:
    reloads = msgspec.structs.replace(growths.flat(), unit="reload")
    text = "Resident set after reload 1: 67 MiB, 2: 67 MiB, 5: 67 MiB, 10: 67 MiB, 20: 67 MiB,"
    assert text in " ".join(summary(reloads).split())
    assert text in report_of(reloads).render(reloads, "markdown").decode()
    assert text in report_of(reloads).render(reloads, "html").decode()
    assert "Resident set after" not in summary(growths.flat())


def test_the_table_has_sizes_growth_and_rate_of_what_is_in_use() -> None:
    found = rows(growths.leak())
    assert found["malloc blocks in use"] == [
        *("malloc blocks in use", "13 MiB", "21 MiB", "21 MiB", "+394 KiB", "+448 B")
    ]
    assert found["Python objects"] == ["Python objects", "19 MiB", "19 MiB", "19 MiB", "0", ""]
    assert found["resident set"][1:] == ["59 MiB", "67 MiB", "67 MiB", "+394 KiB", "+448 B"]
    assert "After run 1, after the warm-up (run 100)" in summary(growths.leak())


def test_blocks_are_listed_only_where_memory_in_use_grows() -> None:
    text = summary(growths.kept())
    assert "25 KiB   900      1    22 MiB  output 'y'" in text
    assert "Blocks of malloc" not in summary(growths.flat())
    # Two blocks in a thousand runs are no growth.
    assert "Blocks of malloc" not in summary(growths.undecided())
    assert "Blocks of malloc" not in summary(growths.retained())


def test_sizes_of_blocks_that_would_look_equal_are_in_bytes() -> None:
    blocks = [
        GrowingBlocks(block_bytes=size, blocks=900, blocks_per_run=rate)
        for size, rate in ((262_160, 14_321.4), (262_176, 1.25), (1040, 0.5))
    ]
    table = malloc_block_table(msgspec.structs.replace(growths.leak(), blocks=tuple(blocks)))
    shown = [(row.cells[0].text, row.cells[2].text) for row in table.rows]
    assert shown == [("262,160 B", "14,321"), ("262,176 B", "1.25"), ("1 KiB", "0.5")]


def test_facts_name_what_was_run() -> None:
    assert "1,000 runs · other contents in each run" in summary(growths.leak())
    facts = " ".join(summary(growths.high_water()).split())
    assert "other contents and sizes (N 1 to 512) in each run" in facts
    same = msgspec.structs.replace(growths.flat(), varied=("none",), unit="reload")
    assert "1,000 reloads · the same inputs in each reload" in summary(same)


def test_facts_tell_runs_from_the_last_reading() -> None:
    kept = growths.kept()
    last = kept.moments[-1].run
    more = msgspec.structs.replace(kept, runs=last + 24)
    assert f"{last + 24:,} runs, last reading after {last:,}" in summary(more)
    assert f"at least {last:,} runs" in summary(
        msgspec.structs.replace(kept, is_run_count_exact=False)
    )


def test_a_table_of_equal_columns_is_left_out() -> None:
    short = growths.flat()
    short = msgspec.structs.replace(short, moments=short.moments[:1])
    assert "after the warm-up" in summary(growths.flat())
    assert "after the warm-up" not in summary(short)


def test_an_early_end_is_stated() -> None:
    text = " ".join(summary(growths.undecided()).split())
    assert "Ended early: models/encoder.onnx: a run failed (out of memory)." in text
    markdown = report_of(growths.undecided()).render(growths.undecided(), "markdown").decode()
    assert "**Ended early: models/encoder.onnx: a run failed" in markdown


def test_layers_sum_up_to_the_resident_set() -> None:
    growth = growths.high_water()
    series = owner_series(growth)
    sums = [sum(sizes) for sizes in zip(*(each.resident_bytes for each in series), strict=True)]
    assert sums == [moment.resident_bytes for moment in growth.moments]


def test_a_small_leak_is_drawn_since_the_warm_up_with_its_slope() -> None:
    chart = growth_chart(growths.leak())
    (drawn,) = [layer for layer in chart.layers if layer.is_drawn]
    assert chart.growth_x[0] == 100
    assert drawn.growth_bytes == tuple((int(x) - 100) * 448 for x in chart.growth_x)
    assert chart.slope is not None
    assert chart.slope.of_owner == chart.layers.index(drawn)
    assert chart.slope.bytes == (0.0, 900 * 448.0)
    assert chart.slope.text == "448 B a run (95 % interval 440 B to 456 B)"


def test_no_slope_is_drawn_where_growth_has_ended() -> None:
    assert growth_chart(growths.retained()).slope is None
    line = growth_chart(growths.undecided()).slope
    assert line is not None
    assert line.of_owner is None


def test_seconds_take_the_place_of_runs_that_are_not_known() -> None:
    growth = msgspec.structs.replace(growths.kept(), unit="second", runs=0, samples=())
    text = summary(growth)
    assert "observed for 10 s" in text
    assert "a second" in text
    assert "after the warm-up (1.0 s)" in " ".join(text.split())
    chart = growth_chart(growth)
    assert chart.x[-1] == growth.moments[-1].time_s
    assert not chart.has_samples


def test_without_owners_there_is_the_resident_set() -> None:
    growth = growths.counters_only()
    assert list(rows(growth)) == ["resident set"]
    assert report_of(growth).render(growth, "png").startswith(b"\x89PNG")


def test_runs_that_ended_before_the_warm_up_are_drawn() -> None:
    growth = growths.flat()
    growth = msgspec.structs.replace(
        growth, moments=growth.moments[:1], samples=growth.samples[:3], message="interrupted"
    )
    assert growth_chart(growth).warm_up == 3
    assert report_of(growth).render(growth, "svg").startswith(b"<?xml")


def test_a_damaged_warm_up_is_drawn_at_the_start() -> None:
    damaged = msgspec.structs.replace(growths.plateau(), warm_up_runs=-(2**31))
    assert growth_chart(damaged).warm_up == 0
    assert report_of(damaged).render(damaged, "png")


def test_all_formats_are_rendered_again_from_the_record(tmp_path: Path) -> None:
    growth = growths.leak()
    growth.save(tmp_path / "growth.json")
    loaded = load_reported(tmp_path / "growth.json")
    assert loaded == growth
    written = report_of(loaded).write(loaded, tmp_path, report_of(loaded).formats())
    assert {path.name for path in written} == {
        "issue.md",
        *(f"growth.{suffix}" for suffix in ("html", "json", "md", "png", "svg")),
    }


def test_annotations_of_github_are_errors_for_leaks_and_early_ends() -> None:
    (leak,) = github.growth_annotations(growths.leak()).splitlines()
    assert leak.startswith("::error file=models/encoder.onnx,title=memory growth::encoder.onnx: a ")
    assert "%0ATry the newest release" in leak
    (flat,) = github.growth_annotations(growths.flat()).splitlines()
    assert flat.startswith("::notice file=models/encoder.onnx")
    verdict, ended = github.growth_annotations(growths.undecided()).splitlines()
    assert verdict.startswith("::notice ")
    assert ended.startswith("::error file=models/encoder.onnx,title=memory growth ended early::")
    (kept,) = github.growth_annotations(growths.kept()).splitlines()
    assert kept.startswith("::error title=memory growth::python server.py --port 80: kept ")


def test_moments_without_the_heap_are_not_drawn_beside_those_with_it() -> None:
    growth = growths.leak()
    moments = list(growth.moments)
    moments[5] = msgspec.structs.replace(
        moments[5], heap_bytes=None, arena_used_bytes=None, arena_slack_bytes=None
    )
    chart = growth_chart(msgspec.structs.replace(growth, moments=tuple(moments)))
    assert len(chart.moments_x) == 12
    (drawn,) = [layer for layer in chart.layers if layer.is_drawn]
    assert drawn.growth_bytes[-1] == 900 * 448


def test_a_resident_set_that_is_known_at_moments_only_is_drawn_in_steps() -> None:
    growth = msgspec.structs.replace(growths.high_water(), samples=())
    figure = draw(growth)
    curve = figure.axes[0].lines[0]
    assert curve.get_drawstyle() == "steps-post"
