import msgspec

from memdiag.budgets.baselines import baseline_entry
from memdiag.budgets.evaluation import judge
from memdiag.records.budget import Budget, Judgement
from memdiag.records.finding import Finding
from memdiag.records.profile import Run
from memdiag.reports.budget import first_line, lines, verdict
from tests.reports import profiles, tied_xray
from tests.reports.profiles import MIB

PEAK = (1579 - 46) * MIB
OWNERS = (
    "  largest owners at steady state: weights (original) 506 MiB, weights (transposed) 500 MiB,"
    " weights (packed) 500 MiB, arena slack 12 MiB"
)


def budgeted(**limits: int) -> Judgement:
    return judge([tied_xray.with_attribution()], Budget(limits=limits))


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
    return judge([profile], Budget(), entry=before)


def test_what_holds_is_said_in_a_line() -> None:
    assert first_line(budgeted(peak=PEAK)) == (
        "memory budget: models/tied_if.onnx: within its budget"
    )
    profile = profiles.tied_if()
    kept = baseline_entry([profile])
    assert verdict(judge([profile], Budget(), entry=kept)) == "within its baseline"
    assert verdict(judge([profile], Budget(limits={"peak": PEAK}), entry=kept)) == (
        "within its budget and its baseline"
    )
    assert verdict(judge([profile], Budget())) == ""


def test_a_breach_names_figure_size_phase_copies_and_remedy() -> None:
    judgement = budgeted(constant_fold=1024 * MIB, peak=PEAK)
    assert lines(judgement)[:3] == (
        "memory budget: models/tied_if.onnx: 493 MiB over its budget in constant_fold",
        "  constant_fold   1.48 GiB   budget 1.00 GiB   +493 MiB",
        "  most copies: lm_head.weight, 3 of them, 1.46 GiB: original (parse), packed (prepack ·"
        " lm/MatMul), transposed (ConstantFolding · lm/Transpose)",
    )


def test_a_breach_names_what_holds_the_memory() -> None:
    (line,) = [line for line in lines(budgeted(peak=1)) if "largest owners" in line]
    assert line == OWNERS
    assert "largest owners" not in "\n".join(lines(budgeted(peak=PEAK)))
    # Copies that are new since the baseline say it better.
    assert "largest owners" not in "\n".join(lines(grown()))


def test_a_byte_over_is_told_to_the_byte() -> None:
    first, row, *_ = lines(budgeted(peak=PEAK - 1))
    assert first.endswith(": 1 B over its budget in first_run")
    assert row == f"  peak   {PEAK:,} B   budget {PEAK - 1:,} B   +1 B"


def test_growth_since_the_baseline_is_told_from_where_it_starts() -> None:
    first, *rest = lines(grown())
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


def test_copies_and_growth_have_words_of_their_own() -> None:
    assert verdict(budgeted(copies=2)) == "3 copies of a weight; its budget is 2"
    profile = profiles.tied_if()
    runs = tuple(Run(latency_s=0.1, rss_bytes=3 * MIB * index) for index in range(10))
    leaks = msgspec.structs.replace(profile, runs=runs)
    leaking = judge([leaks], Budget(limits={"growth_per_run": MIB}))
    assert verdict(leaking) == "2.0 MiB a run over its budget in steady"


def test_without_an_xray_nothing_is_said_of_copies() -> None:
    text = "\n".join(lines(judge([profiles.tied_if()], Budget(limits={"peak": 1}))))
    assert "copies" not in text
    assert "copy" not in text


def test_a_finding_is_what_to_try() -> None:
    finding = msgspec.structs.replace(tied_finding(), rewrites=("gemm-transposed",))
    profile = msgspec.structs.replace(tied_xray.with_attribution(), findings=(finding,))
    texts = lines(judge([profile], Budget(limits={"peak": 1})))
    assert texts[-1] == ("  try: memdiag fix models/tied_if.onnx --only shared-weight-transposed")
    advice = msgspec.structs.replace(finding, rewrites=())
    profile = msgspec.structs.replace(profile, findings=(advice,))
    assert lines(judge([profile], Budget(limits={"peak": 1})))[-1] == (
        "  see: memdiag explain shared-weight-transposed"
    )
    refuted = msgspec.structs.replace(finding, evidence="refuted")
    profile = msgspec.structs.replace(profile, findings=(refuted,))
    assert judge([profile], Budget(limits={"peak": 1})).suspect is None
    profile = msgspec.structs.replace(profile, findings=(finding,))
    assert judge([profile], Budget(limits={"peak": PEAK})).suspect is None


def test_the_finding_that_lowers_the_figure_is_named() -> None:
    change = msgspec.structs.replace
    tied = change(tied_finding(), rewrites=("gemm-transposed",))
    transient = change(
        tied, name="folding-peak", weights=(), bytes=0, peak_bytes=900 * MIB, rewrites=("store",)
    )
    grows = change(tied, name="folding-grows", bytes=100 * MIB, peak_bytes=100 * MIB)
    profile = change(tied_xray.with_attribution(), findings=(grows, transient))

    def named(**limits: int) -> str | None:
        found = judge([profile], Budget(limits=limits))
        return found.suspect.rule if found.suspect else None

    # The copies of the finding that costs less at the peak are listed, and are not the reason.
    assert "lm_head.weight" in {copy.weight for copy in judge([profile], Budget()).copies}
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
        suspect = judge([profile], Budget(limits={"peak": PEAK - over})).suspect
        assert suspect is not None
        assert suspect.rule == name


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
