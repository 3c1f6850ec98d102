"""Licences of the JavaScript in the package: ``python -m benchmarks.javascript_licences``.

Installs the release of plotly.js that memdiag's pages contain with npm, and writes its licence and
those of its dependencies to ``licenses/plotly.js.txt``, which distributions of memdiag contain. npm
is needed.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LICENCES = ROOT / "licenses" / "plotly.js.txt"
SCRIPT = ROOT / "memdiag" / "reports" / "templates" / "plotly.min.js"

_HEADER = re.compile(r"plotly\.js v(\S+)")
_LICENCE_FILE = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)
_COPYRIGHT = re.compile(r"(?:copyright\b|\(c\)|©|copyright ©).*", re.IGNORECASE)
_TITLE = re.compile(
    r"#* *(?:the )?\(?(?:mit|isc|bsd|3-clause|2-clause)?\)?[\w -]*licen[cs]e\b[^.]{0,30}:?",
    re.IGNORECASE,
)


class Package(NamedTuple):
    """A package that npm installed: its licence by name, and the texts in its folder."""

    name: str
    version: str
    licence: str
    texts: tuple[str, ...]


def script_version(script: str) -> str:
    """Return the version of plotly.js that the header of `script` names.

    Raises:
        ValueError: it names none.
    """
    found = _HEADER.search(script[:500])
    if found is None:
        raise ValueError("the script has no header with the version of plotly.js")
    return found[1]


def packages_in(folder: Path) -> list[Package]:
    """Return the packages in the folder ``node_modules``, by name."""
    packages = {}
    for path in folder.rglob("package.json"):
        facts = json.loads(path.read_text("utf-8"))
        name = str(path.parent.relative_to(folder)).rpartition("node_modules/")[2]
        if facts.get("name") != name or "version" not in facts:
            continue  # a part of a package
        texts = tuple(
            file.read_text("utf-8", errors="replace")
            for file in sorted(path.parent.iterdir())
            if _LICENCE_FILE.match(file.name) and file.is_file()
        )
        version = facts["version"]
        packages[name, version] = Package(name, version, _licence(facts), texts)
    return [package for _, package in sorted(packages.items())]


def _licence(facts: dict[str, Any]) -> str:
    stated = facts.get("license") or facts.get("licenses") or "see its text"
    if isinstance(stated, list):
        stated = " or ".join(str(each.get("type", each)) for each in stated)
    return str(stated.get("type", stated) if isinstance(stated, dict) else stated)


def licence_text(version: str, packages: list[Package]) -> str:
    """Return the text of the file: each licence once, with its packages and copyright notices."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    bodies: dict[str, str] = {}
    without = []
    for package in packages:
        if not package.texts:
            without.append(f"{package.name} {package.version}: {package.licence}")
            continue
        lines = "\n".join(package.texts).replace("\r", "").splitlines()
        notices = [line.strip() for line in lines if _COPYRIGHT.fullmatch(line.strip())]
        rest = [
            line.rstrip()
            for line in lines
            if line.strip() not in notices and not _TITLE.fullmatch(line.strip())
        ]
        body = re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip()
        key = re.sub(r"\W+", " ", body).lower().strip()
        bodies.setdefault(key, body)
        entry = [f"{package.name} {package.version} ({package.licence})"]
        owners[key].append("\n".join([*entry, *(f"    {notice}" for notice in notices)]))
    parts = [
        f"Licences of plotly.js {version}, which memdiag's pages contain, and of the packages that"
        " it depends on.\nWritten by python -m benchmarks.javascript_licences."
    ]
    for key, names in owners.items():
        parts.append("\n".join([*names, "", bodies[key]]))
    if without:
        parts.append("\n".join(["Packages without a text of their own:", *without]))
    rule = f"\n\n{'-' * 80}\n\n"
    return f"{rule.join(parts)}\n"


def main() -> int:
    """Write the file and return the exit code."""
    version = script_version(SCRIPT.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "package.json").write_text("{}")
        command = ["npm", "install", f"plotly.js@{version}", "--omit=dev", "--ignore-scripts"]
        command += ["--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=name, check=True)
        packages = packages_in(Path(name) / "node_modules")
    LICENCES.parent.mkdir(exist_ok=True)
    LICENCES.write_text(licence_text(version, packages), "utf-8")
    print(f"{LICENCES.name}: {len(packages)} packages, {LICENCES.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
