"""``memdiag report``: render a saved record again, without the model or onnxruntime."""

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.cli import CLEAN
from memdiag.cli.options import add_list, add_reports_folder
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.records.schemas import Reported

ARGUMENTS = "FILE"
_CONSOLE = "console"
_TEXT = ("issue", "json", "markdown")
_REDACTED = "redacted"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="A saved profile.json, run.json, growth.json, limit.json, comparison.json,"
        " estimate.json, fix.json, tune.json or X-ray, or the folder that it is in.",
    )
    add_list(
        parser,
        "--format",
        metavar="FORMAT",
        help="What to print or write: console, html, issue, json, markdown, png, svg or trace; can"
        " be repeated (default: all but issue and svg). issue: a bug report for onnxruntime, with"
        " --redact unless --no-redact is given.",
    )
    parser.add_argument(
        "--redact",
        action=BooleanOptionalAction,
        default=None,
        help="Replace names of models, paths, tensors, nodes, dimensions and programs, each by the"
        " same word everywhere (model-1, tensor-7). The files go to the folder redacted beside"
        " FILE, so that the record itself stays as it is.",
    )
    parser.add_argument(
        "--fix",
        metavar="FILE",
        type=Path,
        help="A fix.json or tune.json of the same model to include in a profile's report.",
    )
    parser.add_argument(
        "--merge-trace",
        metavar="FILE",
        type=Path,
        nargs="+",
        default=[],
        help="Profiles that onnxruntime wrote in the recorded program (enable_profiling), to"
        " include in the trace.json of a run.",
    )
    add_reports_folder(parser, default="the folder of FILE")


def run(options: Namespace) -> int:
    """Render the reports of a saved record again, without the model or onnxruntime.

    A single --format json, markdown or issue without --out is printed to standard output.
    """
    from memdiag.cli.output import Destination, save_bytes, show
    from memdiag.reports import report_of
    from memdiag.reports.text import plain

    record = _load(options.file, options.fix)
    if options.redact:
        if options.merge_trace:
            raise UsageError("--merge-trace has no effect with --redact: these files name nodes.")
        from memdiag.reports.redaction import redact

        record = redact(record)
    keep_names = options.redact is not None  # they are kept, or replaced already
    formats = options.format or [_CONSOLE, *report_of(record).default_formats()]
    if options.out is None and len(formats) == 1 and formats[0] in _TEXT:
        rendered = report_of(record).render(record, formats[0], keep_names=keep_names)
        sys.stdout.buffer.write(rendered)
        return CLEAN
    merged = _merged(record, options.merge_trace, formats)
    files = [name for name in formats if name != _CONSOLE]
    folder = options.out or (options.file if options.file.is_dir() else options.file.parent)
    if options.redact and options.out is None:
        folder /= _REDACTED
    written: tuple[Path, ...] = ()
    if files:
        destination = Destination(folder, plotly=options.plotly)
        written = destination.write(record, files, keep_names=keep_names)
    if merged is not None:
        save_bytes(merged, folder / report_of(record).file_name("trace"))
    if _CONSOLE in formats:
        # Redacted output is for others: it does not name the folder of the files.
        show(record, () if options.redact else written)
    else:
        for path in written:
            print(plain(str(path)))
    if options.redact and written:
        print(f"memdiag: written to {plain(str(folder))}", file=sys.stderr)
    return CLEAN


def _merged(record: "Reported", profiles: Sequence[Path], formats: Sequence[str]) -> bytes | None:
    """Return the trace of a run with onnxruntime's own `profiles`; None if there are none.

    Raises:
        UsageError: the record is not of a program, or no trace is written.
    """
    from memdiag.records.run import ProgramRun
    from memdiag.reports.run.trace import run_trace

    if not profiles:
        return None
    if not isinstance(record, ProgramRun):
        raise UsageError("--merge-trace needs the run.json of a recorded program.")
    if "trace" not in formats:
        raise UsageError("--merge-trace has no effect without --format trace.")
    return run_trace(record, profiles)


def _load(file: Path, fix: Path | None) -> "Reported":
    """Return the record in `file`, with the record in `fix` joined to it.

    Raises:
        RecordError: a file cannot be read, or is not a record that has reports.
        UsageError: the records are of different models.
    """
    from memdiag.api.load import join_fix, load_fix_or_tuning, load_reported
    from memdiag.records.profile import Profile

    record = load_reported(file)
    if fix is None:
        return record
    if not isinstance(record, Profile):
        raise UsageError(f"{file} is not a profile. --fix needs a saved profile.")
    return join_fix(record, load_fix_or_tuning(fix))
