import msgspec
import pytest

from memdiag.detectors.confront import confront
from memdiag.records.attribution import Attribution, Backing, Copy, CopyKind, Indistinct, ScanTiming
from memdiag.records.finding import ExpectedCopies, Finding
from tests.reporters.checks.checks import MIB, finding

TRANSPOSED = ExpectedCopies(weights=("w",), kind="transposed", count=1, bytes=64 * MIB)
ORIGINALS = ExpectedCopies(weights=("a", "b"), kind="original", count=2, bytes=2 * MIB)


def copy(weights: str, kind: CopyKind, nbytes: int, live: bool | None = True) -> Copy:
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
        live=live,
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
        verification="full",
        indistinct=(Indistinct(reason="zeros", count=1, bytes=1, weights=vague),) if vague else (),
        partial=partial,
        notes=(),
        timing=ScanTiming(total_s=0, scan_s=0, verify_s=0, scanned_bytes=0, verified_bytes=0),
    )


def expecting(*expected: ExpectedCopies, nbytes: int) -> Finding:
    return finding(expected=expected, bytes=nbytes, weights=expected[0].weights)


def test_a_copy_that_was_seen_is_measured() -> None:
    seen = confront(
        expecting(TRANSPOSED, nbytes=64 * MIB), attribution(copy("w", "transposed", 64 * MIB))
    )
    assert (seen.evidence, seen.measured_bytes) == ("measured", 64 * MIB)


@pytest.mark.parametrize(
    "other",
    [
        copy("w", "packed", 64 * MIB),
        copy("w", "transposed", 64 * MIB, live=False),
        copy("v", "transposed", 64 * MIB),
    ],
    ids=["another kind", "freed", "another weight"],
)
def test_without_that_copy_it_is_refuted(other: Copy) -> None:
    seen = confront(expecting(TRANSPOSED, nbytes=64 * MIB), attribution(other))
    assert (seen.evidence, seen.measured_bytes) == ("refuted", 0)


def test_copies_that_the_model_needs_do_not_count() -> None:
    one, two = copy("a b", "original", MIB), copy("b a", "original", MIB)
    predicted = expecting(ORIGINALS, nbytes=MIB)
    assert confront(predicted, attribution(one)).evidence == "refuted"
    both = confront(predicted, attribution(one, two))
    assert (both.evidence, both.measured_bytes) == ("measured", MIB)


def test_more_than_predicted_is_said() -> None:
    copies = [copy("w", "transposed", 64 * MIB)] * 2
    seen = confront(expecting(TRANSPOSED, nbytes=64 * MIB), attribution(*copies))
    assert seen.measured_bytes == 128 * MIB


def test_what_cannot_be_told_stays_predicted() -> None:
    predicted = expecting(TRANSPOSED, nbytes=64 * MIB)
    assert confront(predicted, attribution(partial=True)) is predicted
    assert confront(predicted, attribution(vague=("w",))) is predicted
    silent = msgspec.structs.replace(predicted, expected=())
    assert confront(silent, attribution()) is silent
