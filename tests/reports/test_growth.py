"""Growth on a terminal, in Markdown, as a picture and as data, for each verdict."""

import pytest

from memdiag.records.growth import GrowingBlocks, Growth
from memdiag.reports import github, report_of
from memdiag.reports.growth.blocks import malloc_block_table
from memdiag.reports.growth.chart import GrowthLayer, growth_chart
from memdiag.reports.growth.headline import growth_headline
from memdiag.reports.growth.owners import growth_owner_table, owner_series
from memdiag.reports.growth.picture import draw
from tests.reports import growths
from tests.reports.growths import VERDICTS
from tests.reports.rendering import (
    assert_sentences_approved,
    html,
    markdown,
    printed,
    replaced,
    section,
    table_lines,
    words,
)

STRONG_ROWS = {
    "flat": set(),
    "high_water": {"arena slack"},
    "patterns": {"memory patterns"},
    "retained": {"retained by malloc"},
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_its_sentence_its_owners_and_its_advice(verdict: str) -> None:
    growth = VERDICTS[verdict]()
    name = growth.subject if growth.kind == "program" else "encoder.onnx"
    assert words(growth).startswith(f"{name}: {growth.sentence}.")
    assert growth.advice[1:] in words(growth)
    assert ("What to do" in printed(growth)) == bool(growth.advice)
    assert ("**What to do:**" in markdown(growth)) == bool(growth.advice)
    strong = {row.cells[0].text for row in growth_owner_table(growth).rows if row.is_strong}
    assert strong == STRONG_ROWS.get(verdict, {"malloc blocks in use"})


@pytest.mark.parametrize(
    ("verdict", "color"),
    [("leak", "31"), ("kept", "31"), ("flat", "32"), ("plateau", "32"), ("retained", "33")],
)
def test_the_verdict_is_coloured(verdict: str, color: str) -> None:
    assert printed(VERDICTS[verdict](), is_colored=True).startswith(f"\x1b[1;{color}m")


def test_of_reloads_the_resident_set_after_some_is_listed() -> None:
    reloads = replaced(growths.flat(), unit="reload")
    text = "Resident set after reload 1: 67 MiB, 2: 67 MiB, 5: 67 MiB, 10: 67 MiB, 20: 67 MiB,"
    for report in (words(reloads), markdown(reloads), html(reloads)):
        assert text in report
    assert "Resident set after" not in printed(growths.flat())


def test_facts_name_what_was_run() -> None:
    kept = growths.kept()
    last = kept.moments[-1].run
    records = {
        "contents and sizes": growths.high_water(),
        "reloads with the same inputs": replaced(growths.flat(), varied=("none",), unit="reload"),
        "runs after the last reading": replaced(kept, runs=last + 24),
        "runs are not all counted": replaced(kept, is_run_count_exact=False),
        "seconds": replaced(kept, unit="second", runs=0, samples=()),
    }
    texts = {
        case: (" ".join(printed(record).partition("\n\n")[0].split()),)
        for case, record in records.items()
    }
    assert_sentences_approved("growth_facts", texts)
    assert "after the warm-up (1.0 s)" in words(records["seconds"])


def test_owners_and_blocks_are_listed_where_they_are_known_and_grow() -> None:
    flat = growths.flat()
    blocks = (
        GrowingBlocks(block_bytes=size, blocks=900, blocks_per_run=rate)
        for size, rate in ((262_160, 14_321.4), (262_176, 1.25), (1040, 0.5))
    )
    tables = {
        "owners": growth_owner_table(growths.kept()),
        "owners are not known": growth_owner_table(growths.counters_only()),
        "blocks of about one size": malloc_block_table(
            replaced(growths.leak(), blocks=tuple(blocks))
        ),
    }
    lines = {case: table_lines(table) for case, table in tables.items()}
    assert_sentences_approved("growth_tables", lines)
    # Its columns would be equal.
    assert "after the warm-up" not in printed(replaced(flat, moments=flat.moments[:1]))
    assert "after the warm-up" in printed(flat)
    # Two blocks in a thousand runs are no growth.
    for growth in (flat, growths.undecided(), growths.retained()):
        assert "Blocks of malloc" not in printed(growth)
    assert "Blocks of malloc" in printed(growths.kept())


def test_an_early_end_is_stated() -> None:
    assert "**Ended early: models/encoder.onnx: a run failed" in markdown(growths.undecided())


def test_layers_sum_up_to_the_resident_set() -> None:
    growth = growths.high_water()
    layers = (layer.resident_bytes for layer in owner_series(growth))
    sums = [sum(sizes) for sizes in zip(*layers, strict=True)]
    assert sums == [moment.resident_bytes for moment in growth.moments]


def drawn_layer(growth: Growth) -> GrowthLayer:
    (layer,) = [layer for layer in growth_chart(growth).layers if layer.is_drawn]
    return layer


def test_a_small_leak_is_drawn_since_the_warm_up_with_its_slope() -> None:
    chart, drawn = growth_chart(growths.leak()), drawn_layer(growths.leak())
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
    growth = replaced(growths.kept(), unit="second", runs=0, samples=())
    chart = growth_chart(growth)
    assert chart.x[-1] == growth.moments[-1].time_s
    assert not chart.has_samples


def test_without_owners_there_is_the_resident_set() -> None:
    growth = growths.counters_only()
    assert report_of(growth).render(growth, "png").startswith(b"\x89PNG")


def test_a_warm_up_that_did_not_end_or_is_damaged_is_drawn() -> None:
    flat = growths.flat()
    short = {"moments": flat.moments[:1], "samples": flat.samples[:3], "message": "interrupted"}
    ended = replaced(flat, **short)
    assert growth_chart(ended).warm_up == 3
    assert report_of(ended).render(ended, "svg").startswith(b"<?xml")
    damaged = replaced(growths.plateau(), warm_up_runs=-(2**31))
    assert growth_chart(damaged).warm_up == 0
    assert report_of(damaged).render(damaged, "png")


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
    unknown = dict.fromkeys(("heap_bytes", "arena_used_bytes", "arena_slack_bytes"))
    moments[5] = replaced(moments[5], **unknown)
    growth = replaced(growth, moments=tuple(moments))
    assert len(growth_chart(growth).moments_x) == 12
    assert drawn_layer(growth).growth_bytes[-1] == 900 * 448


def test_a_resident_set_that_is_known_at_moments_only_is_drawn_in_steps() -> None:
    figure = draw(replaced(growths.high_water(), samples=()))
    assert figure.axes[0].lines[0].get_drawstyle() == "steps-post"


def test_a_leak_of_the_gpu_is_stated_before_the_host_and_is_bad() -> None:
    leak, clean = growths.leak_on_gpu(), growths.thread_on_gpu()
    assert leak.device is not None
    assert clean.device is not None
    for report in (words(leak), markdown(leak), html(leak)):
        on_gpu = report.index("leak on the GPU: memory of values in the arena grows by 4 KiB")
        assert on_gpu < report.index("On the host: no growth")
    assert words(clean).index("no growth: the") < words(clean).index("Warm-up on the GPU, not a")
    for growth, kind in ((leak, "error"), (clean, "notice")):
        assert github.growth_annotations(growth).startswith(f"::{kind} ")
    # The picture shows the host.
    assert growth_headline(leak).host == growth_headline(growths.flat()).first
    assert {row.cells[0].text for row in growth_owner_table(leak).rows if row.is_strong} == set()


def test_the_parts_on_the_gpu_are_listed() -> None:
    rows = section(growths.leak_on_gpu(), "on the GPU")
    assert rows[0].split()[-2:] == ["a", "run"]
    names = [row.strip().partition("  ")[0] for row in rows[1:]]
    assert names == [
        "memory of the process",
        "values in the arena",
        "empty arena",
        "cuBLAS",
        "other memory",
    ]
    assert rows[2].split()[-2:] == ["+4", "KiB"]
    assert not any(row.startswith("on the GPU") for row in printed(growths.flat()).splitlines())


def test_different_advices_are_all_given() -> None:
    undecided = replaced(growths.undecided(), device=growths.leak_on_gpu().device)
    advice = growth_headline(undecided).advice
    assert advice == "Try the newest release of onnxruntime, and report the rate with this" + (
        " record. Observe more runs."
    )
    same = replaced(undecided, advice=undecided.device.advice if undecided.device else "")
    assert growth_headline(same).advice.count("Try the newest") == 1
