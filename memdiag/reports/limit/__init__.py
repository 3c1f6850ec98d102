"""The report of a memory limit: the smallest one that works, and suggestions for a container."""

from memdiag.records import codec
from memdiag.records.limit import MemoryLimit
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    Block,
    CodeBlock,
    Document,
    PictureBlock,
    SentenceBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.container_resources import (
    compose_gpu_service,
    compose_service,
    kubernetes_gpu,
    kubernetes_resources,
)
from memdiag.reports.limit.device import KUBERNETES_NOTE, device_limit_program
from memdiag.reports.limit.picture import draw
from memdiag.reports.limit.rows import limit_rows, trial_table
from memdiag.reports.limit.sentences import (
    limit_headline,
    service_name,
    suggestion_reason,
    yaml_comments,
)
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import ALL_FORMATS


def document(limit: MemoryLimit) -> Document:
    """Return the report of `limit`."""
    answer = limit_headline(limit)
    trials = trial_table(limit)
    blocks: list[Block] = [
        SentenceBlock(title="Margin", text=suggestion_reason(limit)),
        *_program_blocks(limit),
        CodeBlock(
            title="Kubernetes",
            text=limit_kubernetes_yaml(limit),
            language="yaml",
            formats=NOT_ON_TERMINALS,
        ),
        CodeBlock(
            title="Compose",
            text=limit_compose_yaml(limit),
            language="yaml",
            formats=NOT_ON_TERMINALS,
        ),
        TableBlock(
            title="Trials",
            table=trials,
            formats=ALL_FORMATS if trials.rows[1:] else NOT_ON_TERMINALS,
        ),
        notes_block(limit.notes),
    ]
    if any(row.limit_bytes is not None for row in limit_rows(limit)):
        blocks.insert(
            1,
            PictureBlock(
                title="Time against limit",
                alt="Time relative to the shortest without slowdown, for each limit that was tried."
                " The table below contains the figures.",
                hint=_chart_hint(limit),
            ),
        )
    return Document(
        subject=answer.subject,
        kind="memory limit",
        answer=f"{answer.advice} It {answer.first}",
        seconds=(answer.second,),
        facts=answer.facts,
        ended=f"{answer.ended_label}: {answer.ended}" if answer.ended else "",
        blocks=blocks,
    )


def _program_blocks(limit: MemoryLimit) -> list[Block]:
    """Return the program that sets a limit of the memory on a GPU."""
    if limit.device is None:
        return []
    return [CodeBlock(title="Program", text=device_limit_program(limit), language="python")]


def _chart_hint(limit: MemoryLimit) -> str:
    if limit.device is not None:
        return "Crosses are limits under which it fails. Times of different processes differ."
    return (
        "Crosses are limits under which it is killed, or takes far too long. Filled marks are slow:"
        " contents of files were read again, and the time is above the dotted line (loading: twice"
        " the shortest). Where nothing was read again, times differ by what else the machine does."
    )


def limit_kubernetes_yaml(limit: MemoryLimit) -> str:
    """Return the suggestion as the ``resources`` of a container in Kubernetes."""
    limit = codec.escaped_record(limit)
    if limit.device is not None:
        return kubernetes_gpu((*yaml_comments(limit), KUBERNETES_NOTE))
    return kubernetes_resources(limit.request_bytes, limit.limit_bytes, yaml_comments(limit))


def limit_compose_yaml(limit: MemoryLimit) -> str:
    """Return the suggestion as a service of Compose."""
    limit = codec.escaped_record(limit)
    if limit.device is not None:
        return compose_gpu_service(service_name(limit), yaml_comments(limit))
    return compose_service(
        service_name(limit),
        limit.request_bytes,
        limit.limit_bytes,
        yaml_comments(limit),
    )


REPORT: Report[MemoryLimit] = Report("memory limit", file_names("limit"), document, draw)
