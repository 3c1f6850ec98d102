"""Data of the picture: time by limit, and the limits under which a program is killed."""

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
        load_ratio: the same for loading; None if it is not known.
        is_slow: whether the limit slows the program or model.
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
    normal_times = usual_times(limit.points)
    limited_rows = [(row.limit_bytes, row) for row in rows if row.limit_bytes is not None]
    working_rows = [(size, row) for size, row in limited_rows if row.works][::-1]
    failed_rows = [(size, row) for size, row in limited_rows if not row.works][::-1]
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
        x=tuple(size for size, _ in working_rows),
        ratio=tuple(
            relative_time(row.latency_s, normal_times.latency_s) for _, row in working_rows
        ),
        load_ratio=tuple(relative_time(row.load_s, normal_times.load_s) for _, row in working_rows),
        is_slow=tuple(row.slow > 0 for _, row in working_rows),
        failed=tuple(size for size, _ in failed_rows),
        failed_label="fails" if limit.device is not None else "killed, or too slow",
        marks=tuple(marks),
        max_slowdown=limit.max_slowdown,
    )
