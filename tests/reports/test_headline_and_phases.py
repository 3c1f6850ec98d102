from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from memdiag.records.attribution import Backing
from memdiag.records.profile import Outcome, PhaseName, Profile, Run, Status
from memdiag.reports.profile.facts import model_facts, session_facts
from memdiag.reports.profile.headline import profile_headline, weight_factor
from memdiag.reports.profile.phases import (
    notable_spans,
    phase_rows,
    profile_phase_table,
    run_sentence,
    runs_summary,
    span_rows,
)
from memdiag.reports.text import plain, shortened
from tests.reports import attributions, estimates, profiles
from tests.reports.profiles import MIB, TIED_IF, Step
from tests.reports.rendering import assert_sentences_approved, replaced, table_lines

TIED = profiles.tied_if()
IMPORTS = Step("imports", "start", 0.1, 46, 46)
FIRST_RUN = Step("first run", "first_run", 0.1, 146, 146)


FOREST = profiles.build(TIED_IF, weights=0, runs=1)  # its memory is in attributes


def ended(status: Status) -> Profile:
    outcome = Outcome(status=status, phase="parse", message="why")
    return replaced(profiles.failed(), outcome=outcome)


def rising(folding: float, start: float = 0) -> Profile:
    """Return a profile with a peak of 100 MiB in optimize, after two other phases."""
    steps = (
        Step("imports", "start", 0.1, 0, 0),
        Step("parse", "parse", 0.1, start, start),
        Step("Folding", "constant_fold", 0.1, folding, max(start, 10), 1),
        Step("between transformers", "optimize", 0.1, 100, 10),
        Step("runs", "steady", 0.1, 100, 10),
    )
    return profiles.build(steps, runs=2, weights=None, baseline=0)


HEADLINES = {
    **{status: ended(status) for status in ("failed", "killed", "timeout", "limit")},
    "not run": profiles.not_run(),
    "complete": TIED,
    "memory is not split": profiles.build(TIED_IF, runs=10, split=False),
    "memory in attributes": FOREST,
    "memory in attributes of a small file": replaced(FOREST, model__file_bytes=MIB - 1),
    "malloc keeps much": replaced(TIED, allocator_retained_bytes=150 * MIB),
    "malloc keeps little": replaced(TIED, allocator_retained_bytes=10 * MIB),
    "malloc keeps nothing": replaced(TIED, allocator_retained_bytes=0),
    "not known what malloc keeps": replaced(TIED, allocator_retained_bytes=None),
    "97 % in an earlier phase": rising(97),
    "94.9 % in an earlier phase": rising(94.9),
    # It did not rise to the peak: it began there.
    "96 % at the start of a phase": rising(96, 96),
    "95.5 % in a phase that began with 94.9 %": rising(95.5, 94.9),
    "peak below the baseline": replaced(TIED, peak_rss_bytes=40 * MIB),
}


def test_the_headline_has_the_peak_and_the_end() -> None:
    headlines = {case: profile_headline(profile) for case, profile in HEADLINES.items()}
    texts = {case: (text.first, text.second, text.facts) for case, text in headlines.items()}
    assert_sentences_approved("profile_headlines", texts)
    early = {case for case, text in headlines.items() if not text.completed}
    assert early == {"failed", "killed", "timeout", "limit"}


@pytest.mark.parametrize(
    ("profile", "factor"),
    [
        pytest.param(TIED, "3.0 ×", id="known"),
        pytest.param(profiles.failed(), None, id="unknown weights"),
        pytest.param(profiles.tiny(), None, id="64 KiB of weights"),
        pytest.param(FOREST, None, id="no weights"),
    ],
)
def test_the_multiple_of_the_weights_is_left_out_where_it_says_nothing(
    profile: Profile, factor: str | None
) -> None:
    assert weight_factor(profile, 1500 * MIB) == factor


