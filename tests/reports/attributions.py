"""X-rays made by hand, with figures that are easy to add up."""

import msgspec

from memdiag.records.attribution import (
    ATTRIBUTION_SCHEMA,
    Attribution,
    Backing,
    Copy,
    Owner,
    OwnerKind,
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


def owner(kind: OwnerKind, name: str, size: int) -> Owner:
    """Return an owner of private memory."""
    return Owner(kind=kind, name=name, bytes=size, private_bytes=size)


def attribution(*copies: Copy, **changes: object) -> Attribution:
    weights = sum(copy.resident_bytes for copy in copies)
    made = Attribution(
        schema=ATTRIBUTION_SCHEMA,
        pid=42,
        resident_bytes=weights + 100 * MIB,
        baseline_bytes=40 * MIB,
        named_share=0.99996,
        owners=(
            owner("weights", "original", weights),
            owner("python", "objects", 30 * MIB),
            owner("python", "interpreter", 60 * MIB),
            owner("other_heap", "blocks in use", 9 * MIB),
            owner("unnamed", "unnamed", 1 * MIB),
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
