"""``memdiag check``: find waste in models without running them."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.cli import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from memdiag.cli.options import (
    add_detail,
    add_dims,
    add_format,
    add_list,
    add_option,
    add_output_record,
    comma_separated_parts,
    read_dims,
)

ARGUMENTS = "MODEL..."


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", type=Path, help="Models, in ONNX or ORT format."
    )
    add_option(parser, "for_onnxruntime")
    add_list(
        parser,
        "--select",
        metavar="RULE",
        help="Run only these rules (names, codes or prefixes of codes).",
    )
    add_list(parser, "--ignore", metavar="RULE", help="Skip these rules; can be repeated.")
    add_dims(parser)
    add_format(
        parser,
        ("console", "json", "sarif", "markdown"),
        "What to print: a summary, the JSON record, SARIF, or Markdown.",
    )
    add_output_record(parser)
    add_detail(parser)


def run(options: Namespace) -> int:
    """Find wasted memory in models, without running them.

    Exit codes: 0 if nothing is found, 1 if something is, 2 if a model could not be read. Findings
    that cost time only (denormal-weights) do not count, nor do findings about defects of releases
    of onnxruntime (rules MD802 and MD803).

    Defaults come from [tool.memdiag] in pyproject.toml: select, ignore, for-onnxruntime, dim; and
    min-bytes: findings that cost less are skipped (4 KiB).
    """
    from memdiag.api.check import check_models, wastes_memory
    from memdiag.api.project_settings import read_project_settings
    from memdiag.cli.output import print_check, save_record
    from memdiag.reports.text import plain

    settings = read_project_settings()
    result = check_models(
        options.models,
        selection=settings.selection(
            select=comma_separated_parts(",".join(options.select)),
            ignore=comma_separated_parts(",".join(options.ignore)),
        ),
        for_onnxruntime=options.for_onnxruntime or settings.for_onnxruntime,
        dims={**settings.dim, **read_dims(options.dims)},
    )
    if options.output is not None:
        save_record(result, options.output)
    print_check(result, options.format, detail=options.detail)
    failures = [model.error for model in result.models if model.error is not None]
    for failure in failures:
        print(f"memdiag: {plain(failure)}", file=sys.stderr)
    if failures:
        return EXIT_ERROR
    return EXIT_FINDINGS if wastes_memory(result) else EXIT_CLEAN
