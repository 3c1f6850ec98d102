"""The rules: one wasteful pattern a module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

from functools import cache

from memdiag.rules.rule import Detector, find_by_name, rule_modules


@cache
def detectors() -> tuple[Detector, ...]:
    """Return all detectors, sorted by code."""
    return tuple(Detector(*module) for module in rule_modules(__name__, __path__))


def find_detector(name: str) -> Detector:
    """Return the detector of the rule with the code or name `name`.

    Raises:
        UsageError: there is none; the message lists all rules.
    """
    return find_by_name(name, detectors())
