"""How much of a mapped file is resident in this process."""

import os
from pathlib import Path

from memdiag.attribution.address_space import read_address_space


def resident_bytes(path: Path) -> int:
    """Return the resident bytes of all mappings of the file at `path`."""
    regions = read_address_space(os.getpid()).regions
    return sum(region.rss for region in regions if region.path == str(path.resolve()))
