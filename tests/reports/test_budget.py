import msgspec
import pytest

from memdiag.budgets.baselines import baseline_entry
from memdiag.budgets.estimates import judge_estimate
from memdiag.budgets.evaluation import judge_budget
from memdiag.records.attribution import Owner
from memdiag.records.budget import Budget, Judgement
from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.profile import Run
from memdiag.reports.budget import judgement_lines, judgement_result_line, judgement_verdict
from tests.reports import estimates, profiles, tied_xray
from tests.reports.profiles import MIB

PEAK = (1579 - 46) * MIB
OWNERS = (
    "  largest owners at steady state: weights (original) 506 MiB, weights (transposed) 500 MiB,"
    " weights (packed) 500 MiB, arena slack 12 MiB"
)


def budgeted(**limits: int) -> Judgement:
    return judge_budget([tied_xray.with_attribution()], Budget(limits=limits))


def grown() -> Judgement:
    """Return the tied weight held to what it took without its transposed copy, a release before."""
    profile = tied_xray.with_attribution()
    now = baseline_entry([profile])
    later = ("constant_fold", "initialize", "prepack", "first_run", "peak", "steady")
    figures = {
        name: value - 500 * MIB * (name in later) - (name == "copies")
        for name, value in now.figures.items()
    }
    copies = tuple(row for row in now.copies if row.kind != "transposed")
    before = msgspec.structs.replace(now, figures=figures, copies=copies, onnxruntime="1.24.4")
    return judge_budget([profile], Budget(), entry=before)


def test_what_holds_is_said_in_a_line() -> None:
    assert judgement_result_line(budgeted(peak=PEAK)) == (
        "memory budget: models/tied_if.onnx: within its budget"
    )
    profile = profiles.tied_if()
    kept = baseline_entry([profile])
    assert judgement_verdict(judge_budget([profile], Budget(), entry=kept)) == "within its baseline"
    assert judgement_verdict(
        judge_budget([profile], Budget(limits={"peak": PEAK}), entry=kept)
    ) == ("within its budget and its baseline")
    assert judgement_verdict(judge_budget([profile], Budget())) == ""


def test_a_breach_names_figure_size_phase_copies_and_remedy() -> None:
    judgement = budgeted(constant_fold=1024 * MIB, peak=PEAK)
    assert judgement_lines(judgement)[:3] == (
        "memory budget: models/tied_if.onnx: 493 MiB over its budget in constant_fold",
        "  constant_fold   1.48 GiB   budget 1.00 GiB   +493 MiB",
        "  most copies: lm_head.weight, 3 of them, 1.46 GiB: original (parse), packed (prepack ·"
        " lm/MatMul), transposed (ConstantFolding · lm/Transpose)",
    )


def test_a_breach_names_what_holds_the_memory() -> None:
    (line,) = [line for line in judgement_lines(budgeted(peak=1)) if "largest owners" in line]
    assert line == OWNERS
    assert "largest owners" not in "\n".join(judgement_lines(budgeted(peak=PEAK)))
    # Copies that are new since the baseline say it better.
    assert "largest owners" not in "\n".join(judgement_lines(grown()))


