"""``memdiag history``: keep profiles over time, and show any of their figures."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format
from memdiag.cli.exit_codes import CLEAN
from memdiag.errors import UsageError

_DEFAULT_FILE = Path("reports") / "history.sqlite"


class _Action(StrEnum):
    add = "add"
    show = "show"


def command(
    action: Annotated[_Action, typer.Argument(help="What to do.", show_default=False)],
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PROFILE]...", help="Saved profile.json files to add."),
    ] = None,
    file: Annotated[
        Path, typer.Option(metavar="FILE", help="The history.", show_default=True)
    ] = _DEFAULT_FILE,
    label: Annotated[
        str, typer.Option(help="What they are added as, such as a commit.", show_default=False)
    ] = "",
    model: Annotated[str | None, typer.Option(metavar="PATH", help="Show this model only.")] = None,
    figure: Annotated[
        str, typer.Option(metavar="NAME", help="The figure to show: any that a budget can name.")
    ] = "peak",
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the trend there, as PNG or .svg.")
    ] = None,
    format: Annotated[
        Format, typer.Option(help="What to print: a summary, or the record alone.")
    ] = Format.console,
) -> int:
    """Append saved profiles to an SQLite file, or show a figure of models over time.

    Several processes may add at the same time; a profile that is there already is not added again.
    """
    from memdiag.cli.output import picture_kind, save_bytes, show_history
    from memdiag.records.codec import encode
    from memdiag.workflows import history
    from memdiag.workflows.load_profile import load_profile

    if action is _Action.add:
        if not profiles:
            raise UsageError("history add takes one or more profile.json files.")
        count = history.add(file, [load_profile(path) for path in profiles], label=label)
        print(f"{count} added, {len(profiles) - count} there already: {file}")
        return CLEAN
    if profiles:
        raise UsageError(f"history show takes no profiles, but {profiles[0]} was given.")
    found = history.show(file, model=model)
    if picture is not None:
        from memdiag.reporters import trend

        save_bytes(trend.render(found, figure, picture_kind(picture)), picture)
    if format is Format.json:
        sys.stdout.buffer.write(encode(found))
    else:
        show_history(found, figure)
    return CLEAN
