"""What a check takes at most, measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

_MEASURE = """
import sys
from pathlib import Path
from memdiag.detectors import detectors
from memdiag.workflows.check import Selection, check_models
detectors()
found = check_models([Path(sys.argv[1])], selection=Selection())
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
print(found.models[0].error or "")
"""


def peak_of(model: Path) -> tuple[int, str]:
    """Return the peak of the resident set, in bytes, and the error for a model that is refused."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, model], capture_output=True, text=True, check=True
    )
    peak, _, error = done.stdout.partition("\n")
    return int(peak), error.strip()
