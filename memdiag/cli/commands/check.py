"""``memdiag check``: find waste in models without running them."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import dimension_sizes
from memdiag.cli.declarations import Dims, OutputRecord, Quiet
from memdiag.cli.exit_codes import CLEAN, ERROR, FINDINGS
from memdiag.units import parse_size


class _Format(StrEnum):
    console = "console"
    json = "json"
    sarif = "sarif"
    markdown = "markdown"


def command(
    model: Annotated[list[Path], typer.Argument(help="ONNX models.", show_default=False)],
    for_onnxruntime: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Release to predict for (default: the installed one)."
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="Run only these rules (names, codes or prefixes of codes)."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Skip these rules; can be repeated.")
    ] = None,
    min_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Skip findings that cost less (default: 4KiB)."),
    ] = None,
    dim: Dims = None,
    format: Annotated[
        _Format, typer.Option(help="What to print: a summary, the JSON record, SARIF, or Markdown.")
    ] = _Format.console,
    output: OutputRecord = None,
    quiet: Quiet = False,
) -> int:
    """Find wasted memory in models, without running them.

    Exit codes: 0 if nothing is found, 1 if something is, 2 if a model could not be read. Findings
    that cost time only (denormal-weights) do not count.

    Defaults come from [tool.memdiag] in pyproject.toml: select, ignore, min-bytes,
    for-onnxruntime, dim.
    """
    from memdiag.api.check import (
        DEFAULT_MIN_BYTES,
        Selection,
        check_models,
        wastes_memory,
    )
    from memdiag.api.configuration import read_configuration
    from memdiag.cli.output import print_check, save_record
    from memdiag.reports.views.text import plain

    settings = read_configuration()
    least = parse_size(min_bytes) if min_bytes is not None else settings.least_bytes
    result = check_models(
        model,
        selection=Selection(
            select=_listed(select) or settings.select,
            ignore=_listed(ignore) or settings.ignore,
            min_bytes=DEFAULT_MIN_BYTES if least is None else least,
        ),
        for_onnxruntime=for_onnxruntime or settings.for_onnxruntime,
        dims={**settings.dim, **dimension_sizes("--dim", dim or ())},
    )
    if output is not None:
        save_record(result, output)
    print_check(result, format.value, quiet=quiet)
    failures = [one.error for one in result.models if one.error is not None]
    for failure in failures:
        print(f"memdiag: {plain(failure)}", file=sys.stderr)
    if failures:
        return ERROR
    return FINDINGS if wastes_memory(result) else CLEAN


def _listed(values: list[str] | None) -> tuple[str, ...]:
    """Return the rules given, each option's value split at its commas."""
    names = (name.strip() for value in values or () for name in value.split(","))
    return tuple(name for name in names if name)
