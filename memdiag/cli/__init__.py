"""The command line: `commands` has a module for each command. Only this package prints."""

import sys
from functools import partial
from typing import NoReturn

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
"""Exit code for findings, for a budget or baseline that was exceeded, and for a search that ended
before its answer."""
EXIT_ERROR = 2


def main() -> NoReturn:
    """Run the command line and end with its exit code."""
    if sys.platform != "linux":
        print("memdiag: this needs Linux. Run it there, or in a container.", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    # These imports are here so that importing the package costs nothing.
    from memdiag.cli.worker import (
        continue_in_worker,
        end_at_signals,
        open_standard_streams,
        run_here,
    )

    open_standard_streams()
    end_at_signals()
    from memdiag.cli.app import parse_command_line, run_guarded

    invocation = parse_command_line()
    import logging  # help does without it

    # matplotlib warns if the home folder is not writable, but draws nevertheless.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if invocation.runs_in_worker:
        continue_in_worker()
    run_here(partial(run_guarded, invocation.module.run, invocation.options))
