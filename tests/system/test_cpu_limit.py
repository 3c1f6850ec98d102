import os
from pathlib import Path

import pytest

from memdiag.system.cpu_limit import cpu_quota, cpus_allowed, thread_count

AFFINITY = len(os.sched_getaffinity(0))
VERSION_1 = {"cpu/app/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/app", {"app/cpu.max": "50000 100000"}, 0.5, id="a limit"),
        pytest.param("0::/app", {"app/cpu.max": "max 100000"}, AFFINITY, id="no limit"),
        pytest.param("0::/a/b", {"a/cpu.max": "25000 100000"}, 0.25, id="of the group above"),
        pytest.param(
            "0::/a/b",
            {"a/cpu.max": "75000 100000", "a/b/cpu.max": "50000 100000"},
            0.5,
            id="the lowest of both",
        ),
        pytest.param(
            "0::/host/path", {"cpu.max": "50000 100000"}, 0.5, id="a path outside the container"
        ),
        pytest.param("0::/app", {"app/cpu.max": "many 0"}, AFFINITY, id="not a limit"),
        pytest.param("0::/app", {"app/cpu.max": "9900000 100000"}, AFFINITY, id="above the CPUs"),
        pytest.param(
            "3:cpuset:/\n1:cpu:/app", {**VERSION_1, "cpu/app/cpu.cfs_quota_us": "50000"}, 0.5,
            id="version 1",
        ),
        pytest.param(
            "1:cpu:/app", {**VERSION_1, "cpu/app/cpu.cfs_quota_us": "-1"}, AFFINITY,
            id="version 1 without a limit",
        ),
        pytest.param(
            "4:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.5,
            id="version 1, mounted together",
        ),
    ],
)  # fmt: skip
def test_limits_of_control_groups(
    membership: str, files: dict[str, str], expected: float, tmp_path: Path
) -> None:
    pid = os.getpid()
    texts = {f"proc/{pid}/cgroup": membership, **{f"cg/{name}": files[name] for name in files}}
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    folders = {"proc": tmp_path / "proc", "control_groups": tmp_path / "cg"}
    assert cpus_allowed(pid, **folders) == expected


@pytest.mark.parametrize(("limit", "quota"), [("max 100000", None), ("9900000 100000", 99.0)])
def test_the_quota_is_of_the_groups_and_not_the_affinity(
    limit: str, quota: float | None, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert cpu_quota(7, proc=tmp_path, control_groups=tmp_path) == quota


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    pid = 1 << 30  # above the largest id
    assert cpus_allowed(pid) is None
    assert thread_count(pid) is None
    assert thread_count(os.getpid()) == len(os.listdir("/proc/self/task"))
