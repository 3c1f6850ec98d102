"""The phases of a session, in the order in which they first occur."""

from typing import Literal

PhaseName = Literal[
    "start", "parse", "optimize", "constant_fold", "initialize", "prepack", "first_run", "steady"
]
PHASES: tuple[PhaseName, ...] = (
    "start",
    "parse",
    "optimize",
    "constant_fold",
    "initialize",
    "prepack",
    "first_run",
    "steady",
)
