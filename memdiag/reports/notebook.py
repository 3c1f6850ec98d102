"""Records in Python and in notebooks: one line, HTML, a data frame, a figure.

The methods of `memdiag.records.base.NotebookRecord` call these functions.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memdiag.detail import Detail
from memdiag.errors import ReportError, UsageError
from memdiag.records.attribution import Attribution
from memdiag.records.codec import escaped_record
from memdiag.records.comparison import Comparison, ComparisonColumn
from memdiag.records.device_estimate import DeviceEstimate
from memdiag.records.estimate import Estimate, EstimatedPoint
from memdiag.records.finding import Check, Finding
from memdiag.records.fix import Fix
from memdiag.records.growth import Growth, Moment
from memdiag.records.limit import MemoryLimit
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun, ProgramSession
from memdiag.records.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_NOTEBOOK_COLUMNS = 100
_UNLIMITED_COLUMNS = 10_000
_MAX_FINDING_MESSAGE = 200
_NOTEBOOK_DPI = 100
_OMITTED_FRAME_FIELDS = ("expected",)
_DRAWN_TYPES = (Profile, Comparison, Fix, ProgramRun, Growth, Estimate, MemoryLimit)


def one_line(record: Any) -> str:
    """Return the answer of `record`: the line that its summary starts or ends with."""
    if isinstance(record, Finding):
        from memdiag.reports.findings import finding_text
        from memdiag.reports.text import shortened

        finding = finding_text(record)
        cost = f", {finding.cost}" if finding.cost else ""
        text = f"{finding.name}{cost}: {shortened(finding.message, _MAX_FINDING_MESSAGE)}"
    else:
        text = _first_paragraph(
            _printed_summary(record, detail=Detail.USUAL, width=_UNLIMITED_COLUMNS)
        )
    return f"<{_record_type_name(record)} {' '.join(text.split())}>"


def record_html(record: Any) -> str:
    """Return the answer of `record` as HTML, with its picture if it has one, and folded details.

    Details that a terminal usually prints are not folded for a profile and a recorded program. A
    finding is one line that unfolds.
    """
    record = escaped_record(record)
    answer = f"<b>{escape(one_line(record)[1:-1])}</b>"
    if isinstance(record, Finding):
        details = _preformatted_html(_text_below_answer(record))
        return f"<details><summary>{answer}</summary>{details}</details>"
    visible, details = "", _preformatted_html(_text_below_answer(record))
    if isinstance(record, Profile | ProgramRun):
        visible, details = map(_preformatted_html, _visible_and_folded_texts(record))
    picture = _picture_html(record) if isinstance(record, _DRAWN_TYPES) else ""
    is_open = "" if visible or picture else " open"
    summary = "<summary>Details</summary>"
    folded = f"<details{is_open}>{summary}{details}</details>" if details else ""
    return f"<div>{answer}{picture}{visible}{folded}</div>"


def _preformatted_html(text: str) -> str:
    return f'<pre style="white-space: pre; overflow-x: auto">{escape(text)}</pre>' if text else ""


def _visible_and_folded_texts(record: Profile | ProgramRun) -> Iterator[str]:
    """Yield what a terminal usually prints below the answer, and what it prints on request."""
    from memdiag.reports import report_of
    from memdiag.reports.blocks import print_blocks
    from memdiag.reports.console import plain_output

    console_blocks = report_of(record).document(record).filled("console")
    for is_usual in (True, False):
        blocks = [block for block in console_blocks if (block.detail <= Detail.USUAL) is is_usual]
        console, out = _plain_text_console(_NOTEBOOK_COLUMNS)
        with plain_output(console):
            print_blocks(blocks, console, Detail.ALL)
        yield out.getvalue().strip("\n")


def _picture_html(record: Any) -> str:
    """Return the picture of `record`; empty if it cannot be drawn."""
    try:
        png = base64.b64encode(_figure_png(record_figure(record))).decode()
    except ReportError:
        return ""
    style = "display: block; max-width: 100%; margin: 0.5em 0"
    return (
        f'<img alt="the picture of the report" style="{style}" src="data:image/png;base64,{png}">'
    )


def _text_below_answer(record: Any) -> str:
    """Return the summary of `record` without the sentences of its answer."""
    if isinstance(record, Finding):
        from memdiag.reports.findings import finding_text

        finding = finding_text(record)
        message = finding.message if len(finding.message) > _MAX_FINDING_MESSAGE else ""
        lines = (message, finding.detail, finding.path, finding.facts)
        return "\n".join(text for text in lines if text)
    text = _printed_summary(record, detail=Detail.ALL, width=_NOTEBOOK_COLUMNS)
    return text.removeprefix(_first_paragraph(text)).strip("\n") or text


def _first_paragraph(text: str) -> str:
    return text.partition("\n\n")[0]


def findings_html(findings: Sequence[Finding]) -> str:
    """Return `findings` as HTML, or that there are none."""
    return "".join(map(record_html, findings)) or "<p>No findings.</p>"


def data_frame(rows: Sequence[Any] | Any) -> Any:
    """Return a pandas data frame with the rows of a record.

    A profile has a row for each phase and each part of a phase, as in its summary. `part_of` is
    None for phases, whose sum is the whole run. An estimate has a row for each point, a comparison
    for each column, a fix for each measured point, a recorded program for each session, a growth
    for each moment, a memory limit for each trial, a sweep for each job, and an X-ray for each
    copy, or for each owner if there are no copies.

    Raises:
        UsageError: pandas is not installed, or there are no rows to make of such a record.
    """
    frame_rows = [*_data_frame_rows(rows)]
    try:
        # Users may install it. memdiag itself does without.
        pandas: Any = import_module("pandas")
    except ImportError:
        raise UsageError(
            "to_dataframe: pandas is not installed. Install it with pip install pandas."
        ) from None
    return pandas.DataFrame(frame_rows)


def write_reports(record: Any, folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write the reports of `record` to `folder` in `formats`; if empty, in the default formats.

    Raises:
        UsageError: there is no such format.
        ReportError: a file cannot be written.
    """
    from memdiag.reports import report_of

    report = report_of(record)
    return report.write(record, folder, formats or report.default_formats())


