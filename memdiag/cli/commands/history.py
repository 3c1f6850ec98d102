"""``memdiag history``: store profiles over time and show their figures."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.cli import CLEAN
from memdiag.cli.options import add_format, add_picture
from memdiag.errors import UsageError

ARGUMENTS = "{add,show} [PROFILE...]"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "action",
        choices=("add", "show"),
        help="Add profiles, or show a figure.",
    )
    parser.add_argument(
        "profiles",
        metavar="PROFILE",
        nargs="*",
        type=Path,
        help="Saved profile.json files to add.",
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default="reports/history.sqlite",
        help="SQLite file of the history.",
    )
    parser.add_argument(
        "--label", default="", help="Label of the added profiles, such as a commit."
    )
    parser.add_argument(
        "--model", metavar="FILE", type=Path, help="The ONNX model to show (default: all)."
    )
    parser.add_argument(
        "--figure",
        metavar="FIGURE",
        default="peak",
        help="The figure to show: any figure of a budget.",
    )
    add_picture(parser)
    add_format(parser)


def run(options: Namespace) -> int:
    """Add saved profiles to an SQLite file, or show a figure of models over time.

    Several processes can add profiles at the same time. Each profile is added once.
    """
    from memdiag.api import history
    from memdiag.api.load import load_profile
    from memdiag.cli.output import picture_kind, save_bytes, show_history
    from memdiag.records.codec import encode

    if options.action == "add":
        if not options.profiles:
            raise UsageError(
                "history add: no profile was given. Name one or more profile.json files."
            )
        profiles = [load_profile(path) for path in options.profiles]
        count = history.add(options.file, profiles, label=options.label)
        print(f"{options.file}: {count} added, {len(profiles) - count} known already")
        return CLEAN
    if options.profiles:
        raise UsageError(
            f"history show: unexpected argument {options.profiles[0]}. Use --model to choose."
        )
    found = history.show(options.file, model=str(options.model) if options.model else None)
    if options.picture is not None:
        from memdiag.reports.history import render

        picture = render(found, options.figure, picture_kind(options.picture))
        save_bytes(picture, options.picture)
    if options.format == "json":
        sys.stdout.buffer.write(encode(found))
    else:
        show_history(found, options.figure)
    return CLEAN
