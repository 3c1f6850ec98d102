"""``memdiag explain``: print a rule's own documentation."""

from argparse import ArgumentParser, Namespace

from memdiag.cli import CLEAN

ARGUMENTS = "RULE"


def configure(parser: ArgumentParser) -> None:
    """Add the argument for the rule."""
    parser.add_argument("rule", metavar="RULE", help="A rule's name or code.")


def run(options: Namespace) -> int:
    """Explain a rule: its waste, the reason why this costs memory, and the remedies."""
    from memdiag.cli.output import print_markdown
    from memdiag.reports.rule_pages import all_detectors, page
    from memdiag.rules.rule import find_by_name

    print_markdown(page(find_by_name(options.rule, all_detectors())))
    return CLEAN