def record_figure(record: Any) -> Figure:
    """Return the picture of reports of `record` as a matplotlib figure.

    It belongs to no window and no global state. Notebooks display it.

    Raises:
        UsageError: there is no picture of such a record.
        ReportError: the record cannot be drawn.
    """
    if not isinstance(record, _DRAWN_TYPES):
        raise UsageError(
            f"plot: there is no picture of a {_record_type_name(record)}. Use a profile of the"
            " model."
        )
    from memdiag.reports import report_of

    draw = report_of(record).draw
    assert draw is not None, "all of these have a picture"
    picture: Figure = draw(record)

    # IPython learns from pyplot how to display figures, but pyplot is not loaded here.
    # matplotlib's class lacks this attribute.
    setattr(picture, "_repr_png_", partial(_figure_png, picture))  # noqa: B010
    return picture


def _figure_png(picture: Figure) -> bytes:
    out = io.BytesIO()
    picture.savefig(out, format="png", dpi=_NOTEBOOK_DPI)
    return out.getvalue()


def _record_type_name(record: Any) -> str:
    return type(record).__name__


def _printed_summary(record: Any, *, detail: Detail, width: int) -> str:
    console, out = _plain_text_console(width)
    _summary_printer(record)(console, detail)
    return out.getvalue().strip("\n")


