"""malloc keeps memory that the program has freed.

## Why it costs

glibc returns the end of its heap, and blocks that it mapped one by one. Blocks below a
threshold come from the heap, and the threshold rises to 32 MiB as the program frees larger
ones. What is freed between blocks in use stays resident: temporaries of the graph
optimization, and with `enable_cpu_mem_arena = False` the tensors of all runs.

The bytes are the freed blocks in the last X-ray of each process, an upper bound: the next
run, or the next session, takes some of them again. Pages that forks share are counted once.

## What to do

- Call `ctypes.CDLL(None).malloc_trim(0)` once, after all sessions were created and have run: it
  returns what is free at that moment. The next run takes part of it again: in a text recognition
  program the resident set fell to 154 MiB, and was 299 MiB after the next run.
- Or start the program with `MALLOC_MMAP_THRESHOLD_=131072` in its environment: blocks from 128
  KiB on are mapped, and return to the system as soon as they are freed. It costs a system
  call and new pages for each such block: runs of a text recognition program took 0.89 to
  0.91 s instead of 0.69 to 0.84 s. A sentence encoder in int8 had 61 MiB of freed
  blocks in each worker, and 0.5 MiB with the variable; a text recognition library whose
  sessions have no arena 215 MiB and 1.7 MiB, and its peak fell from 608 to 427 MiB
  (onnxruntime 1.32.0, glibc).
- A program with many threads: `MALLOC_ARENA_MAX=1` or `2` keeps malloc from having a heap
  for each.

## Not reported

Less than 16 MiB, or less than a tenth of the process's memory; processes without an X-ray,
and allocators other than that of glibc, whose freed blocks the X-ray does not identify.
"""

from collections.abc import Iterator

from memdiag.defaults import PINNED_TEXT
from memdiag.programs.session_facts import (
    process_ids,
    session_numbers,
)
from memdiag.programs.xray_facts import (
    large_owners,
    sessions_in,
    shared_once_bytes,
)
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Rule
from memdiag.session_options import ARENA_OPTION, is_on
from memdiag.units import format_size

RULE = Rule(
    code="MD710",
    name="malloc-retained",
    summary="malloc keeps memory that the program has freed",
    needs_sessions=False,
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for all processes in which malloc retains much."""
    parts = large_owners(recording, "allocator_retained")
    if not parts:
        return
    xrays = [part.xray for part in parts]
    size = shared_once_bytes(recording, parts)
    sessions_without_arena = [
        session
        for session in sessions_in(recording, xrays)
        if not is_on(session.options, ARENA_OPTION, default=True)
    ]
    is_shared = any(part.private_bytes < part.bytes for part in parts)
    shared_clause = " (pages that these processes share are counted once)" if is_shared else ""
    reason = ""
    if sessions_without_arena:
        reason = " Some sessions there have no arena: malloc serves the tensors of their runs."
    yield ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions_without_arena),
        bytes=size,
        message=(
            f"{format_size(size)} in {process_ids(xrays)}{shared_clause} were freed, and malloc"
            " has not returned them to the system. The next run may use part of them"
            f" again.{reason}"
        ),
        remedy=(
            "Call malloc_trim(0) once after all sessions have run (in Python:"
            " ctypes.CDLL(None).malloc_trim(0)): freed memory returns to the system, and later runs"
            f" may take some of it again. Or start the program with {PINNED_TEXT} in its"
            " environment: malloc then returns freed blocks from 128 KiB on at once, though not"
            " smaller ones; that can lower the peak too, and make runs slower, so measure both."
        ),
    )
