"""``memdiag explain``: print a rule's own documentation."""

from typing import Annotated

import typer

from memdiag.cli.exit_codes import CLEAN


def command(
    rule: Annotated[str, typer.Argument(help="A rule's name or code.", show_default=False)],
) -> int:
    """Explain a rule: what it finds, why this costs memory, and how to fix it."""
    from memdiag.cli.output import print_markdown
    from memdiag.rules import find_detector
    from memdiag.rules.pages import page

    print_markdown(page(find_detector(rule)))
    return CLEAN
