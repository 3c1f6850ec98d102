import re

import msgspec
import pytest

from memdiag.budgets.baselines import baseline_entry, max_figure
from memdiag.budgets.evaluation import judge_budget, judge_probe
from memdiag.budgets.figures import figures_of
from memdiag.errors import UsageError
from memdiag.records.baseline import BaselineEntry
from memdiag.records.budget import Budget
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import PINNED_NOTE
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile
from tests.reports import profiles, tied_xray
from tests.reports.profiles import MIB

PEAK = (1579 - 46) * MIB


def taken(profile: Profile, **figures: int) -> BaselineEntry:
    """Return what a baseline has of `profile`, with other `figures`."""
    kept = baseline_entry([profile])
    return msgspec.structs.replace(kept, figures={**kept.figures, **figures})


def test_exactly_the_budget_passes_and_a_byte_less_does_not() -> None:
    profile = profiles.tied_if()
    assert judge_budget([profile], Budget(limits={"peak": PEAK})).is_met
    (breach,) = judge_budget([profile], Budget(limits={"peak": PEAK - 1})).breaches
    assert (breach.over, breach.against, breach.phase) == (1, "budget", profile.peak_phase)


def test_the_tolerance_widens_the_limit() -> None:
    limit = round(PEAK / 1.02) + 1
    assert judge_budget([profiles.tied_if()], Budget(limits={"peak": limit}, tolerance=0.02)).is_met
    assert not judge_budget(
        [profiles.tied_if()], Budget(limits={"peak": limit}, tolerance=0.019)
    ).is_met


def test_breaches_come_in_the_order_of_the_phases() -> None:
    limits = {"steady": 1, "prepack": 1, "parse": 1}
    breaches = judge_budget([profiles.tied_if()], Budget(limits=limits)).breaches
    assert [breach.figure for breach in breaches] == ["parse", "prepack", "steady"]


def test_a_figure_that_cannot_be_had_is_a_usage_error_with_the_alternatives() -> None:
    with pytest.raises(UsageError, match="cannot check the 'steady' budget") as caught:
        judge_budget([profiles.not_run()], Budget(limits={"steady": 1}))
    assert "the model was not run" in str(caught.value)
    assert "prepack" in str(caught.value)


def test_growth_beyond_the_baselines_tolerance_is_a_breach() -> None:
    profile = profiles.tied_if()
    figures = figures_of(profile)
    before = taken(profile, parse=figures["parse"] - 20 * MIB)
    (breach,) = judge_budget([profile], Budget(), entry=before).breaches
    assert (breach.figure, breach.against, breach.over) == ("parse", "baseline", 20 * MIB)
    assert judge_budget([profile], Budget(tolerance=0.05), entry=before).is_met


def test_what_a_busy_machine_saw_late_is_no_breach_of_a_baseline() -> None:
    profile = profiles.tied_if()
    figures = figures_of(profile)
    before = taken(profile, parse=figures["parse"] - 30 * MIB)
    sampling = msgspec.structs.replace(profile.sampling, boundary_lag_s=0.02)
    busy = msgspec.structs.replace(profile, sampling=sampling)
    judgement = judge_budget([busy], Budget(), entry=before)
    assert judgement.is_met
    assert judgement.notes[0].startswith("the machine was busy: up to 114 MiB may count")
    assert not judge_budget([busy, profile], Budget(), entry=before).is_met
    kept_when_busy = msgspec.structs.replace(before, late_bytes=40 * MIB)
    assert judge_budget([profile], Budget(), entry=kept_when_busy).is_met
    lower = taken(profile, peak=figures["peak"] - 40 * MIB)
    assert not judge_budget([busy], Budget(), entry=lower).is_met
    assert not judge_budget([busy], Budget(limits={"parse": figures["parse"] - 1})).is_met


def test_the_baseline_knows_no_process_peak_and_one_more_copy_is_a_breach() -> None:
    profile = tied_xray.with_attribution()
    before = taken(profile, copies=2)
    assert "process_peak" not in before.figures
    (breach,) = judge_budget([profile], Budget(tolerance=0.5), entry=before).breaches
    assert (breach.figure, breach.over) == ("copies", 1)


def test_small_growth_is_within_any_tolerance() -> None:
    assert max_figure("steady", 10 * MIB, 0.0) == 11 * MIB
    assert max_figure("steady", 1000 * MIB, None) == 1020 * MIB
    assert max_figure("growth_per_run", 0, None) == 64 * 1024
    assert max_figure("copies", 2, 0.9) == 2
    assert max_figure("parse", 0, 0.0, late=5) == MIB + 5
    assert max_figure("peak", 0, 0.0, late=5) == MIB


