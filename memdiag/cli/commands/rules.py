"""``memdiag rules``: list the rules."""

from argparse import ArgumentParser, Namespace

from memdiag.cli import CLEAN

ARGUMENTS = ""


def configure(parser: ArgumentParser) -> None:
    """Add no options: there are none."""


def run(options: Namespace) -> int:
    """List the rules of memdiag check and memdiag profile, and the rules of memdiag run (MD7)."""
    from memdiag.reports.rule_pages import all_detectors

    rules = [detector.rule for detector in all_detectors()]
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        print(f"{rule.code}  {rule.name:<{width}}  {rule.summary}")
    return CLEAN
