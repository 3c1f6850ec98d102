"""``memdiag explain``: print a rule's own documentation."""

from argparse import ArgumentParser, Namespace

from memdiag.cli import CLEAN

ARGUMENTS = "RULE"


def configure(parser: ArgumentParser) -> None:
    """Add the argument for the rule."""
    parser.add_argument("rule", metavar="RULE", help="A rule's name or code.")


def run(options: Namespace) -> int:
    """Explain a rule: what it finds, why this costs memory, and how to fix it."""
    from memdiag.cli.output import print_markdown
    from memdiag.rules import find_detector
    from memdiag.rules.pages import page

    print_markdown(page(find_detector(options.rule)))
    return CLEAN
