from collections.abc import Sequence

import msgspec
import pytest

from memdiag.records.attribution import (
    ARENA_SLACK_NAME,
    Attribution,
    Backing,
    Copy,
    CopyKind,
    Owner,
    ScanTiming,
    Unidentifiable,
)
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.rules.match_measurement import match_attribution, match_profile
from tests.reports import profiles, tied_xray
from tests.reports.checks import MIB, finding

TRANSPOSED = ExpectedCopies(weights=("w",), kind="transposed", count=1, bytes=64 * MIB)
ORIGINALS = ExpectedCopies(weights=("a", "b"), kind="original", count=2, bytes=2 * MIB)


def copy(weights: str, kind: CopyKind, nbytes: int, in_use: bool | None = True) -> Copy:
    return Copy(
        weights=tuple(weights.split()),
        layout="original",
        kind=kind,
        parameters={},
        bytes=nbytes,
        resident_bytes=nbytes,
        address=4096,
        backing=Backing(kind="anonymous"),
        verified_bytes=nbytes,
        in_use=in_use,
        made_by=None,
    )


def attribution(*copies: Copy, partial: bool = False, vague: tuple[str, ...] = ()) -> Attribution:
    return Attribution(
        schema="memdiag.attribution/1",
        pid=1,
        resident_bytes=0,
        baseline_bytes=None,
        named_share=1.0,
        owners=(),
        copies=copies,
        indistinct=(Unidentifiable(reason="zeros", count=1, bytes=1, weights=vague),)
        if vague
        else (),
        partial=partial,
        notes=(),
        timing=ScanTiming(total_s=0, scan_s=0, verify_s=0, scanned_bytes=0, verified_bytes=0),
    )


def expecting(*expected: ExpectedCopies, nbytes: int) -> Finding:
    return finding(expected=expected, bytes=nbytes, weights=expected[0].weights)


FOUND = copy("w", "transposed", 64 * MIB)
BOTH = (copy("a b", "original", MIB), copy("b a", "original", MIB))
HALF = msgspec.structs.replace(BOTH[0], resident_bytes=MIB // 2)
PACKED = [ExpectedCopies(weights=(name,), kind="packed", count=1, bytes=4 * MIB) for name in "ab"]
ONE = expecting(TRANSPOSED, nbytes=64 * MIB)
TWO = expecting(ORIGINALS, nbytes=MIB)


@pytest.mark.parametrize(
    ("predicted", "copies", "evidence", "measured_bytes"),
    [
        (ONE, [FOUND], "measured", 64 * MIB),
        (ONE, [FOUND, FOUND], "measured", 128 * MIB),
        (ONE, [copy("w", "packed", 64 * MIB)], "refuted", 0),
        (ONE, [copy("w", "transposed", 64 * MIB, in_use=False)], "refuted", 0),
        (ONE, [copy("v", "transposed", 64 * MIB)], "refuted", 0),
        (TWO, BOTH[:1], "refuted", 0),  # which the model needs
        (TWO, BOTH, "measured", MIB),
        (TWO, [HALF, HALF], "measured", MIB // 2),  # as far as it is resident
        (
            expecting(*PACKED, nbytes=8 * MIB),
            [copy("a b", "packed", 4 * MIB)],
            "measured",
            4 * MIB,
        ),
    ],
    ids=["seen", "twice", "another kind", "freed", "another weight", "needed", "beyond the needed",
         "mapped", "shared by two weights"],
)  # fmt: skip
def test_copies_decide(
    predicted: Finding, copies: Sequence[Copy], evidence: str, measured_bytes: int
) -> None:
    seen = match_attribution(predicted, attribution(*copies))
    assert (seen.evidence, seen.measured_bytes) == (evidence, measured_bytes)


def test_what_cannot_be_told_stays_predicted() -> None:
    assert match_attribution(ONE, attribution(partial=True)) is ONE
    assert match_attribution(ONE, attribution(vague=("w",))) is ONE
    silent = msgspec.structs.replace(ONE, expected=())
    assert match_attribution(silent, attribution()) is silent


@pytest.mark.parametrize(
    ("options", "slack", "evidence"),
    [
        pytest.param({}, None, "measured", id="no arena was found"),
        pytest.param({}, 100, "measured", id="kept"),
        pytest.param({}, 1, "refuted", id="shrunk after each run"),
        pytest.param({"enable_cpu_mem_arena": "False"}, None, "refuted", id="off"),
        pytest.param({"enable_cpu_mem_arena": "0"}, None, "refuted", id="off, as users write it"),
        pytest.param({"enable_cpu_mem_arena": "on"}, None, "measured", id="on"),
    ],
)
def test_activations_that_the_arena_does_not_keep_are_refuted(
    options: dict[str, str], slack: int | None, evidence: str
) -> None:
    profile = tied_xray.with_attribution()
    seen, profile_session = profile.attribution, profile.session
    assert seen is not None
    owners = tuple(owner for owner in seen.owners if owner.kind != "arena")
    if slack is not None:
        owners += (
            Owner(
                kind="arena", name=ARENA_SLACK_NAME, bytes=slack * MIB, private_bytes=slack * MIB
            ),
        )
    profile = msgspec.structs.replace(
        profile,
        attribution=msgspec.structs.replace(
            seen, owners=owners, partial=False, resident_bytes=sum(each.bytes for each in owners)
        ),
        session=msgspec.structs.replace(profile_session, options=options),
    )
    run = profile.phase("first_run")
    assert run is not None
    grown = run.peak_rss_bytes - run.start.rss_bytes
    assert grown > 0
    activations = finding(bytes=64 * MIB, run_bytes=grown, expected=())
    assert match_profile(activations, profile).evidence == evidence


@pytest.mark.parametrize(
    ("steps", "evidence"),
    [
        (profiles.TIED_IF, "predicted"),
        ([step for step in profiles.TIED_IF if step.phase != "constant_fold"], "refuted"),
        (profiles.TIED_IF[:4], "predicted"),  # it ended before anything was folded
    ],
    ids=["folded", "not folded", "ended early"],
)
def test_what_folding_costs_is_refuted_where_nothing_was_folded(
    steps: Sequence[profiles.Step], evidence: str
) -> None:
    predicted = finding(phase="constant_fold", bytes=64 << 20, peak_bytes=64 << 20)
    profile = msgspec.structs.replace(profiles.build(steps), attribution=None)
    assert match_profile(predicted, profile).evidence == evidence


LIMITED = {"optimization.constant_folding_max_output_size_in_bytes": "1024"}


@pytest.mark.parametrize(("options", "evidence"), [({}, "predicted"), (LIMITED, "refuted")])
def test_a_limit_of_folded_results_refutes_what_folding_did_not_add(
    options: dict[str, str], evidence: str
) -> None:
    large = 64 << 30  # constant folding added 478 MiB
    predicted = finding(phase="constant_fold", bytes=large, peak_bytes=large)
    profile = msgspec.structs.replace(profiles.build(profiles.TIED_IF), attribution=None)
    session = msgspec.structs.replace(profile.session, options=options)
    profile = msgspec.structs.replace(profile, session=session)
    assert match_profile(predicted, profile).evidence == evidence
