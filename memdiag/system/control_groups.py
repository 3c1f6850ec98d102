"""The control groups of a process, which limit its CPUs and memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC_FOLDER = Path("/proc")
CONTROL_GROUPS_FOLDER = Path("/sys/fs/cgroup")


def control_groups_of(
    pid: int,
    controller: str,
    *,
    proc: Path = PROC_FOLDER,
    control_groups: Path = CONTROL_GROUPS_FOLDER,
) -> Iterator[Path]:
    """Yield the folders of the control groups of process `pid`, and of the groups above them.

    Args:
        pid: the process; none are yielded if it has ended.
        controller: the groups that control it, such as ``cpu``; groups of version 2
            control everything.
        proc: the folder with the processes.
        control_groups: the folder with the control groups.
    """
    try:
        memberships = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers:  # version 2
            mounted = [control_groups]
        elif controller in controllers.split(","):
            mounted = [control_groups / controller, control_groups / controllers]
        else:
            continue
        # In a container the path may be the host's; the group of the container is then the top.
        relative = PurePosixPath(path.lstrip("/"))
        for folder in mounted:
            for group in (relative, *relative.parents):
                yield folder / group
