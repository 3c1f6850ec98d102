"""What is printed of a judgement: the breach, its reasons, and what to try."""

import pytest

from memdiag.budgets.baselines import baseline_entry
from memdiag.budgets.estimates import judge_estimate
from memdiag.budgets.evaluation import judge_budget
from memdiag.records.budget import Budget, Judgement
from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.profile import Profile, Run
from memdiag.reports.budget import judgement_lines, judgement_result_line, judgement_verdict
from tests.reports import estimates, profiles, tied_xray
from tests.reports.attributions import owner
from tests.reports.findings import TIED
from tests.reports.profiles import MIB
from tests.reports.rendering import assert_sentences_approved, replaced

PEAK = (1579 - 46) * MIB
XRAYED = tied_xray.with_attribution()


def tied_finding(**changes: object) -> Finding:
    """Return a measured finding of 500 MiB in one of the copies of `XRAYED`."""
    return replaced(
        TIED,
        weights=("lm_head.weight",),
        bytes=500 * MIB,
        measured_bytes=500 * MIB,
        rewrites=("gemm-transposed",),
        **changes,
    )


def judged(profile: Profile, **limits: int) -> Judgement:
    return judge_budget([profile], Budget(limits=limits))


def wasting(*findings: Finding, **limits: int) -> Judgement:
    return judged(replaced(XRAYED, findings=findings), **limits)


def grown() -> Judgement:
    """Return the tied weight held to what it took without its transposed copy, a release before."""
    now = baseline_entry([XRAYED])
    later = ("constant_fold", "initialize", "prepack", "first_run", "peak", "steady")
    figures = {
        name: value - 500 * MIB * (name in later) - (name == "copies")
        for name, value in now.figures.items()
    }
    copies = tuple(row for row in now.copies if row.kind != "transposed")
    before = replaced(now, figures=figures, copies=copies, onnxruntime="1.24.4")
    return judge_budget([XRAYED], Budget(), entry=before)


def grown_without_copies(release: str) -> Judgement:
    """Return a peak that is 100 MiB larger than that of a baseline of `release`."""
    now = baseline_entry([XRAYED])
    figures = {**now.figures, "peak": now.figures["peak"] - 100 * MIB}
    before = replaced(now, figures=figures, onnxruntime=release)
    return replaced(judge_budget([XRAYED], Budget(), entry=before), suspect=None)


def at_runs(peak: int, *, estimated: int | None) -> Judgement:
    """Return the judgement of a model whose runs after the first take `peak` MiB for a moment."""
    above = XRAYED.baseline_rss_bytes + peak * MIB
    point = None
    if estimated is not None:
        parts = estimates.terms(activations=estimated - 300, weights=300)
        phase = estimates.phase("steady", parts, parts)
        point = replaced(estimates.point(), phases=(phase,), peak_phase="steady")
    given = Dimension(name="n 1", size=6, role="batch", source="given", reason="given")
    *others, steady = XRAYED.phases
    profile = replaced(
        XRAYED,
        phases=(*others, replaced(steady, peak_rss_bytes=above)),
        peak_rss_bytes=above,
        peak_phase="steady",
        estimate=point,
        findings=(),
        dimensions=(given,),
    )
    return judged(profile, peak=MIB)


def with_slack(mebibytes: int) -> Judgement:
    slack = owner("arena", "slack", mebibytes * MIB)
    return replaced(judged(XRAYED, steady=1), suspect=None, owners=(slack,))


