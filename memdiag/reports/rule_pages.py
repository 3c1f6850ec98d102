"""The documentation of all rules in Markdown, for ``memdiag explain`` and ``docs/rules``.

``python -m memdiag.reports.rule_pages docs/rules`` writes the pages. Run it after a rule has
changed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memdiag.programs import rules as program_rules
from memdiag.rules import model_detectors
from memdiag.rules.device import device_detectors
from memdiag.rules.rule import Detector

RULE_INDEX_FILE = "README.md"


def all_detectors() -> tuple[Detector[Any, Any], ...]:
    """Return the detectors for models, programs and devices, each group sorted by code."""
    return (*model_detectors(), *program_rules.program_detectors(), *device_detectors())


def rule_page(detector: Detector[Any, Any]) -> str:
    """Return the documentation of one rule in Markdown."""
    rule = detector.rule
    remedies = "".join(f"- `{remedy}`\n" for remedy in rule.remedies)
    ending = f"\n## Remedies\n\n{remedies}" if remedies else ""
    return f"# {rule.name} ({rule.code})\n\n{detector.documentation.strip()}\n{ending}"


def rule_page_texts() -> dict[str, str]:
    """Return the content of the documentation page of each rule, and of the index, by file name."""
    text_by_file = {f"{detector.rule.name}.md": rule_page(detector) for detector in all_detectors()}
    text_by_file[RULE_INDEX_FILE] = (
        "# Rules\n\nEach page is what `memdiag explain` prints.\n\n"
        "`memdiag check` and `memdiag profile` search a model for this waste:\n\n"
        f"{_rule_table(model_detectors())}\n"
        "`memdiag run` searches a program for this waste:\n\n"
        f"{_rule_table(program_rules.program_detectors())}\n"
        "`memdiag profile --provider CUDAExecutionProvider` searches the memory of the GPU for this"
        " waste:\n\n"
        f"{_rule_table(device_detectors())}"
    )
    return text_by_file


def _rule_table(detectors: Sequence[Detector[Any, Any]]) -> str:
    rows = "".join(
        f"| {rule.code} | [{rule.name}]({rule.name}.md) | {rule.summary} |\n"
        for rule in (detector.rule for detector in detectors)
    )
    return f"| code | name | what it finds |\n| --- | --- | --- |\n{rows}"


def write_rule_pages(folder: Path) -> None:
    """Write the pages of all rules to `folder`, and remove pages of rules that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = rule_page_texts()
    for page in folder.glob("*.md"):
        if page.name not in texts:
            page.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_rule_pages(Path(sys.argv[1]))
