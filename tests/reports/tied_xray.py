"""The X-ray of a tied 500 MiB weight, of the size that it really has, beside its profile."""

import msgspec

from memdiag.records.attribution import (
    ATTRIBUTION_SCHEMA,
    Attribution,
    Backing,
    Copy,
    CopyKind,
    Owner,
    ScanTiming,
    Unidentifiable,
)
from memdiag.records.profile import PhaseAttribution, Profile
from tests.reports import attributions, profiles
from tests.reports.profiles import MIB


def with_attribution() -> Profile:
    """Return the profile of the tied weight with the X-ray of its steady state."""
    return msgspec.structs.replace(profiles.tied_if(), attribution=attribution())


def with_xrays() -> Profile:
    """Return a profile with the X-rays of two moments."""
    record = attribution()
    earlier = PhaseAttribution(
        phase="parse", attribution=attributions.attribution(*attributions.SHARED)
    )
    return msgspec.structs.replace(
        profiles.tied_if(), attribution=record, phase_attributions=(earlier,)
    )


def attribution(weights: int = 12) -> Attribution:
    """Return the X-ray of the tied weight and of `weights` small mapped ones, half resident.

    The tied weight has three copies, a freed one beside them. The owners sum to 1579 MiB.
    """
    tied = ("model.shared.weight", "lm_head.weight")
    kinds: tuple[tuple[CopyKind, str, str], ...] = (
        ("original", "original", "parse"),
        ("transposed", "transposed", "ConstantFolding · lm/Transpose"),
        ("packed", "packed_fp32", "prepack · lm/MatMul"),
    )
    copies = [
        _copy(tied, kind, layout, 500 * MIB, 0x7F0000000040 + (500 * MIB << 4) * index, maker)
        for index, (kind, layout, maker) in enumerate(kinds)
    ]
    freed = _copy(("bias",), "original", "original", 2 * MIB, 0x555500000010, None)
    copies.append(msgspec.structs.replace(freed, in_use=False))
    for index in range(weights):
        small = _copy((f"layer.{index}",), "original", "original", MIB, 0x7E0000000000, None)
        backing = Backing(kind="file", file="tied.data", offset=index * MIB)
        half = MIB // 2
        copies.append(
            msgspec.structs.replace(
                small,
                address=small.address + index * MIB,
                backing=backing,
                resident_bytes=half,
                verified_bytes=half,
            )
        )
    mapped = weights * MIB // 2
    python = 52 * MIB - mapped
    return Attribution(
        schema=ATTRIBUTION_SCHEMA,
        pid=4242,
        resident_bytes=1579 * MIB,
        baseline_bytes=46 * MIB,
        named_share=0.9967,
        owners=(
            Owner(
                kind="weights",
                name="original",
                bytes=500 * MIB + mapped,
                private_bytes=500 * MIB + mapped,
            ),
            Owner(kind="weights", name="transposed", bytes=500 * MIB, private_bytes=500 * MIB),
            Owner(kind="weights", name="packed", bytes=500 * MIB, private_bytes=500 * MIB),
            Owner(kind="arena", name="in use", bytes=4 * MIB, private_bytes=4 * MIB),
            Owner(kind="arena", name="slack", bytes=12 * MIB, private_bytes=12 * MIB),
            Owner(
                kind="allocator_retained",
                name="freed blocks that malloc keeps",
                bytes=6 * MIB,
                private_bytes=6 * MIB,
            ),
            Owner(kind="python", name="objects", bytes=python, private_bytes=python),
            Owner(kind="unnamed", name="unnamed", bytes=5 * MIB, private_bytes=5 * MIB),
        ),
        copies=tuple(copies),
        indistinct=(
            Unidentifiable(
                reason="smaller than 256 bytes each", count=3, bytes=24, weights=("a", "b", "c")
            ),
        ),
        partial=False,
        notes=(),
        timing=ScanTiming(
            total_s=0.6,
            scan_s=0.25,
            verify_s=0.3,
            scanned_bytes=1560 * MIB,
            verified_bytes=1502 * MIB,
        ),
    )


def _copy(
    weights: tuple[str, ...],
    kind: CopyKind,
    layout: str,
    size: int,
    address: int,
    made_by: str | None,
) -> Copy:
    return Copy(
        weights=weights,
        layout=layout,
        kind=kind,
        parameters={"perm": "1,0"} if kind == "transposed" else {},
        bytes=size,
        resident_bytes=size,
        address=address,
        backing=Backing(kind="anonymous"),
        verified_bytes=size,
        in_use=True,
        made_by=made_by,
    )