def at_runs(peak: int, *, estimated: int | None) -> Judgement:
    """Return the judgement of a model whose runs after the first take `peak` for a moment."""
    change = msgspec.structs.replace
    profile = tied_xray.with_attribution()
    base = profile.baseline_rss_bytes
    phases = tuple(
        change(phase, peak_rss_bytes=base + peak) if phase.name == "steady" else phase
        for phase in profile.phases
    )
    point = None
    if estimated is not None:
        parts = estimates.terms(activations=estimated // MIB - 300, weights=300)
        phase = estimates.phase("steady", parts, parts)
        point = change(estimates.point(), phases=(phase,), peak_phase="steady")
    given = Dimension(name="n 1", size=6, role="batch", source="given", reason="given")
    profile = change(
        profile,
        phases=phases,
        peak_rss_bytes=base + peak,
        peak_phase="steady",
        estimate=point,
        findings=(),
        dimensions=(given,),
    )
    return judge_budget([profile], Budget(limits={"peak": MIB}))


def test_a_peak_of_later_runs_is_not_called_steady_and_has_its_own_parts() -> None:
    peak = 3000 * MIB
    first, row, *rest = judgement_lines(at_runs(peak, estimated=peak))
    assert first == (
        "memory budget: models/tied_if.onnx: peak 2.93 GiB over its budget (in the runs after the"
        " first), at batch 6"
    )
    assert row.startswith("  peak   2.93 GiB   budget 1.0 MiB")
    assert (
        "  largest parts of the peak in the runs after the first, as estimated: activations 2.64"
        " GiB, weights 300 MiB"
    ) in rest
    assert not any("largest owners" in line for line in rest)
    assert rest[-1] == (
        "  try: memdiag estimate models/tied_if.onnx --dim 'n 1=6' --session-option"
        " intra_op_num_threads=2 --session-option session.disable_prepacking=0 (shows what takes"
        " the peak, and what lowers it)"
    )


@pytest.mark.parametrize("estimated", [None, 2000 * MIB])
def test_the_parts_of_a_peak_are_not_known_without_an_estimate_near_it(
    estimated: int | None,
) -> None:
    text = "\n".join(judgement_lines(at_runs(3000 * MIB, estimated=estimated)))
    assert (
        "the owners at the peak in the runs after the first are not known: the X-ray is of the"
        " steady state"
    ) in text
    assert "as estimated" not in text
    assert "largest owners" not in text


def test_what_stays_is_explained_by_the_owners_and_settings_are_to_try() -> None:
    *_, last = judgement_lines(at_runs(1532 * MIB, estimated=None))
    assert last == (
        "  try: memdiag fix models/tied_if.onnx --dim 'n 1=6' (measures session options and"
        " settings of malloc)"
    )
    assert OWNERS in judgement_lines(at_runs(1532 * MIB, estimated=None))


def test_large_arena_slack_has_its_own_setting() -> None:
    judgement = budgeted(steady=1)

    def advice(slack_mib: int) -> str:
        slack = Owner(
            kind="arena", name="slack", bytes=slack_mib * MIB, private_bytes=slack_mib * MIB
        )
        return "\n".join(
            judgement_lines(msgspec.structs.replace(judgement, suspect=None, owners=(slack,)))
        )

    assert "memory.enable_memory_arena_shrinkage=cpu:0" in advice(600)
    assert "try: memdiag fix models/tied_if.onnx" in advice(600)
    assert "memory.enable_memory_arena_shrinkage" not in advice(300)


def test_an_estimate_over_its_budget_names_parts_and_the_command_with_its_release() -> None:
    found = judge_estimate(estimates.single(), Budget(limits={"peak": 150 * MIB}))
    first, _, parts, command, note = judgement_lines(found)
    assert "peak 50 MiB over its budget (in optimize)" in first
    assert parts == (
        "  largest parts of the peak in optimize, as estimated: weights 100 MiB, weight being"
        " converted 100 MiB"
    )
    assert command.startswith("  try: memdiag estimate ")
    assert "--for-onnxruntime 1.32.0 (shows" in command
    assert note.startswith("  an estimate for")
    assert "try:" not in "\n".join(
        judgement_lines(judge_estimate(estimates.single(), Budget(limits={"peak": 201 * MIB})))
    )


def test_a_byte_over_is_told_to_the_byte() -> None:
    first, row, *_ = judgement_lines(budgeted(peak=PEAK - 1))
    assert first.endswith(": peak 1 B over its budget (in first_run)")
    assert row == f"  peak   {PEAK:,} B   budget {PEAK - 1:,} B   +1 B"


def test_growth_since_the_baseline_is_told_from_where_it_starts() -> None:
    first, *rest = judgement_lines(grown())
    assert (
        first == "memory baseline: models/tied_if.onnx: 500 MiB over its baseline in constant_fold"
    )
    assert "  onnxruntime 1.31.1; the baseline is of 1.24.4" in rest
    assert (
        "  new since the baseline: transposed copy of lm_head.weight, 500 MiB (ConstantFolding ·"
        " lm/Transpose)"
    ) in rest
    assert "  constant_fold    1.48 GiB   baseline 1,017 MiB   +500 MiB" in rest
    assert "  copies                  3   baseline         2         +1" in rest


@pytest.mark.parametrize(
    ("release", "advice"),
    [
        ("1.24.4", "try: memdiag compare models/tied_if.onnx --onnxruntime 1.24.4,1.31.1"),
        ("1.31.1", "try: memdiag compare OLD models/tied_if.onnx (shows what changed, and why)"),
    ],
)
def test_growth_without_new_copies_is_compared_with_the_state_of_the_baseline(
    release: str, advice: str
) -> None:
    profile = tied_xray.with_attribution()
    now = baseline_entry([profile])
    figures = {**now.figures, "peak": now.figures["peak"] - 100 * MIB}
    before = msgspec.structs.replace(now, figures=figures, onnxruntime=release)
    judgement = judge_budget([profile], Budget(), entry=before)
    text = "\n".join(judgement_lines(msgspec.structs.replace(judgement, suspect=None)))
    assert advice in text
    assert "memdiag estimate" not in text
    assert "memdiag compare" not in "\n".join(judgement_lines(grown()))  # the new copy says it
    assert "memdiag compare" not in "\n".join(judgement_lines(budgeted(peak=1)))


def test_copies_and_growth_have_words_of_their_own() -> None:
    assert judgement_verdict(budgeted(copies=2)) == "3 copies of a weight; its budget is 2"
    profile = profiles.tied_if()
    runs = tuple(Run(latency_s=0.1, rss_bytes=3 * MIB * index) for index in range(10))
    leaks = msgspec.structs.replace(profile, runs=runs)
    leaking = judge_budget([leaks], Budget(limits={"growth_per_run": MIB}))
    assert judgement_verdict(leaking) == "2.0 MiB a run over its budget"
    assert judgement_lines(leaking)[-1] == "  try: memdiag leak models/tied_if.onnx"


def test_without_an_xray_nothing_is_said_of_copies() -> None:
    text = "\n".join(
        judgement_lines(judge_budget([profiles.tied_if()], Budget(limits={"peak": 1})))
    )
    assert "copies" not in text
    assert "copy" not in text


def test_a_finding_is_what_to_try() -> None:
    finding = msgspec.structs.replace(tied_finding(), rewrites=("gemm-transposed",))
    profile = msgspec.structs.replace(tied_xray.with_attribution(), findings=(finding,))
    texts = judgement_lines(judge_budget([profile], Budget(limits={"peak": 1})))
    assert texts[-1] == ("  try: memdiag fix models/tied_if.onnx --only shared-weight-transposed")
    advice = msgspec.structs.replace(finding, rewrites=())
    profile = msgspec.structs.replace(profile, findings=(advice,))
    assert judgement_lines(judge_budget([profile], Budget(limits={"peak": 1})))[-1] == (
        "  see: memdiag explain shared-weight-transposed"
    )
    refuted = msgspec.structs.replace(finding, evidence="refuted")
    profile = msgspec.structs.replace(profile, findings=(refuted,))
    assert judge_budget([profile], Budget(limits={"peak": 1})).suspect is None
    profile = msgspec.structs.replace(profile, findings=(finding,))
    assert judge_budget([profile], Budget(limits={"peak": PEAK})).suspect is None


def test_the_finding_that_lowers_the_figure_is_named() -> None:
    change = msgspec.structs.replace
    tied = change(tied_finding(), rewrites=("gemm-transposed",))
    transient = change(
        tied, name="folding-peak", weights=(), bytes=0, peak_bytes=900 * MIB, rewrites=("store",)
    )
    grows = change(tied, name="folding-grows", bytes=100 * MIB, peak_bytes=100 * MIB)
    profile = change(tied_xray.with_attribution(), findings=(grows, transient))

    def named(**limits: int) -> str | None:
        found = judge_budget([profile], Budget(limits=limits))
        return found.suspect.name if found.suspect else None

    # The copies of the finding that costs less at the peak are listed, and are not the reason.
    assert "lm_head.weight" in {copy.weight for copy in judge_budget([profile], Budget()).copies}
    assert named(peak=PEAK - 400 * MIB) == "folding-peak"
    assert named(constant_fold=1) == "folding-peak"
    assert named(steady=1) == "folding-grows"  # nothing of the other stays
    assert named(copies=2) == "folding-grows"
    assert named(parse=1) is None  # both are of a later phase
    profile = change(profile, findings=(transient,))
    assert named(steady=1) is None


def test_a_finding_with_a_rewrite_goes_first_if_it_is_enough() -> None:
    change = msgspec.structs.replace
    fixable = change(tied_finding(), name="folding-peak", peak_bytes=300 * MIB, rewrites=("store",))
    largest = change(tied_finding(), name="folding-grows", rewrites=())
    profile = change(tied_xray.with_attribution(), findings=(largest, fixable))
    for over, name in ((300 * MIB, "folding-peak"), (301 * MIB, "folding-grows")):
        suspect = judge_budget([profile], Budget(limits={"peak": PEAK - over})).suspect
        assert suspect is not None
        assert suspect.name == name


def tied_finding() -> Finding:
    return Finding(
        model="models/tied_if.onnx",
        rule="MD101",
        name="shared-weight-transposed",
        message="it is used as it is and transposed",
        detail="",
        weights=("lm_head.weight",),
        nodes=(),
        graph="",
        bytes=500 * MIB,
        peak_bytes=1000 * MIB,
        phase="constant_fold",
        evidence="measured",
        measured_bytes=500 * MIB,
        expected=(),
        remedies=("gemm-transposed",),
    )
