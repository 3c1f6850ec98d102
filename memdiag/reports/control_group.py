"""The limits of a container and the memory that its control group counts, in words."""

from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import Environment
from memdiag.units import counted, format_limit, format_size


def container_sentence(environment: Environment, group: GroupMemory | None) -> str:
    """Return the limits of the container and the memory counted against them; empty without one."""
    limits = container_limits(environment)
    if not limits:
        return ""
    return " ".join(filter(None, (f"Container: {limits}.", _counted_memory_text(group))))


def container_limits(environment: Environment) -> str:
    """Return the limits of the control groups: ``512 MiB of memory, 1.5 CPUs``; empty if none."""
    memory, cpus = environment.memory_limit_bytes, environment.cpu_quota
    limits = []
    if memory is not None:
        limits.append(f"{format_limit(memory)} of memory")
    if cpus is not None:
        limits.append(f"{cpus:.3g} CPU{'' if cpus == 1 else 's'}")
    return ", ".join(limits)


def group_facts(environment: Environment, group: GroupMemory | None) -> list[tuple[str, str]]:
    """Return rows on the container and its control group for a table of facts."""
    rows = [("container", limits)] if (limits := container_limits(environment)) else []
    if group is None or group.current_bytes is None:
        return rows
    label = f"control group (v{group.version})"
    parts = _group_memory_parts(group)
    rows.append((label, f"{format_size(group.current_bytes)}{f': {parts}' if parts else ''}"))
    if group.peak_bytes is not None:
        rows.append((f"{label}, peak", f"{format_size(group.peak_bytes)} since it was created"))
    return rows


def _counted_memory_text(group: GroupMemory | None) -> str:
    if group is None or group.current_bytes is None or not group.limit_bytes:
        return ""
    parts = _group_memory_parts(group)
    share = f"{100 * group.current_bytes / group.limit_bytes:.0f} % of the limit"
    text = (
        f"Its control group counted up to {format_size(group.current_bytes)} ({share}), with all"
        f" processes in it{f': {parts}' if parts else ''}."
    )
    if group.oom_kills:
        killed_processes = counted(group.oom_kills, "process", "processes")
        text += f" The kernel killed {killed_processes} in it."
    elif group.limit_hits:
        text += f" It reached the limit {counted(group.limit_hits, 'time')}."
    return text


def _group_memory_parts(group: GroupMemory) -> str:
    parts = (
        ("anonymous", group.anonymous_bytes),
        ("files", group.file_bytes),
        ("kernel", group.kernel_bytes),
        ("swapped out", group.swap_bytes or None),
    )
    return ", ".join(f"{name} {format_size(size)}" for name, size in parts if size is not None)
