"""X-rays made by hand, with figures that are easy to add up."""

import msgspec

from memdiag.records.attribution import (
    Attribution,
    Backing,
    Copy,
    Owner,
    ScanTiming,
    Unidentifiable,
)
from memdiag.units import MIB


def copy(layout: str, size: int, name: str = "shared", **changes: object) -> Copy:
    made = Copy(
        weights=(name,),
        layout=layout,
        kind="packed" if layout.startswith("packed") else "original",
        parameters={},
        bytes=size,
        resident_bytes=size,
        address=0x7F0000000040,
        backing=Backing(kind="anonymous"),
        verified_bytes=size,
        in_use=True,
        made_by="parse",
    )
    return msgspec.structs.replace(made, **changes)


def attribution(*copies: Copy, **changes: object) -> Attribution:
    weights = sum(one.resident_bytes for one in copies)
    made = Attribution(
        schema="memdiag.attribution/1",
        pid=42,
        resident_bytes=weights + 100 * MIB,
        baseline_bytes=40 * MIB,
        named_share=0.99996,
        owners=(
            Owner(kind="weights", name="original", bytes=weights, private_bytes=weights),
            Owner(kind="python", name="objects", bytes=30 * MIB, private_bytes=30 * MIB),
            Owner(kind="python", name="interpreter", bytes=60 * MIB, private_bytes=60 * MIB),
            Owner(kind="other_heap", name="blocks in use", bytes=9 * MIB, private_bytes=9 * MIB),
            Owner(kind="unnamed", name="unnamed", bytes=1 * MIB, private_bytes=1 * MIB),
        ),
        copies=copies,
        indistinct=(
            Unidentifiable(reason="smaller than 256 bytes each", count=3, bytes=24, weights=()),
        ),
        partial=False,
        notes=(),
        timing=ScanTiming(total_s=1.0, scan_s=0.5, verify_s=0.5, scanned_bytes=1, verified_bytes=1),
    )
    return msgspec.structs.replace(made, **changes)


SHARED = (copy("original", 64 * MIB), copy("packed_fp32", 65 * MIB), copy("original", 8 * MIB, "b"))
