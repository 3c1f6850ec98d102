"""What every run of pytest pays for the plugin being installed."""

import subprocess
import sys
from statistics import median

import pytest

from tests.test_architecture import HEAVY, loaded


def test_its_import_is_light() -> None:
    assert loaded("import pytest, memdiag.pytest_plugin.settings") & HEAVY == set()
    assert loaded("import memdiag.pytest_plugin.marker") & HEAVY != set()


@pytest.mark.measures
def test_its_import_takes_a_small_part_of_pytests_own() -> None:
    def seconds(before: str, timed: str) -> float:
        program = (
            f"{before}; import time; began = time.perf_counter()\n"
            f"{timed}; print(time.perf_counter() - began)"
        )
        command = [sys.executable, "-c", program]
        found = [subprocess.run(command, capture_output=True, check=True) for _ in range(5)]
        return median(float(done.stdout) for done in found)

    modules = "memdiag.pytest_plugin, memdiag.pytest_plugin.settings"
    plugin = seconds("import pytest, memdiag", f"import {modules}")
    assert plugin < 0.2 * seconds("import sys", "import pytest")
