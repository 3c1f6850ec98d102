"""The phases of a session, in the order in which they first occur."""

from typing import Literal

PhaseName = Literal[
    "start",
    "parse",
    "optimize",
    "constant_fold",
    "initialize",
    "prepack",
    "first_run",
    "steady",
    "release",
]
"""``release``, in which the session is deleted, is part of a profile only on request."""

PHASES: tuple[PhaseName, ...] = (
    "start",
    "parse",
    "optimize",
    "constant_fold",
    "initialize",
    "prepack",
    "first_run",
    "steady",
    "release",
)
