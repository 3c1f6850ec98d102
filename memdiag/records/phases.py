"""The phases of a session, in the order in which they first occur."""

from typing import Literal, get_args

PhaseName = Literal[
    "start",
    "parse",
    "optimize",
    "constant_fold",
    "initialize",
    "prepack",
    "first_run",
    "steady",
    "prefill",
    "decode",
]
"""A generation has ``prefill``, the call with the prompt, and ``decode``, the calls of one token,
in place of ``first_run`` and ``steady``."""

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)

CREATION_PHASES: tuple[PhaseName, ...] = (
    "parse",
    "optimize",
    "constant_fold",
    "initialize",
    "prepack",
)
"""The phases in which the session is created."""

RUN_PHASES: tuple[PhaseName, ...] = ("first_run", "steady", "prefill", "decode")
"""The phases in which the model runs."""

GENERATION_PHASES: tuple[PhaseName, ...] = ("prefill", "decode")
"""The phases of a generation."""
