"""The command line: one module a command under `commands`; only here is anything printed."""

import sys
from typing import NoReturn

CLEAN = 0
FINDINGS = 1
"""Exit code for findings, for a budget or baseline that was exceeded, and for a search that ended
before its answer."""
ERROR = 2


def main() -> NoReturn:
    """Run the command line and end with its exit code."""
    if sys.platform != "linux":
        print("memdiag: this needs Linux. Run it there, or in a container.", file=sys.stderr)
        sys.exit(ERROR)
    # Imported here, so that importing this package costs nothing.
    from memdiag.cli.worker import (
        end_at_signals,
        open_standard_streams,
        run_here,
        run_in_worker,
    )

    open_standard_streams()
    end_at_signals()
    from memdiag.cli.app import parse_command_line

    invocation = parse_command_line()
    if not invocation.in_worker:
        run_here(invocation.run)
    run_in_worker(invocation.run)
