from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from memdiag.records.attribution import Backing
from memdiag.records.profile import DeviceMemory, Outcome, Profile, Run, Status
from memdiag.reports.profile.facts import model_facts, sampling_facts, session_facts
from memdiag.reports.profile.headline import profile_headline, weight_factor
from memdiag.reports.profile.phases import (
    notable_spans,
    phase_rows,
    profile_phase_table,
    run_sentence,
    runs_summary,
    span_rows,
)
from memdiag.reports.text import mebibytes_text, plain, shortened
from memdiag.units import format_size
from tests.reports import attributions, estimates, profiles
from tests.reports.profiles import MIB, Step


def test_the_headline_of_a_session_that_was_not_run_says_so() -> None:
    answer = profile_headline(profiles.not_run())
    assert answer.completed
    assert answer.second.startswith("Not run; created, the session stays 1.48 GiB above baseline")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("failed", "Failed in parse at 290 MiB: why."),
        ("killed", "Killed in parse at 290 MiB: why."),
        ("timeout", "Timed out in parse at 290 MiB: why."),
        ("limit", "Passed the memory limit in parse at 290 MiB: why."),
    ],
)
def test_an_early_end_is_the_first_sentence(status: Status, words: str) -> None:
    outcome = Outcome(status=status, phase="parse", message="why")
    profile = msgspec.structs.replace(profiles.failed(), outcome=outcome)
    assert profile_headline(profile).first == words


def test_the_multiple_of_the_weights_is_left_out_where_it_says_nothing() -> None:
    assert weight_factor(profiles.tied_if(), 1500 * MIB) == "3.0 ×"
    assert weight_factor(profiles.failed(), 1500 * MIB) is None  # unknown weights
    assert weight_factor(profiles.tiny(), 1500 * MIB) is None  # 64 KiB of weights
    none = profiles.build(profiles.TIED_IF, weights=0, runs=1)
    assert weight_factor(none, 1500 * MIB) is None


def test_what_has_its_memory_in_attributes_is_compared_with_its_file() -> None:
    forest = profiles.build(profiles.TIED_IF, weights=0, runs=1)
    size = forest.model.file_bytes
    assert size >= MIB
    headline = profile_headline(forest)
    assert " × the file) in " in headline.first
    assert headline.facts.startswith(f"{format_size(size)} file · 0 B of weights · ")
    model = msgspec.structs.replace(forest.model, file_bytes=MIB - 1)
    small = profile_headline(msgspec.structs.replace(forest, model=model))
    assert "×" not in small.first
    assert small.facts.startswith("0 B of weights · ")
    assert "the file" not in profile_headline(profiles.tied_if()).first


@pytest.mark.parametrize(
    ("weights", "library", "mapped", "shown"),
    [
        (6, 8, 0, None),
        (8, 8, 0, None),
        (8.1, 8, 0, "6.2 ×"),
        (6, 8, 2.1, "8.3 ×"),
        (6, 0, 0, "8.3 ×"),
    ],
    ids=["library larger", "equal", "weights larger", "weights mapped", "no library pages"],
)
def test_a_multiple_that_says_more_of_the_library_is_left_out(
    weights: float, library: float, mapped: float, shown: str | None
) -> None:
    """Of the file-backed memory above the baseline, what is not the model's is the library's."""
    profile = profiles.build(profiles.TIED_IF, weights=weights, runs=1)
    steady = profile.phases[-1].end
    file = profiles.FILE_MIB * MIB + library * MIB
    steady = msgspec.structs.replace(steady, file_bytes=file)
    backing = Backing(kind="file", file="m.data", offset=0)
    taken = attributions.attribution(
        attributions.copy("original", round(mapped * MIB), backing=backing)
    )
    profile = msgspec.structs.replace(profile, steady=steady, attribution=taken)
    assert weight_factor(profile, 50 * MIB) == shown
    answer = profile_headline(profile)
    assert ("the weights" in answer.first) == (shown is not None)
    assert ("×" in answer.second) == (shown is not None)


def test_the_steady_state_is_split_beyond_the_baseline() -> None:
    assert ": anonymous +1.50 GiB. Baseline" in profile_headline(profiles.tied_if()).second
    whole = profiles.build(profiles.TIED_IF, runs=10, split=False)
    assert "anonymous" not in profile_headline(whole).second


@pytest.mark.parametrize(
    ("retained", "is_said"), [(150, True), (10, False), (0, False), (None, False)]
)
def test_what_malloc_keeps_is_named_where_it_is_notable(
    retained: int | None, is_said: bool
) -> None:
    profile = msgspec.structs.replace(
        profiles.tied_if(),
        allocator_retained_bytes=None if retained is None else retained * MIB,
    )
    second = profile_headline(profile).second
    assert ("150 MiB of it is free, but kept by malloc" in second) == is_said


