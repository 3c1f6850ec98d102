"""The report of an estimate: the memory that a session will need, by phase and by term."""

from memdiag.detail import Detail
from memdiag.records.estimate import Estimate, EstimatedPoint
from memdiag.reports.blocks import (
    BulletBlock,
    Document,
    PictureBlock,
    SentenceBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.estimate.picture import draw
from memdiag.reports.estimate.sentences import (
    calibration_lines,
    estimate_headline,
    fit_text,
    generation_lines,
    half_precision_text,
    reduction_lines,
)
from memdiag.reports.estimate.tables import (
    MAX_LIVE_TENSORS,
    OPTIONAL_POINT_COLUMNS,
    estimated_phase_table,
    live_tensor_table,
    point_grid,
    point_table,
    term_table,
)
from memdiag.reports.report import Report
from memdiag.units import format_size, some_of

_MAX_NAMED_PARTS = 5


def document(estimate: Estimate) -> Document:
    """Return the report of `estimate`."""
    answer, fit, point = estimate_headline(estimate), fit_text(estimate), estimate.point
    point_text = " at the first point" if len(estimate.points) > 1 else ""
    if estimate.calibration:
        point_text += ", before the correction"
    unknown_values_text = ", without values of unknown size" if point.unknown_values else ""
    phases = TableBlock(
        title=f"Above the process before the session{point_text}{unknown_values_text}",
        table=estimated_phase_table(estimate),
        detail=Detail.USUAL if len(estimate.points) == 1 else Detail.ALL,
    )
    return Document(
        subject=answer.model,
        kind="estimated memory",
        answer=fit or answer.first,
        line=fit or answer.line,
        seconds=(answer.line, answer.second) if fit else (answer.second,),
        facts=answer.facts,
        blocks=[
            TableBlock(
                title="Peak over sizes",
                table=point_grid(estimate) or point_table(estimate),
                optional=OPTIONAL_POINT_COLUMNS,
                is_sortable=True,
            ),
            phases,
            PictureBlock(
                title="The parts of each phase",
                alt="The parts of the peak of each phase. The tables contain the figures.",
            ),
            SentenceBlock(title="At peak", text=_peak_parts_text(point)),
            SentenceBlock(title="fp16", text=half_precision_text(estimate)),
            BulletBlock(
                title="What lowers the peak",
                texts=tuple(reduction_lines(estimate)),
                detail=Detail.USUAL if fit else Detail.ANSWER,
            ),
            BulletBlock(title="Measured", texts=tuple(calibration_lines(estimate))),
            TableBlock(
                title=f"For the peak ({point.peak_phase}) and the memory after the runs"
                f"{unknown_values_text}",
                table=term_table(estimate),
                detail=Detail.ALL,
                short="parts of the memory",
            ),
            TableBlock(
                title="In memory at the peak of a run",
                table=live_tensor_table(point, max_tensors=MAX_LIVE_TENSORS),
                detail=Detail.ALL,
                short="tensors at the peak of a run",
                is_sortable=True,
            ),
            BulletBlock(
                title="Generation", texts=tuple(generation_lines(estimate)), detail=Detail.ALL
            ),
            notes_block(estimate.notes),
        ],
    )


def _peak_parts_text(point: EstimatedPoint) -> str:
    """Return the largest parts of the peak: ``weights 22 MiB · graph 3 MiB``."""
    terms = sorted(point.peak.peak_terms, key=lambda term: -term.bytes)
    parts = some_of(
        [f"{term.name} {format_size(term.bytes)}" for term in terms], _MAX_NAMED_PARTS, " · "
    )
    return f"{parts}; and values of unknown size" if point.unknown_values else parts


REPORT: Report[Estimate] = Report(
    "estimate",
    {
        "html": "report.html",
        "json": "estimate.json",
        "markdown": "report.md",
        "png": "estimate.png",
        "svg": "estimate.svg",
    },
    document,
    draw,
)
