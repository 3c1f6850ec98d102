from typing import Any

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records.attribution import Attribution, Copy, Owner, OwnerKind
from memdiag.records.codec import decode, encode
from tests.reports import attributions

COPY = attributions.copy("packed_fp32", 600, resident_bytes=500, verified_bytes=600)
TIMING = msgspec.structs.replace(
    attributions.attribution().timing, scan_s=0.25, scanned_bytes=10**9
)


def owner(kind: OwnerKind, size: int) -> Owner:
    return Owner(kind=kind, name="name", bytes=size, private_bytes=size)


def larger_part(name: str) -> Copy:
    return msgspec.structs.replace(COPY, **{name: 601})


OWNERS = (owner("weights", 500), owner("python", 200), owner("python", 75), owner("unnamed", 225))


def attribution(**changes: Any) -> Attribution:
    fields = {"resident_bytes": 1000, "owners": OWNERS, "timing": TIMING}
    return attributions.attribution(COPY, **(fields | changes))


def test_it_survives_a_round_trip() -> None:
    record = attribution()
    assert decode(encode(record), Attribution) == record


def test_derived_figures() -> None:
    record = attribution()
    assert record.bytes_of("python") == 275
    assert record.bytes_of("arena") == 0
    assert record.timing.scan_gb_per_s == pytest.approx(4.0)
    assert msgspec.structs.replace(record.timing, scan_s=0.0).scan_gb_per_s is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resident_bytes": 1001}, "the owners have 1000 bytes, 1001 are resident"),
        ({"named_share": 1.01}, "named share"),
        ({"named_share": float("nan")}, "named share"),
        ({"owners": (owner("weights", 1001), owner("arena", -1))}, "less than no bytes"),
        ({"copies": (larger_part("resident_bytes"),)}, "parts larger than itself"),
        ({"copies": (larger_part("verified_bytes"),)}, "parts larger than itself"),
    ],
)
def test_figures_that_do_not_agree_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attribution(**changes)


def test_a_file_whose_figures_do_not_agree_is_refused() -> None:
    text = encode(attribution()).replace(b'"resident_bytes": 1000', b'"resident_bytes": 999')
    with pytest.raises(RecordError, match="the owners have 1000 bytes, 999 are resident"):
        decode(text, Attribution, origin="attribution.json")


def test_a_file_with_an_unknown_owner_is_refused() -> None:
    text = encode(attribution()).replace(b'"kind":"weights"', b'"kind":"gnomes"')
    with pytest.raises(RecordError, match="gnomes"):
        decode(text, Attribution)