def test_a_phase_that_came_all_but_as_high_before_is_named() -> None:
    def peaking(first: float, start: float = 0) -> str:
        steps = (
            Step("imports", "start", 0.1, 0, 0),
            Step("parse", "parse", 0.1, start, start),
            Step("Folding", "constant_fold", 0.1, first, max(start, 10), 1),
            Step("between transformers", "optimize", 0.1, 100, 10),
            Step("runs", "steady", 0.1, 100, 10),
        )
        return profile_headline(profiles.build(steps, runs=2, weights=None, baseline=0)).first

    assert peaking(97) == "Peak 100 MiB above baseline in optimize, 97 % already in constant_fold."
    assert peaking(94.9) == "Peak 100 MiB above baseline in optimize."
    # It did not rise to the peak: it began there.
    assert peaking(96, 96).endswith("in optimize, 96 % already in parse.")
    assert peaking(95.5, 94.9) == "Peak 100 MiB above baseline in optimize."


def test_a_peak_below_the_baseline_is_no_negative_figure() -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), peak_rss_bytes=40 * MIB)
    assert profile_headline(profile).first == "Peak no higher than the baseline."


def figures(profile: Profile, label: str) -> tuple[str, ...]:
    """Return start, peak, end and kept in the first row of the phase table called `label`."""
    table = profile_phase_table(profile)
    row = next(row for row in table.rows if row.cells[0].text == label)
    return tuple(cell.text for cell in row.cells[2:6])


def test_the_phase_table_follows_the_record() -> None:
    assert profile_phase_table(profiles.tied_if()).columns[3].heading == "peak (exact)"
    rows = {row.phase: row for row in phase_rows(profiles.tied_if())}
    assert figures(profiles.tied_if(), "parse") == ("46", "825", "563", "+517")
    assert rows["prepack"].responsible == ""
    assert rows["constant_fold"].responsible == "ConstantFolding"
    assert [row.phase for row in rows.values() if row.is_peak] == ["first_run"]
    assert not any(row.ending for row in rows.values())


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, "no change in run 1, no change in runs 2 to 3"),
        (80, 80, "+80.0 MiB in run 1, no change in runs 2 to 3"),
        (4.25, 4.31, "+4.2 MiB in run 1, +0.1 MiB in runs 2 to 3"),
        (4.25, 4.27, "+4.2 MiB in run 1, less than 0.1 MiB in runs 2 to 3"),
        (4, 1, "+4.0 MiB in run 1, -3.0 MiB in runs 2 to 3"),
    ],
)
def test_the_memory_that_runs_added_is_told_run_by_run(
    first: float, last: float, expected: str
) -> None:
    """The two figures add up to what the phase table says that steady kept."""
    profile = profiles.tied_if()
    start = profile.phases[-1].start.rss_bytes
    taken = [
        Run(latency_s=0.01, rss_bytes=start + round(size * MIB)) for size in (first, first, last)
    ]
    summary = runs_summary(msgspec.structs.replace(profile, runs=tuple(taken)))
    assert summary.growth == f"resident memory after the first run: {expected}"


@pytest.mark.parametrize(
    ("first_s", "text"),
    [
        (0.021, "first run 21 ms, quicker than later ones: the speed of the machine varies"),
        (0.035, "first run 35 ms"),
    ],
)
def test_a_quick_first_run_is_explained(first_s: float, text: str) -> None:
    profile = msgspec.structs.replace(
        profiles.tied_if(),
        first_run_s=first_s,
        runs=tuple(Run(latency_s=0.039, rss_bytes=MIB) for _ in range(3)),
    )
    assert runs_summary(profile).latency.endswith(f"over 3 runs; {text}")


@pytest.mark.parametrize("build", [profiles.tied_if, profiles.tiny, profiles.uneven])
def test_the_rows_of_the_phase_table_follow_each_other(build: Callable[[], Profile]) -> None:
    rows = [row for row in profile_phase_table(build()).rows if not row.level]
    number = [[float(row.cells[i].text.replace(",", "")) for i in (2, 4, 5)] for row in rows]
    assert all(before[1] == after[0] for before, after in pairwise(number))
    assert all(round(end - start, 1) == kept for start, end, kept in number)


