"""The X-ray of a tied 500 MiB weight, of the size that it really has, next to its profile."""

import msgspec

from memdiag.records.attribution import Attribution, Backing, Copy, ScanTiming, Unidentifiable
from memdiag.records.profile import PhaseAttribution, Profile
from tests.reports import attributions, profiles
from tests.reports.attributions import copy, owner
from tests.reports.profiles import MIB


def with_attribution() -> Profile:
    """Return the profile of the tied weight with the X-ray of its steady state."""
    return msgspec.structs.replace(profiles.tied_if(), attribution=attribution())


def with_xrays() -> Profile:
    """Return a profile with the X-rays of two moments."""
    earlier = PhaseAttribution(
        phase="parse", attribution=attributions.attribution(*attributions.SHARED)
    )
    return msgspec.structs.replace(with_attribution(), phase_attributions=(earlier,))


def attribution(weights: int = 12) -> Attribution:
    """Return the X-ray of the tied weight and of `weights` small mapped ones, half resident.

    The tied weight has three copies, a freed one next to them. The owners sum to 1579 MiB.
    """
    freed = copy("original", 2 * MIB, "bias", address=0x555500000010, in_use=False, made_by=None)
    mapped = weights * MIB // 2
    return attributions.attribution(
        *_tied_copies(),
        freed,
        *map(_mapped_copy, range(weights)),
        pid=4242,
        resident_bytes=1579 * MIB,
        baseline_bytes=46 * MIB,
        named_share=0.9967,
        owners=(
            owner("weights", "original", 500 * MIB + mapped),
            owner("weights", "transposed", 500 * MIB),
            owner("weights", "packed", 500 * MIB),
            owner("arena", "in use", 4 * MIB),
            owner("arena", "slack", 12 * MIB),
            owner("allocator_retained", "freed blocks that malloc keeps", 6 * MIB),
            owner("python", "objects", 52 * MIB - mapped),
            owner("unnamed", "unnamed", 5 * MIB),
        ),
        indistinct=(
            Unidentifiable(
                reason="smaller than 256 bytes each", count=3, bytes=24, weights=("a", "b", "c")
            ),
        ),
        timing=ScanTiming(
            total_s=0.6,
            scan_s=0.25,
            verify_s=0.3,
            scanned_bytes=1560 * MIB,
            verified_bytes=1502 * MIB,
        ),
    )


def _tied_copies() -> list[Copy]:
    """Return the copies of the tied weight, one behind another."""
    size, first = 500 * MIB, 0x7F0000000040
    makers = {
        "original": "parse",
        "transposed": "ConstantFolding · lm/Transpose",
        "packed_fp32": "prepack · lm/MatMul",
    }
    return [
        copy(
            layout,
            size,
            weights=("model.shared.weight", "lm_head.weight"),
            kind=layout.removesuffix("_fp32"),
            parameters={"perm": "1,0"} if layout == "transposed" else {},
            address=first + (size << 4) * index,
            made_by=maker,
        )
        for index, (layout, maker) in enumerate(makers.items())
    ]


def _mapped_copy(index: int) -> Copy:
    """Return a weight of 1 MiB that is mapped from the file, half resident."""
    return copy(
        "original",
        MIB,
        f"layer.{index}",
        address=0x7E0000000000 + index * MIB,
        backing=Backing(kind="file", file="tied.data", offset=index * MIB),
        resident_bytes=MIB // 2,
        verified_bytes=MIB // 2,
        made_by=None,
    )
