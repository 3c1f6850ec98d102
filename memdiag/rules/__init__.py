"""The rules: one wasteful pattern a module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.errors import UsageError
from memdiag.rules.rule import Detector


@cache
def detectors() -> tuple[Detector, ...]:
    """Return all detectors, sorted by code."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found = [
        Detector(module.RULE, module.detect, inspect.getdoc(module) or "")
        for module in modules
        if hasattr(module, "RULE")
    ]
    return tuple(sorted(found, key=lambda detector: detector.rule.code))


def find_detector(name: str) -> Detector:
    """Return the detector of the rule with the code or name `name`.

    Raises:
        UsageError: there is none; the message lists all rules.
    """
    for detector in detectors():
        if name.casefold() in (detector.rule.code.casefold(), detector.rule.name):
            return detector
    names = ", ".join(detector.rule.name for detector in detectors())
    raise UsageError(f"unknown rule {name!r}. The rules are {names}.")
