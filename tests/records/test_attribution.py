from typing import Any

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records.attribution import (
    ATTRIBUTION_SCHEMA,
    Attribution,
    Backing,
    Copy,
    Owner,
    ScanTiming,
    Unidentifiable,
)
from memdiag.records.codec import decode, encode

COPY = Copy(
    weights=("shared.weight",),
    layout="packed_fp32",
    kind="packed",
    parameters={"panel": "16"},
    bytes=600,
    resident_bytes=500,
    address=0x7F0000000040,
    backing=Backing(kind="anonymous"),
    verified_bytes=600,
    in_use=True,
    made_by=None,
)


def attribution(**changes: Any) -> Attribution:
    fields: dict[str, Any] = {
        "schema": ATTRIBUTION_SCHEMA,
        "pid": 7,
        "resident_bytes": 1000,
        "baseline_bytes": 100,
        "named_share": 0.75,
        "owners": (
            Owner(kind="weights", name="packed", bytes=500, private_bytes=500),
            Owner(kind="python", name="objects", bytes=200, private_bytes=200),
            Owner(
                kind="python", name="heap before the model was loaded", bytes=75, private_bytes=75
            ),
            Owner(kind="unnamed", name="unnamed", bytes=225, private_bytes=225),
        ),
        "copies": (COPY,),
        "indistinct": (Unidentifiable(reason="all zeros", count=1, bytes=64, weights=("bias",)),),
        "partial": False,
        "notes": (),
        "timing": ScanTiming(
            total_s=0.5, scan_s=0.25, verify_s=0.1, scanned_bytes=10**9, verified_bytes=600
        ),
        **changes,
    }
    return Attribution(**fields)


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
        (
            {
                "owners": (
                    Owner(kind="weights", name="packed", bytes=1001, private_bytes=1001),
                    Owner(kind="arena", name="slack", bytes=-1, private_bytes=-1),
                )
            },
            "less than no bytes",
        ),
        (
            {"copies": (msgspec.structs.replace(COPY, resident_bytes=601),)},
            "parts larger than itself",
        ),
        (
            {"copies": (msgspec.structs.replace(COPY, verified_bytes=601),)},
            "parts larger than itself",
        ),
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
