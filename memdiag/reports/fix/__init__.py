"""The report of a fix: what it saves, how to use it, and everything that was tried."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.fix import Fix
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    Block,
    Code,
    Document,
    Figures,
    Picture,
    Points,
    Sentence,
    notes_block,
)
from memdiag.reports.fix.before_and_after import (
    change_table,
    latency_changes,
    memory_changes,
    outputs_text,
)
from memdiag.reports.fix.chart import draw_points, named_points, pareto_points
from memdiag.reports.fix.sentences import (
    answer,
    conditions,
    facts,
    left,
    next_step,
    offers,
    search_cost,
    why,
    written_files,
)
from memdiag.reports.fix.tables import named_table, points_table, remedy_table
from memdiag.reports.report import Report, file_names
from memdiag.reports.text import model_file, plain, plain_lines
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_POINTS = 4
"""The rows of the summary on a terminal, which has room for a program below."""


def document(fix: Fix) -> Document:
    """Return the report of `fix`."""
    return Document(
        subject=model_file(fix.model),
        kind="fix",
        answer=answer(fix).removeprefix(f"{plain(fix.model)}: "),
        line=answer(fix),
        blocks=[
            Sentence(title="Why", text=why(fix), detail=Detail.ANSWER),
            Sentence(title="Do", text=next_step(fix), detail=Detail.ANSWER),
            Sentence(title="Left", text=left(fix)),
            *(
                Sentence(title=name, text=text, formats=NOT_ON_TERMINALS)
                for name, text in conditions(fix)
            ),
            Sentence(title="Measured", text=facts(fix), formats=NOT_ON_TERMINALS),
            *_tried(fix),
            Figures(title="Asked for", table=named_table(fix)),
            Sentence(title="Files", text=written_files(fix)),
            *_changes(fix),
            Figures(
                title="Rewrites",
                table=remedy_table(fix),
                formats=NOT_ON_TERMINALS,
                caption="Applied: in the new model. Rejected: built and measured, but not in the"
                " new model. Refused: it cannot be done here.",
            ),
            notes_block(fix.notes),
            Code(
                title="To do it again",
                text=shlex.join(map(plain, fix.command)),
                language="console",
                formats=NOT_ON_TERMINALS,
            ),
            _program(fix),
        ],
    )


def _tried(fix: Fix) -> list[Block]:
    """Return what was tried: the points, the chart of those that were compared, and offers."""
    if not fix.points:
        return []
    measured = f"{counted(len(fix.points), 'combination')} measured, {search_cost(fix)}"
    blocks: list[Block] = [
        Figures(
            title="What was tried",
            table=points_table(fix, only_listed=False),
            short_table=points_table(fix, only_listed=False, limit=_MAX_POINTS),
            caption=f"{measured}. Memory is above the baseline; latency is relative to the"
            " defaults, with its 95 % confidence interval, for combinations that save enough memory"
            " to be compared.",
            is_sortable=True,
        ),
        Points(title="Not compared", texts=tuple(offers(fix)), detail=Detail.ALL),
    ]
    if pareto_points(fix):
        blocks.append(
            Picture(
                title="Memory and latency",
                alt="Steady memory and peak across and latency upwards of the points that were"
                " compared. The table contains the same.",
                hint="To the left is less memory, below is faster. Each chart marks its own Pareto"
                " front: the points that no other beats in both figures drawn. Lines are the 95 %"
                " interval of the latency. A hollow mark is at 1 because its interval includes 1:"
                " it is unknown whether the point is faster or slower than the defaults.",
            )
        )
    return blocks


def _changes(fix: Fix) -> list[Block]:
    """Return the figures before and after the chosen changes."""
    if not fix.chosen:
        return []
    once = "after the change it was measured in one fresh process"
    usual = "medians of fresh processes, ± half of the range"
    return [
        Figures(
            title="Before and after",
            table=change_table(memory_changes(fix), "figure"),
            formats=NOT_ON_TERMINALS,
            caption="Memory is above the baseline: Python, onnxruntime and inputs;"
            f" {once if fix.measured_once else usual}.",
        ),
        Figures(
            title="Latency and outputs",
            table=change_table(latency_changes(fix), "latency with"),
            formats=NOT_ON_TERMINALS,
            caption="Medians of alternating runs, with the 95 % confidence interval of their"
            f" ratio. Outputs: {outputs_text(fix)}.",
        ),
    ]


def _program(fix: Fix) -> Code:
    """Return the program: always printed, as it may be all that there is of the result."""
    return Code(
        title=f"Program for {' + '.join(map(plain, fix.chosen))}",
        text="\n".join(plain_lines(fix.program)),
        language="python",
    )


def draw(fix: Fix) -> Figure:
    """Return the charts of the points, below the answer."""
    from memdiag.reports import picture

    points = pareto_points(fix)
    height = 5.9 + 0.22 * len(named_points(points)) if points else 1.2
    figure = picture.figure(height, model_file(fix.model), answer(fix))
    if points:
        draw_points(figure, points)
    return figure


REPORT: Report[Fix] = Report("fix", file_names("fix"), document, draw)
