"""What rules predict next to what was measured: ``python -m benchmarks.predictions``.

The slow tests of the rules run each case (a model whose copies are known) under several releases of
onnxruntime, and hold the bytes that a rule says against the X-ray or against the same model without
the waste. Here they are run, and their figures go to ``benchmarks/README.md``: how many cases of a
rule agree on each release, and one by one those that do not agree within 5 %.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import memdiag
from benchmarks.readme import replace_part, table
from memdiag.runner.machine import describe_machine
from memdiag.units import MIB

_TESTS = Path(__file__).parents[1] / "tests" / "rules"
_CLOSE = 0.05
_NOTHING = 2 * MIB
"""What may be measured where nothing is predicted: a process is never the same twice."""


class Case(NamedTuple):
    """One prediction: of which rule and figure (steady or peak), on which release, in bytes."""

    rule: str
    name: str
    figure: str
    onnxruntime: str
    predicted: int
    measured: int
    test: str

    @property
    def error(self) -> float:
        """How far the measured bytes are from the predicted ones, as a share of these."""
        if not self.predicted:
            return 0.0 if abs(self.measured) <= _NOTHING else float("inf")
        return abs(self.measured - self.predicted) / self.predicted


def cases(report: Path) -> list[Case]:
    """Return the predictions that the tests wrote to the JUnit file `report`."""
    found = []
    for test in ElementTree.parse(report).iter("testcase"):
        for entry in test.iter("property"):
            if entry.get("name") == "prediction":
                rule, name, figure, release, predicted, seen = json.loads(entry.get("value", ""))
                case = test.get("name", "")
                found.append(Case(rule, name, figure, release, predicted, seen, case))
    return found


def part(found: Iterable[Case]) -> str:
    """Return the table of the predictions, and the list of those that do not agree."""
    cells: dict[tuple[str, str, str], dict[str, list[Case]]] = defaultdict(
        lambda: defaultdict(list)
    )
    releases: set[str] = set()
    for case in found:
        cells[case.rule, case.name, case.figure][case.onnxruntime].append(case)
        releases.add(case.onnxruntime)
    columns = sorted(releases, key=lambda release: [int(part) for part in release.split(".")])
    rows = [
        [f"{rule} {name}", figure, *(_cell(by_release[release]) for release in columns)]
        for (rule, name, figure), by_release in sorted(cells.items())
    ]
    return table(["rule", "figure", *columns], rows)


def apart(found: Iterable[Case]) -> str:
    """Return the table of the cases that do not agree within 5 %."""
    rows = [
        [
            f"{case.rule}, {case.figure}",
            case.onnxruntime,
            f"{case.predicted / MIB:.1f}",
            f"{case.measured / MIB:.1f}",
            f"{case.error:.0%}",
            f"`{case.test}`",
        ]
        for case in sorted(found)
        if case.error > _CLOSE
    ]
    return table(["rule", "onnxruntime", "predicted, MiB", "measured, MiB", "apart", "case"], rows)


def _cell(cases: list[Case]) -> str:
    """Return how many of the cases agree, and the largest error."""
    if not cases:
        return ""
    close = sum(case.error <= _CLOSE for case in cases)
    return f"{close} of {len(cases)}, {max(case.error for case in cases):.1%}"


def main() -> None:
    """Run the tests and write their figures."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-m", "slow", "-q", "-p", "no:cacheprovider"),
                # Of the families of this file only the first has properties of single tests.
                *("-o", "junit_family=xunit1", str(_TESTS), f"--junitxml={report}"),
            ]
        )
        found = cases(report)
    if not found:
        raise SystemExit("The tests recorded no prediction.")
    machine = describe_machine(memdiag.__version__, None, None)
    outcome = "all tests passed" if done.returncode == 0 else "some tests failed"
    text = "\n\n".join(
        [
            f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; {len(found)} "
            f"cases, {outcome}.",
            part(found),
            "Those that are more than 5 % apart:",
            apart(found),
        ]
    )
    replace_part("predictions", text)
    print(text)


if __name__ == "__main__":
    main()
