"""The rules, which find waste in a model. Each module of `memdiag.rules.catalog` is a rule.

Rules are not registered elsewhere. A rule's module has a `RULE` and a function `detect`; its
docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.errors import UsageError
from memdiag.rules import catalog
from memdiag.rules.rule import Detector


@cache
def detectors() -> tuple[Detector, ...]:
    """Return the detectors of all rules, sorted by code."""
    names = [entry.name for entry in iter_modules(catalog.__path__)]
    modules = [import_module(f"{catalog.__name__}.{name}") for name in names]
    unsorted = [
        Detector(module.RULE, module.detect, inspect.getdoc(module) or "") for module in modules
    ]
    return tuple(sorted(unsorted, key=lambda detector: detector.rule.code))


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
