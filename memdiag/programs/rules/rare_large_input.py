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

from collections.abc import Iterator, Sequence
from math import prod

from memdiag.programs.session_facts import (
    SHRINKAGE_CODE,
    created_sessions,
    model_name,
    reserved_text,
    slack_bytes,
)
from memdiag.records.run import InputShapes, ProgramFinding, ProgramRun, ProgramSession, RunPeak
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD706",
    name="rare-large-input",
    summary="A rare large input made the arena grow, and the memory stays",
)

_MIN_SLACK_BYTES = 64 * MIB
_MAX_RARE_SHARE = 0.05
_MIN_RATIO = 2

_Shapes = dict[str, tuple[int, ...]]


def detect(run: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each session whose arena is as large as a rare input made it."""
    for session in created_sessions(run):
        slack = slack_bytes(session)
        peak = _largest_step(run, session)
        if slack is None or slack < _MIN_SLACK_BYTES or peak is None:
            continue
        finding = _finding(session, peak, slack)
        if finding is not None:
            yield finding


def _largest_step(run: ProgramRun, session: ProgramSession) -> RunPeak | None:
    """Return the run of `session` that raised the high-water mark most; None without such runs."""
    peaks = [peak for peak in run.peaks if peak.session == session.number]
    start = max((phase.peak_rss_bytes for phase in session.phases), default=0)
    before = [start, *(peak.peak_rss_bytes for peak in peaks)]
    steps = [peak.peak_rss_bytes - mark for peak, mark in zip(peaks, before, strict=False)]
    return peaks[steps.index(max(steps))] if peaks else None


def _finding(session: ProgramSession, peak: RunPeak, slack: int) -> ProgramFinding | None:
    """Return the finding if the shapes of `peak` are rare, and the usual ones much smaller."""
    known = [each for each in session.shapes if each.shapes]
    runs = sum(each.runs for each in known)
    if not peak.shapes:
        return None
    usual = _usual_elements(known, runs)
    large_runs = sum(each.runs for each in known if _elements(each) >= _MIN_RATIO * usual)
    ratio = _element_count(peak.shapes) / max(usual, 1)
    if ratio < _MIN_RATIO or large_runs > _MAX_RARE_SHARE * runs:
        return None
    reserved = session.memory.arena_slack_bytes if session.memory else None
    return ProgramFinding(
        rule=RULE.name,
        sessions=(session.number,),
        bytes=slack,
        message=(
            f"the arena of {model_name(session)} (session {session.number}, process {session.pid})"
            f" keeps {format_size(slack)}{reserved_text(reserved or 0, slack)} that are free, and"
            f" was enlarged most by a run with {_shapes_text(peak.shapes)}. Of {runs:,} runs"
            f" {large_runs:,} had such inputs, and 95 % had at most 1/{int(ratio):,} of their"
            " elements."
        ),
        remedy=(
            "Split or limit such inputs, or let the run after one of them return free memory at"
            f" its end: {SHRINKAGE_CODE}."
        ),
    )


def _usual_elements(shapes: Sequence[InputShapes], runs: int) -> int:
    """Return the fewest elements that nearly all runs do not exceed."""
    covered = 0
    for each in sorted(shapes, key=_elements):
        covered += each.runs
        if covered >= (1 - _MAX_RARE_SHARE) * runs:
            return _elements(each)
    return 0


def _elements(shapes: InputShapes) -> int:
    return _element_count(shapes.shapes or {})


def _element_count(shapes: _Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


def _shapes_text(shapes: _Shapes) -> str:
    """Return shapes as text: ``ids: 8×512, mask: 8×512``."""
    return ", ".join(
        f"{name}: {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()
    )
