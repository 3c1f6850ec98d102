"""The process that records a program which has started it: see `memdiag.api.recording`."""

import os
import select
import signal
import sys
from contextlib import closing
from pathlib import Path

from memdiag.programs.assemble import assemble_run
from memdiag.programs.process_tree import process_info
from memdiag.programs.recorder import Recorder
from memdiag.records.codec import encode
from memdiag.records.files import save_bytes


def main() -> None:
    """Record process PID until standard input ends, and write the record to FILE.

    The arguments are the version of memdiag, PID, FILE and, if wanted, ``--no-xray``. The address
    of the recording is printed on standard output.
    """
    version, pid, file, *options = sys.argv[1:]
    # Ctrl-C is meant for the program, which ends the recording.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with closing(Recorder(xray="--no-xray" not in options)) as recorder:
        info = process_info(int(pid))
        os.write(sys.stdout.fileno(), f"{recorder.address}\n".encode())
        recorder.run(int(pid), _input_ended)
        command = info.command if info else ()
        record = assemble_run(recorder, command, None, memdiag_version=version)
        save_bytes(encode(record), Path(file))


def _input_ended() -> bool:
    """Return whether standard input has ended; nothing is ever written to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])
