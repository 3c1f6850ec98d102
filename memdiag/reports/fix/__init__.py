"""The report of a fix: what it saves, how to use it, and everything that was tried."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.fix import Fix
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    Block,
    BulletBlock,
    CodeBlock,
    Document,
    PictureBlock,
    SentenceBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.fix.before_and_after import (
    change_table,
    latency_changes,
    memory_changes,
    outputs_text,
)
from memdiag.reports.fix.chart import draw_pareto_points, named_pareto_points, pareto_points
from memdiag.reports.fix.sentences import (
    fix_answer,
    fix_facts,
    idle_options_sentence,
    next_step_sentence,
    offered_point_sentences,
    result_conditions,
    saving_reason,
    search_cost_text,
    untried_changes_sentence,
    written_files_text,
)
from memdiag.reports.fix.tables import points_table, remedy_table, requested_change_table
from memdiag.reports.report import Report, file_names
from memdiag.reports.text import model_file_name, plain, plain_lines
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_SUMMARY_POINTS = 4
"""Rows of the summary on a terminal, which leave room for the program below."""


def document(fix: Fix) -> Document:
    """Return the report of `fix`."""
    return Document(
        subject=model_file_name(fix.model),
        kind="fix",
        answer=fix_answer(fix).removeprefix(f"{plain(fix.model)}: "),
        line=fix_answer(fix),
        blocks=[
            SentenceBlock(title="Why", text=saving_reason(fix), detail=Detail.ANSWER),
            SentenceBlock(title="Do", text=next_step_sentence(fix), detail=Detail.ANSWER),
            SentenceBlock(title="Left", text=untried_changes_sentence(fix)),
            SentenceBlock(title="In vain", text=idle_options_sentence(fix)),
            *(
                SentenceBlock(title=name, text=text, formats=NOT_ON_TERMINALS)
                for name, text in result_conditions(fix)
            ),
            SentenceBlock(title="Measured", text=fix_facts(fix), formats=NOT_ON_TERMINALS),
            *_tried_point_blocks(fix),
            TableBlock(title="Asked for", table=requested_change_table(fix)),
            SentenceBlock(title="Files", text=written_files_text(fix)),
            *_chosen_change_blocks(fix),
            TableBlock(
                title="Rewrites",
                table=remedy_table(fix),
                formats=NOT_ON_TERMINALS,
                caption="Applied: in the new model. Rejected: built and measured, but not in the"
                " new model. Refused: it cannot be done here.",
            ),
            notes_block(fix.notes),
            CodeBlock(
                title="To do it again",
                text=shlex.join(map(plain, fix.command)),
                language="console",
                formats=NOT_ON_TERMINALS,
            ),
            _program_block(fix),
        ],
    )


def _tried_point_blocks(fix: Fix) -> list[Block]:
    """Return what was tried: the points, the chart of the compared points, and the offers."""
    if not fix.points:
        return []
    measured_text = f"{counted(len(fix.points), 'combination')} measured, {search_cost_text(fix)}"
    blocks: list[Block] = [
        TableBlock(
            title="What was tried",
            table=points_table(fix, only_listed=False),
            short_table=points_table(fix, only_listed=False, limit=_MAX_SUMMARY_POINTS),
            caption=f"{measured_text}. Memory is {_memory_place(fix)}; latency is relative to the"
            " defaults, with its 95 % confidence interval, for combinations that save enough memory"
            " to be compared.",
            is_sortable=True,
        ),
        BulletBlock(
            title="Not compared", texts=tuple(offered_point_sentences(fix)), detail=Detail.ALL
        ),
    ]
    if pareto_points(fix):
        blocks.append(
            PictureBlock(
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


def _chosen_change_blocks(fix: Fix) -> list[Block]:
    """Return the figures before and after the chosen changes."""
    if not fix.chosen:
        return []
    once_text = "after the change it was measured in one fresh process"
    usual_text = "medians of fresh processes, ± half of the range"
    of_baseline = ": Python, onnxruntime and inputs"
    return [
        TableBlock(
            title="Before and after",
            table=change_table(memory_changes(fix), "figure"),
            formats=NOT_ON_TERMINALS,
            caption=f"Memory is {_memory_place(fix, of_baseline)};"
            f" {once_text if fix.measured_once else usual_text}.",
        ),
        TableBlock(
            title="Latency and outputs",
            table=change_table(latency_changes(fix), "latency with"),
            formats=NOT_ON_TERMINALS,
            caption="Medians of alternating runs, with the 95 % confidence interval of their"
            f" ratio. Outputs: {outputs_text(fix)}.",
        ),
    ]


def _memory_place(fix: Fix, of_baseline: str = "") -> str:
    """Return what the figures of memory are of; `of_baseline` follows the word baseline."""
    if fix.device is None:
        return f"above the baseline{of_baseline}"
    name = plain(fix.device.name)
    return f"that of the process on the GPU{f' ({name})' if name else ''}, with its context"


def _program_block(fix: Fix) -> CodeBlock:
    """Return the program. It is always printed, because it may be the whole result."""
    return CodeBlock(
        title=f"Program for {' + '.join(map(plain, fix.chosen))}",
        text="\n".join(plain_lines(fix.program)),
        language="python",
    )


def draw(fix: Fix) -> Figure:
    """Return the charts of the points, below the answer."""
    from memdiag.reports import picture

    points = pareto_points(fix)
    height = 5.9 + 0.22 * len(named_pareto_points(points)) if points else 1.2
    figure = picture.titled_figure(height, model_file_name(fix.model), fix_answer(fix))
    if points:
        draw_pareto_points(figure, points)
    return figure


REPORT: Report[Fix] = Report("fix", file_names("fix"), document, draw)
