"""Address spaces made by hand."""

import os
from collections.abc import Sequence

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace, Region

NOTHING = intervals.empty_ranges()


def address_space(
    *,
    resident: intervals.ByteRanges = NOTHING,
    anonymous: intervals.ByteRanges = NOTHING,
    paths: Sequence[str] = (),
    region_bytes: int = 1 << 20,
) -> AddressSpace:
    """Return the space of this process as it might be: regions of one size with these paths."""
    regions = tuple(
        Region(
            start=number * region_bytes,
            end=(number + 1) * region_bytes,
            permissions="rw-p",
            offset=0,
            device=(0, 0),
            inode=number + 1 if path.startswith("/") else 0,
            path=path,
            deleted=False,
            rss=PAGE_BYTES,
            anonymous=0,
        )
        for number, path in enumerate(paths)
    )
    return AddressSpace(
        pid=os.getpid(),
        regions=regions,
        resident=resident,
        anonymous=anonymous,
        exclusive=anonymous,
        partial=False,
        drift_bytes=0,
    )
