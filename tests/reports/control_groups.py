"""Limits of containers and control groups for tests of reports."""

from typing import Any

import msgspec

from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import Environment
from memdiag.units import MIB


def limited(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, memory_limit_bytes=512 * MIB, cpu_quota=1.5)


def group(**changes: Any) -> GroupMemory:
    memory = GroupMemory(
        version=2,
        limit_bytes=512 * MIB,
        current_bytes=400 * MIB,
        peak_bytes=450 * MIB,
        anonymous_bytes=250 * MIB,
        file_bytes=140 * MIB,
        kernel_bytes=10 * MIB,
        swap_bytes=0,
        limit_hits=0,
        oom_kills=0,
    )
    return msgspec.structs.replace(memory, **changes)