def test_phases_that_take_turns_are_parts_of_one_row() -> None:
    rows = phase_rows(profiles.tied_if())
    assert [(row.label, row.level) for row in rows[2:6]] == [
        ("optimize", 0),
        ("constant_fold", 1),
        ("other steps", 1),
        ("initialize", 0),
    ]
    assert [row.whole for row in rows[2:6]] == [None, "optimize", "optimize", None]
    assert figures(profiles.tied_if(), "optimize") == ("563", "1,563", "1,063", "+500")
    # Constant folding ran twice, with other steps between: it has no start and end of its own.
    assert figures(profiles.tied_if(), "constant_fold") == ("", "1,563", "", "+500")
    assert figures(profiles.tied_if(), "other steps") == ("", "1,063", "", "0")
    once = profiles.build([step for step in profiles.TIED_IF if step.step != 2])
    assert figures(once, "constant_fold") == ("563", "1,563", "1,063", "+500")


@pytest.mark.parametrize(
    ("sizes", "printed"),
    [
        # The mark may be that of constant folding, whose samples missed it.
        ((1563, 1400), ["1,563", "~1,400", ""]),
        ((1063, 1400), ["~1,400", "~1,400", "~1,063"]),
    ],
)
def test_a_mark_is_not_given_to_other_steps_if_a_part_is_sampled(
    sizes: tuple[int, int], printed: list[str]
) -> None:
    profile = profiles.tied_if()
    changed: dict[str, dict[str, Any]] = {
        "optimize": {"peak_rss_bytes": sizes[0] << 20},
        "constant_fold": {"peak_rss_bytes": sizes[1] << 20, "peak_kind": "sampled"},
    }
    phases = tuple(
        msgspec.structs.replace(phase, **changed.get(phase.name, {})) for phase in profile.phases
    )
    rows = profile_phase_table(msgspec.structs.replace(profile, phases=phases)).rows
    assert [row.cells[3].text for row in rows[2:5]] == printed


def test_phases_that_follow_each_other_stay_rows_of_their_own() -> None:
    steps = [step for step in profiles.TIED_IF if step.name != "between transformers"]
    rows = phase_rows(profiles.build(steps))
    assert not [row.label for row in rows if row.level]


def test_mixed_kinds_of_peaks_are_marked_one_by_one() -> None:
    profile = profiles.tied_if()
    first, *rest = profile.phases
    phases = (msgspec.structs.replace(first, peak_kind="sampled"), *rest)
    mixed = msgspec.structs.replace(profile, phases=phases)
    table = profile_phase_table(mixed)
    assert table.columns[3].heading == "peak (~ sampled)"
    assert "~: the largest sample" in table.caption
    assert "~" not in profile_phase_table(mixed, is_compared=False).caption
    assert "~" not in profile_phase_table(profile).caption
    assert [row.cells[3].text.startswith("~") for row in table.rows[:2]] == [True, False]
    assert "~" not in profile_phase_table(profile).columns[3].heading


def test_small_sessions_get_a_digit_more() -> None:
    assert figures(profiles.tiny(), "start")[2] == "45.9"
    assert mebibytes_text(-40, 0, signed=True) == "0"


def test_spans_are_sorted_by_what_they_moved() -> None:
    rows = span_rows(profiles.tied_if())
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
    steps = (
        Step("imports", "start", 0.1, 46, 46),
        *(
            Step(name, "optimize", 0.0, peak, 46, 1)
            for name, peak in zip("ABC", peaks, strict=True)
        ),
        Step("first run", "first_run", 0.1, 146, 146),
    )
    assert [row.title for row in span_rows(profiles.build(steps, runs=2))] == titles


def test_notable_spans_begin_at_five_per_cent_of_the_peak() -> None:
    def growing(size: float) -> int:
        steps = (
            Step("imports", "start", 0.1, 46, 46),
            Step("Folding", "constant_fold", 0.1, 46 + size, 46, 1),
            Step("first run", "first_run", 0.1, 146, 146),
        )
        return len(notable_spans(profiles.build(steps, runs=2)))

    assert growing(5) == 1
    assert growing(4.99) == 0


def test_a_phase_in_which_memory_moved_twice_names_its_spans() -> None:
    twice = (*profiles.TIED_IF, Step("kernels of a branch", "prepack", 0.1, 1800, 1700))
    assert any(row.phase == "prepack" for row in span_rows(profiles.build(twice, runs=1)))
    still = (*profiles.TIED_IF, Step("hand over", "prepack", 0.1, 1579.5, 1579.5))
    assert not any(row.phase == "prepack" for row in span_rows(profiles.build(still, runs=1)))


