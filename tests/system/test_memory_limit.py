"""The memory that a child of this process can take, by the limits of control groups."""

import os
from pathlib import Path

import psutil
import pytest

from memdiag.system.memory_limit import available_memory_bytes, total_memory_bytes

STAT = "anon 500\ninactive_file 100\nactive_file 50\nfile_mapped 50"
VERSION_1 = {
    "memory/app/memory.usage_in_bytes": "900",
    "memory/app/memory.stat": f"{STAT}\ntotal_inactive_file 200\ntotal_active_file 50\n"
    "total_mapped_file 50",
}
VERSION_2 = {"app/memory.current": "900", "app/memory.stat": STAT}
UNLIMITED = 1 << 60


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/app", {**VERSION_2, "app/memory.max": "1000"}, 200, id="a limit"),
        pytest.param("0::/app", {**VERSION_2, "app/memory.max": "max"}, UNLIMITED, id="no limit"),
        pytest.param(
            "0::/app/x", {**VERSION_2, "app/memory.max": "1000"}, 200, id="of the group above"
        ),
        pytest.param(
            "0::/app", {"app/memory.max": "1000", "app/memory.current": "900"}, 100,
            id="without statistics",
        ),
        pytest.param(
            "4:memory:/app", {**VERSION_1, "memory/app/memory.limit_in_bytes": "1000"}, 300,
            id="version 1",
        ),
        pytest.param(
            "1:cpu:/app", {**VERSION_1, "memory/app/memory.limit_in_bytes": "1000"}, UNLIMITED,
            id="another controller",
        ),
    ],
)  # fmt: skip
def test_the_least_of_free_memory_and_limits(
    monkeypatch: pytest.MonkeyPatch,
    membership: str,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
) -> None:
    free = psutil.virtual_memory()._replace(available=UNLIMITED, total=UNLIMITED)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    texts = {f"proc/{os.getpid()}/cgroup": membership}
    texts |= {f"cg/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    found = available_memory_bytes(proc=tmp_path / "proc", control_groups=tmp_path / "cg")
    assert found == expected
    total = total_memory_bytes(proc=tmp_path / "proc", control_groups=tmp_path / "cg")
    is_limited = any("1000" in text for text in files.values()) and "1:cpu" not in membership
    assert total == (1000 if is_limited else UNLIMITED)
