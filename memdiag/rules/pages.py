"""The rules' own pages, in Markdown: what ``memdiag explain`` prints, and ``docs/rules`` holds.

``python -m memdiag.rules.pages docs/rules`` writes them anew after a rule has changed.
"""

import sys
from pathlib import Path

from memdiag.rules import detectors
from memdiag.rules.rule import Detector

INDEX = "README.md"


def page(detector: Detector) -> str:
    """Return the documentation of one rule."""
    rule = detector.rule
    remedies = "".join(f"- `{remedy}`\n" for remedy in rule.remedies)
    ending = f"\n## Remedies\n\n{remedies}" if remedies else ""
    return f"# {rule.name} ({rule.code})\n\n{detector.documentation.strip()}\n{ending}"


def pages() -> dict[str, str]:
    """Return the content of each file of the folder, by its name."""
    found = {f"{each.rule.name}.md": page(each) for each in detectors()}
    rows = "".join(
        f"| {each.rule.code} | [{each.rule.name}]({each.rule.name}.md) | {each.rule.summary} |\n"
        for each in detectors()
    )
    found[INDEX] = (
        "# Rules\n\nWhat `memdiag check` looks for; each page is what `memdiag explain` prints.\n\n"
        f"| code | name | what it finds |\n| --- | --- | --- |\n{rows}"
    )
    return found


def write(folder: Path) -> None:
    """Write all pages to `folder`, and remove those of rules that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