def test_what_is_new_since_the_baseline_is_named_and_its_finding() -> None:
    profile = tied_xray.with_attribution()
    kept = baseline_entry([profile])
    figures = {**kept.figures, "steady": kept.figures["steady"] // 2}
    copies = tuple(row for row in kept.copies if row.kind != "transposed")
    before = msgspec.structs.replace(kept, copies=copies, figures=figures)
    judgement = judge_budget([profile], Budget(), entry=before)
    assert judgement.copies_are_new
    assert [row.kind for row in judgement.copies] == ["transposed"]
    assert not judge_budget([profile], Budget(limits={"peak": 1}), entry=kept).copies_are_new


def test_another_setup_cannot_be_compared() -> None:
    profile = profiles.tied_if()
    session = msgspec.structs.replace(profile.session, options={})
    other = msgspec.structs.replace(profile, session=session)
    with pytest.raises(UsageError, match="options default instead of intra_op_num_threads=2"):
        judge_budget([other], Budget(), entry=baseline_entry([profile]))


def sized(length: int, *dimensions: str) -> Profile:
    """Return a profile that was run with ``ids`` of a `length`."""
    profile = profiles.tied_if()
    return msgspec.structs.replace(
        profile,
        inputs=(msgspec.structs.replace(profile.inputs[0], shape=(1, length)),),
        dimensions=tuple(
            Dimension(name=name, size=length, role="sequence", source="chosen", reason="")
            for name in dimensions
        ),
    )


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        (
            ("ids:1",),
            'Give the sizes of the baseline (dims={"ids:1": 512}, or --dim ids:1=512), or update'
            " the baseline (pytest --memdiag-update-baseline).",
        ),
        (("length",), 'dims={"length": 512}'),
        (("length", "other"), "Measure under the same conditions, or update"),
        ((), "Measure under the same conditions, or update"),
    ],
)
def test_other_sizes_than_those_of_the_baseline_are_told_with_the_remedy(
    dimensions: tuple[str, ...], message: str
) -> None:
    before = baseline_entry([sized(512)])
    with pytest.raises(UsageError, match=re.escape(message)):
        judge_budget(
            [sized(128, *dimensions)],
            Budget(),
            entry=before,
            update_option="pytest --memdiag-update-baseline",
        )


def test_another_runtime_is_compared() -> None:
    profile = profiles.tied_if()
    before = msgspec.structs.replace(baseline_entry([profile]), onnxruntime="1.24.4")
    judgement = judge_budget([profile], Budget(), entry=before)
    assert judgement.is_met
    assert (judgement.baseline_onnxruntime, judgement.onnxruntime) == ("1.24.4", "1.31.1")


def test_much_less_than_the_baseline_is_worth_a_word() -> None:
    profile = profiles.tied_if()
    before = taken(profile, peak=2 * PEAK)
    notes = judge_budget([profile], Budget(), entry=before).notes
    assert [note.split(" is ")[0] for note in notes] == ["peak"]
    assert judge_budget([profile], Budget(), entry=baseline_entry([profile])).notes == ()


def test_a_phase_that_only_the_baseline_has_is_worth_a_word() -> None:
    profile = profiles.tied_if()
    before = baseline_entry([profile])
    phases = tuple(phase for phase in profile.phases if phase.name != "optimize")
    judgement = judge_budget(
        [msgspec.structs.replace(profile, phases=phases)], Budget(), entry=before
    )
    assert judgement.is_met
    assert judgement.notes == ("the baseline has optimize, which this run did not distinguish",)


def test_a_probe_has_no_phases() -> None:
    probe = Probe(name="this process", figures={"peak": 5}, peak_kind="exact", notes=())
    assert judge_probe(probe, Budget(limits={"peak": 5})).is_met
    assert judge_probe(probe, Budget(limits={"peak": 4})).breaches[0].over == 1
    with pytest.raises(UsageError, match=r"only the process as a whole\. Available figures: peak"):
        judge_probe(probe, Budget(limits={"parse": 5}))


def steady_at(size: int) -> Profile:
    profile = profiles.tied_if()
    assert profile.steady is not None
    memory = msgspec.structs.replace(profile.steady, rss_bytes=profile.baseline_rss_bytes + size)
    return msgspec.structs.replace(profile, steady=memory)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_pinned_malloc_is_said(is_pinned: bool) -> None:
    profile = profiles.tied_if()
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072"} if is_pinned else {}
    session = msgspec.structs.replace(profile.session, environment=environment)
    pinned = msgspec.structs.replace(profile, session=session)
    notes = judge_budget([pinned], Budget(limits={"peak": 10_000 * MIB})).notes
    assert notes == ((PINNED_NOTE,) if is_pinned else ())


def test_two_groups_of_processes_are_said() -> None:
    sizes = (81, 94, 81, 94, 94)
    judgement = judge_budget(
        [steady_at(size * MIB) for size in sizes], Budget(limits={"steady": 95 * MIB})
    )
    assert judgement.figures["steady"] == 94 * MIB
    (note,) = judgement.notes
    assert note.startswith("steady has two values by chance")
    assert "2 of 5 processes are near 81 MiB, 3 near 94 MiB" in note
    (note,) = judge_budget([steady_at(size * MIB) for size in (81, 85, 88)], Budget()).notes
    assert "from 81 MiB to 88 MiB" in note
    near = [steady_at(size * MIB) for size in (1000, 1001, 1010)]
    assert judge_budget(near, Budget(limits={"steady": 2000 * MIB})).notes == ()
