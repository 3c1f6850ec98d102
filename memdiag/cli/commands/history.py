"""``memdiag history``: store profiles over time and show their figures."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format
from memdiag.cli.declarations import Picture, Printed
from memdiag.cli.exit_codes import CLEAN
from memdiag.errors import UsageError

_DEFAULT_FILE = Path("reports") / "history.sqlite"


class _Action(StrEnum):
    add = "add"
    show = "show"


def command(
    action: Annotated[
        _Action, typer.Argument(help="Add profiles, or show a figure.", show_default=False)
    ],
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PROFILE]...", help="Saved profile.json files to add."),
    ] = None,
    file: Annotated[
        Path,
        typer.Option(metavar="FILE", help="SQLite file of the history.", show_default=True),
    ] = _DEFAULT_FILE,
    label: Annotated[
        str, typer.Option(help="Label of the added profiles, such as a commit.", show_default=False)
    ] = "",
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ONNX model to show (default: all).")
    ] = None,
    figure: Annotated[
        str, typer.Option(metavar="FIGURE", help="The figure to show: any figure of a budget.")
    ] = "peak",
    picture: Picture = None,
    format: Printed = Format.console,
) -> int:
    """Add saved profiles to an SQLite file, or show a figure of models over time.

    Several processes can add profiles at the same time. Each profile is added once.
    """
    from memdiag.api import history
    from memdiag.api.load_profile import load_profile
    from memdiag.cli.output import picture_kind, save_bytes, show_history
    from memdiag.records.codec import encode

    if action is _Action.add:
        if not profiles:
            raise UsageError(
                "history add: no profile was given. Name one or more profile.json files."
            )
        count = history.add(file, [load_profile(path) for path in profiles], label=label)
        print(f"{count} added, {len(profiles) - count} already there: {file}")
        return CLEAN
    if profiles:
        raise UsageError(f"history show: unexpected argument {profiles[0]}. Use --model to choose.")
    found = history.show(file, model=str(model) if model else None)
    if picture is not None:
        from memdiag.reports import trend

        save_bytes(trend.render(found, figure, picture_kind(picture)), picture)
    if format is Format.json:
        sys.stdout.buffer.write(encode(found))
    else:
        show_history(found, figure)
    return CLEAN