def _plain_text_console(width: int) -> tuple[Console, io.StringIO]:
    """Return a console for plain text, whatever notebook or terminal this runs in."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, highlight=False, force_jupyter=False, force_terminal=False
    )
    return console, out


def _summary_printer(record: Any) -> Callable[[Console, Detail], None]:
    if isinstance(record, Finding):
        from memdiag.reports.findings import finding_text, print_findings

        return lambda console, detail: print_findings([finding_text(record)], console)
    if isinstance(record, Check):
        from memdiag.reports import check

        return lambda console, detail: check.print_check_report(record, console, detail=detail)
    from memdiag.reports import report_of

    return lambda console, detail: report_of(record).print_summary(record, console, detail=detail)


def _data_frame_rows(record: Any) -> Iterator[dict[str, Any]]:
    if isinstance(record, Profile):
        from memdiag.reports.phase_table import OTHER_STEPS_LABEL
        from memdiag.reports.profile.phases import phase_rows

        for row in phase_rows(record):
            yield {
                "phase": OTHER_STEPS_LABEL if row.label == OTHER_STEPS_LABEL else row.phase,
                "part_of": row.whole,
                "duration_s": row.duration_s,
                "start_rss_bytes": row.start_bytes,
                "peak_rss_bytes": row.peak_bytes,
                "peak_kind": row.peak_kind,
                "end_rss_bytes": row.end_bytes,
                "net_rss_bytes": row.net_bytes,
            }
    elif isinstance(record, ProgramRun):
        yield from map(_session_frame_row, record.sessions)
    elif isinstance(record, Growth):
        yield from map(_moment_frame_row, record.moments)
    elif isinstance(record, Estimate):
        yield from map(_point_frame_row, record.points)
    elif isinstance(record, DeviceEstimate):
        yield from map(_frame_fields, record.configurations)
    elif isinstance(record, MemoryLimit):
        yield from map(_frame_fields, record.points)
    elif isinstance(record, Comparison):
        yield from map(_column_frame_row, record.columns)
    elif isinstance(record, Fix):
        yield from map(_frame_fields, record.points)
    elif isinstance(record, Check):
        yield from map(_frame_fields, record.findings)
    elif isinstance(record, Sweep):
        for series in record.series:
            names = {"model": series.model, "dims": series.dims, "options": series.options}
            yield from (names | _frame_fields(point) for point in series.points)
    elif isinstance(record, Attribution):
        # Without a model, only owners are found.
        yield from map(_frame_fields, record.copies or record.owners)
    elif isinstance(record, Finding):
        yield _frame_fields(record)
    elif isinstance(record, tuple):
        yield from map(_frame_fields, record)
    else:
        raise UsageError(
            f"to_dataframe: a {_record_type_name(record)} has no rows. Read its fields."
        )


def _frame_fields(record: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of `record` that fit into a cell."""
    fields = msgspec.structs.asdict(record)
    return {name: value for name, value in fields.items() if name not in _OMITTED_FRAME_FIELDS}


def _session_frame_row(session: ProgramSession) -> dict[str, Any]:
    memory = session.memory
    return {
        "session": session.number,
        "pid": session.pid,
        "model": session.model.path or session.model.digest,
        "created_at": session.created_at,
        "library": session.library,
        "created_s": session.created_s,
        "creation_s": session.creation_s,
        "released_s": session.released_s,
        "error": session.error,
        "peak_rss_bytes": max((phase.peak_rss_bytes for phase in session.phases), default=None),
        "run_count": session.run_count,
        "last_run_s": session.last_run_s,
        "weight_bytes": memory.weight_bytes if memory else None,
        "arena_used_bytes": memory.arena_used_bytes if memory else None,
        "arena_slack_bytes": memory.arena_slack_bytes if memory else None,
        "resident_slack_bytes": memory.resident_slack_bytes if memory else None,
        "resident_used_bytes": memory.resident_used_bytes if memory else None,
    }


def _moment_frame_row(moment: Moment) -> dict[str, Any]:
    """Return the fields of a moment, with a column for each kind of owner."""
    fields = msgspec.structs.asdict(moment)
    owners = fields.pop("owners")
    return fields | {f"{owner.kind}_bytes": owner.bytes for owner in owners}


def _point_frame_row(point: EstimatedPoint) -> dict[str, Any]:
    """Return the figures of an estimated point, with a column for each dimension."""
    fields = _frame_fields(point)
    omitted = ("dims", "phases", "live")
    return point.dims | {name: value for name, value in fields.items() if name not in omitted}


def _column_frame_row(column: ComparisonColumn) -> dict[str, Any]:
    """Return the medians of a comparison's column, by the names of data frame columns."""
    row: dict[str, Any] = {
        "label": column.label,
        "status": column.status,
        "onnxruntime": column.onnxruntime,
    }
    if column.measured is not None:
        row |= {
            "peak_bytes": column.measured.peak.median,
            "peak_phase": column.measured.peak_phase,
            "steady_bytes": column.measured.steady.median,
            "load_s": column.measured.load.median,
        }
    if column.latency is not None:
        row |= {"latency_s": column.latency.median_s, "latency_ratio": column.latency.ratio}
    return row | {"largest_difference": column.largest_difference}
