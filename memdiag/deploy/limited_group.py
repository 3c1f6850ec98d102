"""A control group with a memory limit: creation, counters, and removal with its processes.

Both versions are supported. Version 1 is the memory controller below ``/sys/fs/cgroup/memory``.
In version 2 a group can limit memory only if the group above it passes the controller on
(``cgroup.subtree_control``), which is not possible for a group that has processes itself. The new
group is therefore created in the nearest group where that works, from memdiag's own group upward.
"""

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self

import psutil

from memdiag.deploy.group_removal import (
    processes_of,
    remove_group,
    remove_groups,
    start_removal_at_end,
)
from memdiag.errors import MeasurementError
from memdiag.system.control_groups import CONTROL_GROUPS_FOLDER, PROC_FOLDER, control_groups_of
from memdiag.system.group_memory import LimitingControlGroup, memory_groups_in
from memdiag.temporary_names import own_prefix, temporary_file_owner

# The shell moves itself, and becomes the program: no memory of the program is counted elsewhere.
_ENTER_SCRIPT = 'echo 0 > "$0" && exec "$@"'


class NoGroupError(MeasurementError):
    """Raised if no control group with a memory limit can be created; states why."""


class GroupRemovedError(MeasurementError):
    """Raised if a control group was removed while it was in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParentGroup:
    """The control group in which groups with a limit are created.

    Attributes:
        folder: the folder of this group.
        version: the version of control groups.
        make_folder, remove_folder: create and remove the folder of a group.
    """

    folder: Path
    version: Literal[1, 2]
    make_folder: Callable[[Path], None] = os.mkdir
    remove_folder: Callable[[str], None] = os.rmdir

    @property
    def limit_bytes(self) -> int | None:
        """The smallest limit in bytes of this group and the groups above it; None without one."""
        groups = memory_groups_in((self.folder, *self.folder.parents))
        limits = (group.limit_bytes for group in groups)
        return min((limit for limit in limits if limit is not None), default=None)


class GroupCounters(NamedTuple):
    """What a control group has counted, in bytes; None for what the kernel does not state.

    Attributes:
        peak_bytes: the most memory at any time.
        anonymous_bytes: memory without a file.
        file_bytes: cached contents of files, mapped or not, and shared memory.
        mapped_bytes: the part of `file_bytes` that processes map.
        kernel_bytes: memory of the kernel for the processes, such as page tables.
        refault_bytes: contents of files that were dropped for lack of memory and read again.
        oom_kills: the processes that were killed at the limit.
    """

    peak_bytes: int | None
    anonymous_bytes: int
    file_bytes: int
    mapped_bytes: int
    kernel_bytes: int | None
    refault_bytes: int
    oom_kills: int


class LimitedGroup:
    """A new control group. As a context manager it kills its processes and removes the group.

    Args:
        parent: the group in which it is created.
        name: the end of its name.
        limit_bytes: the limit; None for no limit.

    Attributes:
        folder: the folder of the group.

    Raises:
        NoGroupError: the group cannot be created.
    """

    def __init__(self, parent: ParentGroup, name: str, limit_bytes: int | None) -> None:
        self._parent = parent
        self.folder = parent.folder / f"{own_prefix()}{name}"
        try:
            parent.make_folder(self.folder)
        except OSError as error:
            raise NoGroupError(_group_refusal_text(parent.folder, error)) from error
        try:
            self._configure_memory(limit_bytes)
        except OSError as error:
            self._remove_own_group()
            raise NoGroupError(_group_refusal_text(self.folder, error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_own_group()

    def _remove_own_group(self) -> None:
        remove_group(self.folder, remove_folder=self._parent.remove_folder)

    def _configure_memory(self, limit_bytes: int | None) -> None:
        if self._parent.version == 1:
            if limit_bytes is not None:
                _write_setting(self.folder / "memory.limit_in_bytes", str(limit_bytes))
            # A limit of memory and swap together would need an option of the kernel.
            _write_setting(self.folder / "memory.swappiness", "0")
            return
        if limit_bytes is not None:
            _write_setting(self.folder / "memory.max", str(limit_bytes))
        if (self.folder / "memory.swap.max").exists():
            _write_setting(self.folder / "memory.swap.max", "0")
        if (self.folder / "memory.oom.group").exists():
            # As Kubernetes does: a program that lost one of its processes is of no use.
            _write_setting(self.folder / "memory.oom.group", "1")

    @property
    def entering(self) -> tuple[str, ...]:
        """The words in front of a command that runs in this group from its first byte on."""
        return ("/bin/sh", "-c", _ENTER_SCRIPT, str(self.folder / "cgroup.procs"))

    def counters(self) -> GroupCounters:
        """Return what the group has counted until now.

        Raises:
            GroupRemovedError: the group does not exist any more.
        """
        version = self._parent.version
        memory = LimitingControlGroup(folder=self.folder, version=version, limit_bytes=None).read()
        if memory is None:
            raise GroupRemovedError(
                f"the control group {self.folder} was removed while it was measured. Start again."
            )
        return GroupCounters(
            peak_bytes=memory.peak_bytes,
            anonymous_bytes=memory.anonymous_bytes or 0,
            file_bytes=memory.file_bytes or 0,
            mapped_bytes=memory.mapped_bytes or 0,
            kernel_bytes=memory.kernel_bytes,
            refault_bytes=memory.refault_bytes or 0,
            oom_kills=memory.oom_kills or 0,
        )

    def processes(self) -> list[int]:
        """Return the ids of the processes in the group and in groups below it."""
        return processes_of(self.folder)


class GroupRemoval:
    """Context manager that removes the groups of this process, even if this process is killed.

    Groups of memdiag processes that have ended are removed first.

    Args:
        parent: the group in which the groups are created.
        folders: temporary folders to remove, too, if this process is killed.
    """

    def __init__(self, parent: ParentGroup, *folders: Path) -> None:
        self._folder = parent.folder
        self._folders = folders

    def __enter__(self) -> None:
        for group in self._folder.iterdir():
            owner = temporary_file_owner(group.name)
            if owner is not None and owner.is_here and not psutil.pid_exists(owner.pid):
                remove_group(group)
        self._process = start_removal_at_end(self._folder, own_prefix(), *self._folders)

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        remove_groups(self._folder, own_prefix())


def parent_group(
    *,
    proc: Path = PROC_FOLDER,
    control_groups: Path = CONTROL_GROUPS_FOLDER,
    make_folder: Callable[[Path], None] = os.mkdir,
    remove_folder: Callable[[str], None] = os.rmdir,
) -> ParentGroup:
    """Return the nearest group in which a group with a memory limit can be created.

    To be certain, a group is created in it, and a process is moved into that group.

    Args:
        proc: the folder with the processes.
        control_groups: the folder with the control groups.
        make_folder: creates the folder of a group.
        remove_folder: removes the folder of a group.

    Raises:
        NoGroupError: there is no such group; the message states why, and what to do.
    """
    refusals = []
    for folder in control_groups_of(
        os.getpid(), "memory", proc=proc, control_groups=control_groups
    ):
        version = _memory_version(folder)
        if version is None:
            continue
        parent = ParentGroup(
            folder=folder, version=version, make_folder=make_folder, remove_folder=remove_folder
        )
        try:
            with LimitedGroup(parent, "test", None) as group:
                test_process = subprocess.run(
                    [*group.entering, "/bin/sh", "-c", ":"],
                    check=False,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                )
        except NoGroupError as error:
            refusals.append(str(error))
            continue
        if test_process.returncode == 0:
            return parent
        refusals.append(f"{folder}: processes cannot be moved into a new control group.")
    if not refusals:
        raise NoGroupError(
            "no control group here can limit memory: the memory controller is missing, or not"
            " passed on to a group of this process."
        )
    raise NoGroupError(refusals[0])


def _memory_version(folder: Path) -> Literal[1, 2] | None:
    """Return the version of the group if groups in it can limit memory; None otherwise."""
    if (folder / "memory.limit_in_bytes").is_file():
        return 1
    with suppress(OSError):
        if "memory" in (folder / "cgroup.subtree_control").read_text().split():
            return 2
    return None


def _group_refusal_text(folder: Path, error: OSError) -> str:
    if error.errno == errno.EROFS:
        return (
            f"{folder}: control groups are mounted read-only, as in most containers. Run memdiag"
            " limit outside of the container."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{folder}: no permission to create a control group. Run memdiag limit as root, or"
            " under systemd with: systemd-run --user --scope memdiag limit …"
        )
    return f"{folder}: no control group can be created ({error.strerror})."


def _write_setting(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
