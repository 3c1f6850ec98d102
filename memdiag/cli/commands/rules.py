"""``memdiag rules``: list the rules."""

from argparse import ArgumentParser, Namespace

from memdiag.cli import CLEAN

ARGUMENTS = ""


def configure(parser: ArgumentParser) -> None:
    """Add no options: there are none."""


def run(options: Namespace) -> int:
    """List the rules of memdiag check and memdiag profile."""
    from memdiag.rules import detectors

    rules = [detector.rule for detector in detectors()]
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        print(f"{rule.code}  {rule.name:<{width}}  {rule.summary}")
    return CLEAN