@pytest.mark.parametrize(
    ("weights", "library", "mapped", "shown"),
    [
        pytest.param(6, 8, 0, None, id="library larger"),
        pytest.param(8, 8, 0, None, id="equal"),
        pytest.param(8.1, 8, 0, "6.2 ×", id="weights larger"),
        pytest.param(6, 8, 2.1, "8.3 ×", id="weights mapped"),
        pytest.param(6, 0, 0, "8.3 ×", id="no library pages"),
    ],
)
def test_a_multiple_that_says_more_of_the_library_is_left_out(
    weights: float, library: float, mapped: float, shown: str | None
) -> None:
    """Of the file-backed memory above the baseline, what is not the model's is the library's."""
    backing = Backing(kind="file", file="m.data", offset=0)
    copy = attributions.copy("original", round(mapped * MIB), backing=backing)
    profile = replaced(
        profiles.build(TIED_IF, weights=weights, runs=1),
        steady__file_bytes=(profiles.FILE_MIB + library) * MIB,
        attribution=attributions.attribution(copy),
    )
    assert weight_factor(profile, 50 * MIB) == shown
    answer = profile_headline(profile)
    assert ("the weights" in answer.first) == ("×" in answer.second) == (shown is not None)


def test_rows_name_the_step_that_is_responsible_and_the_peak() -> None:
    rows = {row.phase: row for row in phase_rows(TIED)}
    assert rows["prepack"].responsible == ""
    assert rows["constant_fold"].responsible == "ConstantFolding"
    assert [row.phase for row in rows.values() if row.is_peak] == ["first_run"]
    assert not any(row.ending for row in rows.values())


@pytest.mark.parametrize("build", [profiles.tied_if, profiles.tiny, profiles.uneven])
def test_the_rows_of_the_phase_table_follow_each_other(build: Callable[[], Profile]) -> None:
    rows = [row for row in profile_phase_table(build()).rows if not row.level]
    number = [[float(row.cells[i].text.replace(",", "")) for i in (2, 4, 5)] for row in rows]
    assert all(before[1] == after[0] for before, after in pairwise(number))
    assert all(round(end - start, 1) == kept for start, end, kept in number)


def with_phases(changes: dict[PhaseName, dict[str, Any]]) -> Profile:
    phases = tuple(replaced(phase, **changes.get(phase.name, {})) for phase in TIED.phases)
    return replaced(TIED, phases=phases)


def with_peaks(optimize: int, folding: int) -> Profile:
    """Return a profile with an exact peak of optimization and a sampled one of folding, in MiB."""
    sampled = {"peak_rss_bytes": folding * MIB, "peak_kind": "sampled"}
    return with_phases({"optimize": {"peak_rss_bytes": optimize * MIB}, "constant_fold": sampled})


ESTIMATED = replaced(TIED, estimate=estimates.point())  # of optimize, first_run and steady
TABLES = {
    "phases take turns": TIED,
    "folding ran once": profiles.build([step for step in TIED_IF if step.step != 2]),
    "phases follow each other": profiles.build(
        [step for step in TIED_IF if step.name != "between transformers"]
    ),
    "all peaks are sampled": profiles.sampled(),
    "the start's peak is sampled": with_phases({"start": {"peak_kind": "sampled"}}),
    # The mark may be that of constant folding, whose samples missed it.
    "folding is sampled, optimize higher": with_peaks(1563, 1400),
    "folding is sampled, optimize lower": with_peaks(1063, 1400),
    "small": profiles.tiny(),
    "estimated": ESTIMATED,
    "estimated for this malloc": replaced(
        ESTIMATED, session__environment={"MALLOC_MMAP_THRESHOLD_": "131072"}
    ),
}


def test_phases_have_rows_and_columns_for_what_is_known() -> None:
    """Phases that take turns are parts of one row, whose estimate is the larger one."""
    lines = {case: table_lines(profile_phase_table(profile)) for case, profile in TABLES.items()}
    assert_sentences_approved("profile_phases", lines)
    mixed = TABLES["the start's peak is sampled"]
    assert "~" not in profile_phase_table(mixed, is_compared=False).caption


def test_spans_are_sorted_by_what_they_moved() -> None:
    rows = span_rows(TIED)
    assert rows[0].title == "ConstantFolding, step 1"
    assert rows[0].sentence == "+1,000 MiB at its peak, +500 MiB kept"
    growths = [row.peak_growth_bytes for row in rows]
    assert growths == sorted(growths, reverse=True)
    assert {row.phase for row in rows} == {"optimize", "constant_fold"}


