"""The rules, which find waste in a model. Each module of `memdiag.rules.catalog` is a rule.

Rules are not registered elsewhere. A rule's module has a `RULE` and a function `detect`; its
docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

from functools import cache

from memdiag.rules import catalog
from memdiag.rules.rule import ModelDetector, find_by_name, load_detectors


@cache
def model_detectors() -> tuple[ModelDetector, ...]:
    """Return the detectors of all rules, sorted by code."""
    return load_detectors(catalog.__name__, catalog.__path__)


def find_detector(name: str) -> ModelDetector:
    """Return the detector of the rule with the code or name `name`.

    Raises:
        UsageError: no rule has it; the message lists all rules.
    """
    return find_by_name(name, model_detectors())
