"""The command line: one file a command under `commands`; only here is anything printed."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; it ends with 0 (clean), 1 (findings, or a breach) or 2 (error)."""
    # Late, so that importing this package for its name costs nothing.
    from memdiag.cli.app import run

    run()
