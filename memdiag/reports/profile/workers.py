"""Several processes, sessions or callers of the profiled model: sentences and tables."""

from memdiag.records.attribution import OwnerKind
from memdiag.records.profile import Profile
from memdiag.records.workers import Arrangement, WorkerMemory, Workers
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import capitalized, plain
from memdiag.units import MIB, counted, format_duration, format_size, some_of

MAX_WEIGHTS = 12
_MAX_CAUSES = 4
_MIN_CAUSE = MIB // 2
_CAUSES: dict[OwnerKind, str] = {
    "weights": "private copies of weights",
    "external_data": "private pages of the model's files",
    "arena": "the arena of onnxruntime",
    "allocator_retained": "freed memory that malloc keeps",
    "runtime_libraries": "private pages of libraries",
    "provider_libraries": "private pages of libraries",
    "python": "Python's objects and modules",
    "other_libraries": "private pages of libraries",
    "mapped_files": "other mapped files",
    "thread_stacks": "thread stacks",
    "other_heap": "other blocks of malloc",
    "unnamed": "memory without a known owner",
}


def worker_answer(profile: Profile) -> str:
    """Return what all take together, what one more costs, and what sharing brings; or nothing."""
    workers = profile.workers
    if workers is None:
        return ""
    asked = workers.asked
    text = (
        f"{capitalized(_words(asked))}: {format_size(asked.together.pss_bytes)} together, and one"
        f" more {_unit(asked)} costs {format_size(workers.one_more_bytes)}"
    )
    less = [
        f"{format_size(each.together.pss_bytes)} {_sharing(each)}"
        for each in workers.alternatives
        if each.together.pss_bytes < asked.together.pss_bytes
    ]
    return f"{text}. They would take {' or '.join(less)}." if less else f"{text}."


def _sharing(each: Arrangement) -> str:
    return "with saved packed weights" if each.shares_prepacked else f"as {_words(each)}"


def worker_sentences(profile: Profile) -> list[str]:
    """Return what the arrangement takes, what one more costs and why, and what others take."""
    workers = profile.workers
    if workers is None:
        return []
    return [
        _together(workers),
        _one_more(workers),
        *(_alternative(workers, each) for each in workers.alternatives),
        *map(plain, workers.notes),
    ]


def _together(workers: Workers) -> str:
    asked, one = workers.asked.together, workers.one.together
    return (
        f"{capitalized(_words(workers.asked))}: {format_size(asked.pss_bytes)} with shared pages"
        f" counted once (PSS), {asked.pss_bytes / max(1, one.pss_bytes):.2f} × one process with one"
        f" session ({format_size(one.pss_bytes)}). Resident sets add up to"
        f" {format_size(asked.rss_bytes)}, {format_size(asked.uss_bytes)} of them private."
    )


def _one_more(workers: Workers) -> str:
    asked = workers.asked
    text = f"One more {_unit(asked)} costs {format_size(workers.one_more_bytes)}"
    if asked.processes == 1:
        return f"{text}."
    causes = dict.fromkeys(_CAUSES.values(), 0)
    for owner in workers.owners:
        causes[_CAUSES[owner.kind]] += owner.private_bytes // asked.processes
    largest = sorted(causes.items(), key=lambda entry: -entry[1])
    listed = [
        f"{format_size(size)} {name}" for name, size in largest[:_MAX_CAUSES] if size >= _MIN_CAUSE
    ]
    shared = (asked.together.rss_bytes - asked.together.uss_bytes) // asked.processes
    return (
        f"{text}. Of each process {', '.join(listed)} are private, and {format_size(shared)} are"
        " shared with others."
    )


