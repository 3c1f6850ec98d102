"""A weight that one branch of an If gathers and the other one multiplies by, transposed."""

from benchmarks.reproduced.claims import Part, Setting
from benchmarks.reproduced.versions import causes, on_versions, resident, steps

TITLE = "A tied weight in the branches of an If"
SOURCE = (
    "Measured by hand before there was memdiag, of a model with 500 MB embedded: 1583 MB are"
    " resident in the end in 1.22.1, 1055 in 1.24.4 and 1563 in 1.31.1. Here: `tied_if`,"
    " {megabytes:.0f} MB embedded; the whole process's resident set."
)

MEGABYTES = 500
_STEPS = {"1.22.1": 1583, "1.24.4": 1055, "1.31.1": 1563}


def measure(setting: Setting) -> tuple[str, Part]:
    """Measure it on all versions."""
    found = on_versions("tied_if", MEGABYTES, setting)
    claims = steps(found, "resident in the end", _STEPS, "MB", resident)
    part = Part(claims=claims, remarks=causes(found, ("steady",)))
    return SOURCE.format(megabytes=MEGABYTES * setting.scale), part
