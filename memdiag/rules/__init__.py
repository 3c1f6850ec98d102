"""Wasteful patterns, one a file.

A module here that has a `RULE` and a function `detect` is a detector, found by being here; its
docstring is the rule's documentation: Markdown, whose first line is a sentence.
"""

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.errors import UsageError
from memdiag.rules.rule import Detector


@cache
def detectors() -> tuple[Detector, ...]:
    """Return all detectors, by code."""
    found = []
    for one in iter_modules(__path__):
        module = import_module(f"{__name__}.{one.name}")
        if hasattr(module, "RULE"):
            found.append(Detector(module.RULE, module.detect, inspect.getdoc(module) or ""))
    return tuple(sorted(found, key=lambda detector: detector.rule.code))


def find_detector(wanted: str) -> Detector:
    """Return the detector whose rule has the code or name `wanted`.

    Raises:
        UsageError: there is none; the message lists what there is.
    """
    for detector in detectors():
        if wanted.casefold() in (detector.rule.code.casefold(), detector.rule.name):
            return detector
    names = ", ".join(detector.rule.name for detector in detectors())
    raise UsageError(f"unknown rule {wanted!r}. The rules are {names}.")
