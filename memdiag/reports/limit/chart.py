"""Data of the picture: time against limit, and where a program is killed."""

from dataclasses import dataclass

from memdiag.deploy.limit_bisection import usual_times
from memdiag.records.limit import MemoryLimit
from memdiag.reports.limit.rows import limit_rows, relative_time


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitMark:
    """A limit that the chart names."""

    bytes: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChart:
    """The data of the chart, as columns.

    Attributes:
        y_label: the name of the vertical axis.
        x, ratio: limits that work, and the latency relative to the usual one.
        load_ratio: the same for loading; None where it is not known.
        is_slow: whether the limit makes it slow.
        failed: limits under which it does not work.
        failed_label: how it ends under them.
        marks: the smallest limits, and the suggested ones.
        max_slowdown: the largest ratio that is not slow.
    """

    y_label: str
    x: tuple[int, ...]
    ratio: tuple[float | None, ...]
    load_ratio: tuple[float | None, ...]
    is_slow: tuple[bool, ...]
    failed: tuple[int, ...]
    failed_label: str
    marks: tuple[LimitMark, ...]
    max_slowdown: float


def limit_chart(limit: MemoryLimit) -> LimitChart:
    """Return the data of the chart of `limit`."""
    rows = limit_rows(limit)
    usual = usual_times(limit.points)
    limited = [(row.limit_bytes, row) for row in rows if row.limit_bytes is not None]
    works = [(size, row) for size, row in limited if row.works][::-1]
    failed = [(size, row) for size, row in limited if not row.works][::-1]
    marks: list[LimitMark] = []
    for size, name in (
        (limit.smallest_bytes, "smallest"),
        (limit.comfortable_bytes if limit.device is None else None, "no slowdown"),
        (limit.request_bytes if limit.device is None else None, "request"),
        (limit.limit_bytes, "limit"),
    ):
        if size is None:
            continue
        if marks and marks[-1].bytes == size:
            marks[-1] = LimitMark(bytes=size, name=f"{marks[-1].name}, {name}")
        else:
            marks.append(LimitMark(bytes=size, name=name))
    return LimitChart(
        y_label="latency" if limit.kind == "model" else "duration",
        x=tuple(size for size, _ in works),
        ratio=tuple(relative_time(row.latency_s, usual.latency_s) for _, row in works),
        load_ratio=tuple(relative_time(row.load_s, usual.load_s) for _, row in works),
        is_slow=tuple(row.slow > 0 for _, row in works),
        failed=tuple(size for size, _ in failed),
        failed_label="fails" if limit.device is not None else "killed, or too slow",
        marks=tuple(marks),
        max_slowdown=limit.max_slowdown,
    )