def _alternative(workers: Workers, each: Arrangement) -> str:
    size, asked = each.together.pss_bytes, workers.asked.together.pss_bytes
    latency = ""
    if each.latency_s is not None and workers.one.latency_s is not None:
        latency = (
            f"; a run takes {format_duration(each.latency_s)} then, and"
            f" {format_duration(workers.one.latency_s)} alone"
        )
    how = capitalized(_words(each))
    if each.shares_prepacked:
        how = "With the model saved once with its packed weights, which all processes map"
    text = f"{how}: {format_size(size)} instead of {format_size(asked)}{latency}."
    if each.shares_prepacked:
        text += " memdiag tune MODEL --only save-prepacked prints the program for that."
    return text


def _words(each: Arrangement) -> str:
    """Return the arrangement in words, such as ``4 processes forked after the import``."""
    parts = [counted(each.processes, "process", "processes")]
    if each.fork_after is not None:
        parts[0] += f" forked after {'the import' if each.fork_after == 'import' else 'loading'}"
    if each.sessions > 1:
        owner = " each" if each.processes > 1 else ""
        parts.append(f"{counted(each.sessions, 'session')}{owner}")
    if each.callers > 1:
        parts.append(f"{counted(each.callers, 'caller')} of a session")
    if each.shares_prepacked:
        parts.append("with saved packed weights")
    return ", ".join(parts)


def _unit(asked: Arrangement) -> str:
    if asked.processes > 1 and asked.sessions == asked.callers == 1:
        return "process"
    if asked.sessions > 1 and asked.processes == asked.callers == 1:
        return "session"
    if asked.callers > 1 and asked.processes == asked.sessions == 1:
        return "caller"
    return "caller, session or process"


def arrangement_table(profile: Profile) -> Table:
    """Return the table of what was measured; without rows if no workers were."""
    workers = profile.workers
    rows: list[Row] = []
    if workers is not None:
        one = max(1, workers.one.together.pss_bytes)
        for each in (workers.one, workers.asked, *workers.alternatives):
            rows.append(_row(_words(each), each.together, each.together.pss_bytes / one))
    return Table(
        columns=(
            Column("measured together", wraps=True, css="prose"),
            Column("RSS", "right"),
            Column("PSS", "right", css="strong"),
            Column("USS", "right"),
            Column("of one", "right"),
        ),
        rows=tuple(rows),
        caption="RSS: resident sets, in which shared pages count to each process. PSS: shared pages"
        " count once. USS: pages of one process alone.",
    )


def process_table(profile: Profile) -> Table:
    """Return the table of the processes; without rows if there is only one."""
    workers = profile.workers
    each = workers.asked.each if workers is not None else ()
    rows = [_row(str(number), memory, None) for number, memory in enumerate(each, start=1)]
    return Table(
        columns=(
            Column("process"),
            Column("RSS", "right"),
            Column("PSS", "right", css="strong"),
            Column("USS", "right"),
        ),
        rows=tuple(rows) if len(rows) > 1 else (),
    )


def _row(name: str, memory: WorkerMemory, ratio: float | None) -> Row:
    cells = [name, format_size(memory.rss_bytes), format_size(memory.pss_bytes)]
    cells.append(format_size(memory.uss_bytes))
    return Row(*cells, *([] if ratio is None else [f"{ratio:.2f} ×"]))


def shared_weight_table(profile: Profile) -> Table:
    """Return the table of the largest weights in all processes; without rows if there are none."""
    weights = profile.workers.weights if profile.workers is not None else ()
    return Table(
        columns=(
            Column("weight", wraps=True, css="name"),
            Column("copies", "right"),
            Column("layouts", wraps=True),
            Column("resident", "right"),
            Column("private", "right"),
            Column("PSS", "right", css="strong"),
        ),
        rows=tuple(
            Row(
                Cell(plain(some_of(each.weights, limit=1)), is_code=True),
                f"{each.copies:,}",
                ", ".join(each.layouts),
                format_size(each.bytes),
                format_size(each.private_bytes),
                format_size(each.proportional_bytes),
            )
            for each in weights[:MAX_WEIGHTS]
        ),
    )
