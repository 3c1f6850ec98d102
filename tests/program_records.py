"""Parts of records of programs that tests of rules and of reports share."""

from collections.abc import Iterable
from typing import Any

from memdiag.records.attribution import (
    ATTRIBUTION_SCHEMA,
    ArenaUsage,
    Attribution,
    Owner,
    ScanTiming,
)
from memdiag.records.profile import Environment

MIB = 1 << 20


def environment(**changes: Any) -> Environment:
    """Return the description of a machine with 16 CPUs and 64 GiB."""
    given: dict[str, Any] = {
        "memdiag": "0.1.0",
        "onnxruntime": "1.32.0",
        "python": "3.11.7",
        "platform": "Linux",
        "cpu": "cpu",
        "cpu_count": 16,
        "memory_bytes": 64 << 30,
    }
    return Environment(**(given | changes))


def attribution(
    pid: int, owners: Iterable[Owner], arenas: Iterable[ArenaUsage], **changes: Any
) -> Attribution:
    """Return the owners of 200 MiB in process `pid`, without copies of weights."""
    given: dict[str, Any] = {
        "schema": ATTRIBUTION_SCHEMA,
        "pid": pid,
        "resident_bytes": 200 * MIB,
        "baseline_bytes": None,
        "named_share": 1.0,
        "owners": tuple(owners),
        "copies": (),
        "indistinct": (),
        "partial": False,
        "notes": (),
        "timing": ScanTiming(
            total_s=0.1, scan_s=0.1, verify_s=0.0, scanned_bytes=1, verified_bytes=1
        ),
        "arenas": tuple(arenas),
    }
    return Attribution(**(given | changes))
