"""The commands, one a module with the name of the command.

Each module has `ARGUMENTS` (the positional arguments in the usage line), a function `configure`
that adds options to a parser, and a function `run` that returns the exit code. `IN_WORKER` states
whether the command runs in a worker: a bool, or a function of the options; a module without it runs
in one. The docstring of `run` is the help. What is costly to import is imported in `run`, so that
`--help` stays quick.
"""

import os

COMMAND_NAMES = tuple(
    sorted(
        name.removesuffix(".py")
        for name in os.listdir(os.path.dirname(__file__))
        if name.endswith(".py") and name[0].isalpha()
    )
)
"""The names of all commands, in the order of the help."""