GROWING_RUNS = tuple(Run(latency_s=0.1, rss_bytes=3 * MIB * index) for index in range(10))
JUDGEMENTS = {
    "within the budget": judged(XRAYED, peak=PEAK),
    "a byte over the budget": judged(XRAYED, peak=PEAK - 1),
    "over in a phase": judged(XRAYED, constant_fold=1024 * MIB, peak=PEAK),
    "peak over the budget": judged(XRAYED, peak=1),
    "peak without an X-ray": judged(profiles.tied_if(), peak=1),
    "copies": judged(XRAYED, copies=2),
    "growth of runs": judged(replaced(XRAYED, runs=GROWING_RUNS), growth_per_run=MIB),
    "new copies since the baseline": grown(),
    "growth since a baseline of another release": grown_without_copies("1.24.4"),
    "growth since a baseline of this release": grown_without_copies("1.31.1"),
    "peak in later runs, estimated": at_runs(3000, estimated=3000),
    "peak in later runs, not estimated": at_runs(3000, estimated=None),
    "peak in later runs, estimated far from it": at_runs(3000, estimated=2000),
    "peak in later runs that stays": at_runs(1532, estimated=None),
    "finding with a rewrite": wasting(tied_finding(), peak=1),
    "finding without a rewrite": wasting(replaced(tied_finding(), rewrites=()), peak=1),
    "much arena slack": with_slack(600),
    "less arena slack": with_slack(300),
    "estimate over the budget": judge_estimate(
        estimates.single(), Budget(limits={"peak": 150 * MIB})
    ),
    "estimate within the budget": judge_estimate(
        estimates.single(), Budget(limits={"peak": 201 * MIB})
    ),
}


def test_a_breach_names_figures_owners_copies_and_what_to_try() -> None:
    lines = {case: judgement_lines(judgement) for case, judgement in JUDGEMENTS.items()}
    assert_sentences_approved("budget_judgements", lines)
    exceeded = {case for case, judgement in JUDGEMENTS.items() if judgement.breaches}
    assert {*JUDGEMENTS} - exceeded == {"within the budget", "estimate within the budget"}
    assert "cop" not in " ".join(lines["peak without an X-ray"])


def test_what_holds_is_said_in_a_line() -> None:
    assert judgement_result_line(judged(XRAYED, peak=PEAK)) == (
        "memory budget: models/tied_if.onnx: within its budget"
    )
    profile = profiles.tied_if()
    kept = baseline_entry([profile])
    within = judge_budget([profile], Budget(), entry=kept)
    assert judgement_verdict(within) == "within its baseline"
    both = judge_budget([profile], Budget(limits={"peak": PEAK}), entry=kept)
    assert judgement_verdict(both) == "within its budget and its baseline"
    assert judgement_verdict(judged(profile)) == ""


PEAK_ONLY = replaced(tied_finding(), name="folding-peak", weights=(), bytes=0, peak_bytes=900 * MIB)
GROWS = replaced(tied_finding(), name="folding-grows", bytes=100 * MIB, peak_bytes=100 * MIB)
FIXABLE = replaced(tied_finding(), name="fixable", peak_bytes=300 * MIB)
LARGEST = replaced(tied_finding(), name="largest", peak_bytes=1000 * MIB, rewrites=())


@pytest.mark.parametrize(
    ("findings", "limits", "name"),
    [
        # The copies of the finding that costs less at the peak are listed, and are not the reason.
        ((GROWS, PEAK_ONLY), {"peak": PEAK - 400 * MIB}, "folding-peak"),
        ((GROWS, PEAK_ONLY), {"constant_fold": 1}, "folding-peak"),
        ((GROWS, PEAK_ONLY), {"steady": 1}, "folding-grows"),  # nothing of the other stays
        ((GROWS, PEAK_ONLY), {"copies": 2}, "folding-grows"),
        ((GROWS, PEAK_ONLY), {"parse": 1}, None),  # both are of a later phase
        ((PEAK_ONLY,), {"steady": 1}, None),
        # One with a rewrite goes first if it is enough.
        ((LARGEST, FIXABLE), {"peak": PEAK - 300 * MIB}, "fixable"),
        ((LARGEST, FIXABLE), {"peak": PEAK - 301 * MIB}, "largest"),
        ((replaced(GROWS, evidence="refuted"),), {"peak": 1}, None),
        ((GROWS,), {"peak": PEAK}, None),  # it holds
    ],
)
def test_the_finding_that_lowers_the_figure_is_named(
    findings: tuple[Finding, ...], limits: dict[str, int], name: str | None
) -> None:
    judgement = wasting(*findings, **limits)
    assert "lm_head.weight" in {copy.weight for copy in judgement.copies}
    assert (judgement.suspect and judgement.suspect.name) == name
