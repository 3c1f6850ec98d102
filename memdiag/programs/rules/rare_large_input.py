"""A rare large input made the arena grow, and the memory stays for all the small ones.

## Why it costs

onnxruntime takes the memory of a run from the arena of the session. The arena grows for the
largest input and releases nothing until the session ends, so that one long text or large
image sets the resident memory of a server. The free part is *slack*.

The finding names the shapes of the run that raised the high-water mark of the process, how
many runs had them, and what most runs have. Its bytes are the resident slack of the arena in the
last X-ray of the process, an upper bound: the usual inputs need some of it for a moment.
The arena reserves more: it doubles its regions, and pages that no run has written are not
resident.

## What to do

- Bound the input: split large batches, limit the length of texts, scale images down. The
  arena then never grows so far.
- Give the run after a large one `RunOptions` with the config entry
  `memory.enable_memory_arena_shrinkage` set to `cpu:0`: free regions go back to the system
  at its end. In the large run itself the region with its outputs is not free yet: of 164
  MiB after a run with 40,000 rows 85 MiB stayed with the option in that run, and none with
  the option in the next one (1.32.0). In every run it works too, and each run then
  allocates again.
- `enable_cpu_mem_arena = False` does without the arena; set `MALLOC_MMAP_THRESHOLD_=131072`
  in the environment with it, or glibc may keep what was freed.

## Not reported

Less than 64 MiB of slack, which is usual after the doubling of the arena's regions; shapes
that more than 5 % of the runs have, so that it takes 20 runs to find one; shapes with less
than twice the elements of the usual ones, since the arena can double its regions for a
slightly larger input; sessions whose large run was their first, when memory grows for other
reasons too; runs with an IOBinding, whose shapes are not recorded.
"""

from collections.abc import Iterator, Mapping, Sequence

from memdiag.programs.session_facts import SHRINKAGE_CODE, model_name, reserved_text
from memdiag.programs.session_patterns import rare_large_inputs
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD706",
    name="rare-large-input",
    summary="A rare large input made the arena grow, and the memory stays",
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each session whose arena is as large as a rare input made it."""
    for rare_input in rare_large_inputs(recording):
        session, slack = rare_input.session, rare_input.slack_bytes
        reserved_bytes = session.memory.arena_slack_bytes if session.memory else None
        yield ProgramFinding(
            name=RULE.name,
            sessions=(session.number,),
            bytes=slack,
            message=(
                f"the arena of {model_name(session)} (session {session.number}, process"
                f" {session.pid}) keeps {format_size(slack)}"
                f"{reserved_text(reserved_bytes or 0, slack)} that are free, and was"
                f" enlarged most by a run with {_shapes_text(rare_input.shapes)}."
                f" Of {rare_input.runs:,} runs {rare_input.large_runs:,} had such inputs,"
                f" and 95 % had at most 1/{int(rare_input.ratio):,} of their elements."
            ),
            remedy=(
                "Split or limit such inputs, or let the run after one of them return free memory at"
                f" its end: {SHRINKAGE_CODE}."
            ),
        )


def _shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return shapes as text: ``ids: 8×512, mask: 8×512``."""
    return ", ".join(
        f"{name}: {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()
    )
