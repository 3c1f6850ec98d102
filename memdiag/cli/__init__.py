"""The command line: one file a command under `commands`; only here is anything printed."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; it ends with 0 (clean), 1 (findings, or a breach) or 2 (error)."""
    # Imported here, so that importing this package for its name costs nothing.
    from memdiag.cli.worker import run_in_worker

    run_in_worker(_run_command)


def _run_command() -> NoReturn:
    from memdiag.cli.app import run

    run()
