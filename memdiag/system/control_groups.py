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
        pid: the process; no folders are yielded if it has ended.
        controller: what the groups of version 1 control, such as ``cpu``; groups of version 2
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
            mounts = [control_groups]
        elif controller in controllers.split(","):
            mounts = [control_groups / controller, control_groups / controllers]
        else:
            continue
        # In a container the path may be the host's: the topmost group is the container's then.
        group_path = PurePosixPath(path.lstrip("/"))
        for folder in mounts:
            for group in (group_path, *group_path.parents):
                yield folder / group