@pytest.mark.parametrize(
    ("count", "name"), [(19, "p95 (the largest) 19 ms over 19 runs"), (20, "p95 19 ms over 20")]
)
def test_the_percentile_of_few_runs_is_called_the_largest(count: int, name: str) -> None:
    taken = tuple(Run(latency_s=(i + 1) / 1000, rss_bytes=100 * MIB) for i in range(count))
    profile = msgspec.structs.replace(profiles.tied_if(), runs=taken)
    assert f", {name}" in runs_summary(profile).latency


def test_growth_is_told_in_bytes_and_not_by_one_run() -> None:
    taken = tuple(Run(latency_s=0.01, rss_bytes=(100 + i) * MIB) for i in range(3))
    profile = msgspec.structs.replace(profiles.tied_if(), runs=taken)
    assert runs_summary(profile).growth.endswith("in run 1, +2.0 MiB in runs 2 to 3")
    assert runs_summary(msgspec.structs.replace(profile, runs=taken[:1])).growth == ""
    two = runs_summary(msgspec.structs.replace(profile, runs=taken[:2])).growth
    assert two.endswith("in run 1, +1.0 MiB in run 2")
    assert runs_summary(profiles.tied_if()).growth == (
        "resident memory after the first run: no change in run 1, no change in runs 2 to 10"
    )
    assert runs_summary(profiles.failed()).sentence == ""


def test_a_run_is_named_with_its_latency_and_its_peak_if_known() -> None:
    assert run_sentence(1, profiles.tied_if().runs[0]) == "run 1: 28 ms, peak 1.54 GiB"
    assert run_sentence(1, profiles.sampled().runs[0]) == "run 1: 28 ms"


def test_facts_leave_out_what_is_not_known() -> None:
    assert "weights" not in dict(model_facts(profiles.failed()))
    assert dict(model_facts(profiles.tied_if()))["weights"] == "500 MiB in 3"
    assert dict(session_facts(profiles.not_run()))["runs asked for"] == "none"
    assert dict(session_facts(profiles.tied_if()))["$MALLOC_ARENA_MAX"] == "2"


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


def test_estimated_peaks_are_beside_the_measured_ones() -> None:
    plain_profile = profiles.tied_if()
    point = estimates.point()  # optimize 200 MiB, first_run 154 MiB, steady 158 MiB
    profile = msgspec.structs.replace(plain_profile, estimate=point)
    headings = [column.heading for column in profile_phase_table(profile).columns]
    assert headings[3:5] == ["peak (exact)", "estimated"]
    base = profile.baseline_rss_bytes
    by_label = {row.label: row.estimated_bytes for row in phase_rows(profile)}
    assert by_label["first_run"] == base + point.phases[1].peak_bytes
    assert by_label["parse"] is None  # not in this estimate
    # Optimization and constant folding have a row together, with the larger estimate.
    assert by_label["optimize"] == base + point.phases[0].peak_bytes
    assert "estimated" not in [
        column.heading for column in profile_phase_table(plain_profile).columns
    ]
    caption = profile_phase_table(profile).caption
    assert "keeps no freed blocks (--env MALLOC_MMAP_THRESHOLD_=131072)" in caption
    pinned = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    session = msgspec.structs.replace(profile.session, environment=pinned)
    caption = profile_phase_table(msgspec.structs.replace(profile, session=session)).caption
    assert "memdiag estimate predicts." in caption


def test_memory_on_devices_is_a_column_only_where_there_is_some() -> None:
    plain_profile = profiles.tied_if()
    assert "on device" not in {
        column.heading for column in profile_phase_table(plain_profile).columns
    }
    assert "device memory" not in dict(sampling_facts(plain_profile))
    sizes = dict.fromkeys((phase.name for phase in plain_profile.phases), 64 * MIB)
    sizes |= {"optimize": 128 * MIB, "constant_fold": 256 * MIB}
    profile = msgspec.structs.replace(
        plain_profile,
        phases=tuple(
            msgspec.structs.replace(phase, peak_device_bytes=sizes[phase.name])
            for phase in plain_profile.phases
        ),
        device=DeviceMemory(
            source="nvml", name="Scripted", peak_bytes=256 * MIB, steady_bytes=64 * MIB
        ),
    )
    table = profile_phase_table(profile)
    index = [column.heading for column in table.columns].index("on device")
    shown = {row.cells[0].text: row.cells[index].text for row in table.rows}
    assert shown["start"] == "64"
    # The row of both phases that take turns, then each of them.
    assert (shown["optimize"], shown["constant_fold"], shown["other steps"]) == (
        "256",
        "256",
        "128",
    )
    assert "on device: the largest sample" in table.caption
    facts = dict(sampling_facts(profile))
    assert facts["device memory"] == "Scripted: peak 256 MiB, sampled by NVML"
