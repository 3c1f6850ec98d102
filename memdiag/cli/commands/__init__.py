"""The commands. Each is a module with the name of the command.

Each module has `ARGUMENTS` (the positional arguments in the usage line), a function `configure`
that adds options to a parser, and a function `run` that returns the exit code. `IN_WORKER` states
whether the command runs in a worker: a bool, or a function of the options. A command without it
runs in a worker. The docstring of `run` is the help. Costly imports are in `run`, so that `--help`
stays quick.
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