@pytest.mark.parametrize(
    ("peaks", "titles"),
    [
        ((1600, 1600, 1600), ["A, step 1, or one of 2 others"]),
        ((1600, 1601, 1600), ["B, step 1", "A, step 1", "C, step 1"]),
    ],
)
def test_successive_spans_with_the_peak_of_one_reading_are_one_row(
    peaks: tuple[float, ...], titles: list[str]
) -> None:
    passes = (
        Step(name, "optimize", 0.0, peak, 46, 1) for name, peak in zip("ABC", peaks, strict=True)
    )
    profile = profiles.build((IMPORTS, *passes, FIRST_RUN), runs=2)
    assert [row.title for row in span_rows(profile)] == titles


@pytest.mark.parametrize(("size", "count"), [(5, 1), (4.99, 0)])
def test_notable_spans_begin_at_five_per_cent_of_the_peak(size: float, count: int) -> None:
    folding = Step("Folding", "constant_fold", 0.1, 46 + size, 46, 1)
    assert len(notable_spans(profiles.build((IMPORTS, folding, FIRST_RUN), runs=2))) == count


@pytest.mark.parametrize(("peak", "end", "is_named"), [(1800, 1700, True), (1579.5, 1579.5, False)])
def test_a_phase_in_which_memory_moved_twice_names_its_spans(
    peak: float, end: float, is_named: bool
) -> None:
    profile = profiles.build((*TIED_IF, Step("a branch", "prepack", 0.1, peak, end)), runs=1)
    assert any(row.phase == "prepack" for row in span_rows(profile)) == is_named


def with_runs(*sizes: float, latency_s: float = 0.01, first_run_s: float = 0.035) -> Profile:
    """Return a profile with a run for each size, in MiB above the start of the last phase."""
    start = TIED.phases[-1].start.rss_bytes
    runs = (Run(latency_s=latency_s, rss_bytes=start + round(size * MIB)) for size in sizes)
    return replaced(TIED, runs=tuple(runs), first_run_s=first_run_s)


def of_latencies(count: int) -> Profile:
    runs = (Run(latency_s=(i + 1) / 1000, rss_bytes=100 * MIB) for i in range(count))
    return replaced(TIED, runs=tuple(runs))


RUNS = {
    "no growth": with_runs(0, 0, 0),
    "in the first run": with_runs(80, 80, 80),
    "in later runs": with_runs(4.25, 4.25, 4.31),
    "little in later runs": with_runs(4.25, 4.25, 4.27),
    "less in the end": with_runs(4, 4, 1),
    "two runs": with_runs(4, 5),
    "one run": with_runs(4),
    "no run": profiles.failed(),
    "first run quicker than others": with_runs(0, 0, 0, latency_s=0.039, first_run_s=0.021),
    "first run as quick": with_runs(0, 0, 0, latency_s=0.039, first_run_s=0.035),
    "percentile of 19 runs": of_latencies(19),
    "percentile of 20 runs": of_latencies(20),
}


def test_runs_are_told_by_their_latency_and_the_memory_that_they_added() -> None:
    """The two sizes add up to what the phase table says that steady kept."""
    summaries = {case: runs_summary(profile) for case, profile in RUNS.items()}
    texts = {case: (summary.latency, summary.growth) for case, summary in summaries.items()}
    assert_sentences_approved("profile_runs", texts)
    assert summaries["no run"].sentence == ""


def test_a_run_is_named_with_its_latency_and_its_peak_if_known() -> None:
    assert run_sentence(1, TIED.runs[0]) == "run 1: 28 ms, peak 1.54 GiB"
    assert run_sentence(1, profiles.sampled().runs[0]) == "run 1: 28 ms"


def test_facts_leave_out_what_is_not_known() -> None:
    assert "weights" not in dict(model_facts(profiles.failed()))
    assert dict(model_facts(TIED))["weights"] == "500 MiB in 3"
    assert dict(session_facts(profiles.not_run()))["runs asked for"] == "none"
    assert dict(session_facts(TIED))["$MALLOC_ARENA_MAX"] == "2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", "a b"),
        (" two\n lines\t", "two lines"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udc80", r"\udc80"),
        ("模型 é 😀", "模型 é 😀"),
    ],
)
def test_plain_text_obeys_nothing(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_shortening_keeps_both_ends() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 5) == "ab…jk"
