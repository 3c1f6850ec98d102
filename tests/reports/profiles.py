"""Synthetic profiles with coherent figures, of the size that a tied 500 MiB weight really gives."""

import dataclasses
from collections.abc import Sequence

import msgspec

from memdiag.records.generation import Generation, KeyValueCache
from memdiag.records.profile import (
    PHASES,
    PROFILE_SCHEMA,
    Environment,
    Input,
    Memory,
    Model,
    Outcome,
    PeakKind,
    Phase,
    PhaseName,
    Profile,
    Run,
    Samples,
    Sampling,
    Session,
    Span,
)

MIB = 1024 * 1024
FILE_MIB = 24  # file-backed part of the baseline: the runtime's libraries
SHARED_MIB = 10  # of what samples call file-backed

HOSTILE = "</script><img src=x onerror=alert(1)>[red]x[/red] `a|b` $\\frac$ <b>%{x}</b>"


@dataclasses.dataclass(frozen=True)
class Step:
    """A span in MiB and seconds."""

    name: str
    phase: PhaseName
    seconds: float
    peak: float
    end: float
    step: int | None = None


TIED_IF = (
    Step("interpreter and imports", "start", 0.2, 46, 46),
    Step("load and resolve the graph", "parse", 0.7, 825, 563),
    Step("prepare the graph", "optimize", 0.02, 563, 563),
    Step("EliminateIdentity", "optimize", 0.03, 563, 563, 1),
    Step("ConstantFolding", "constant_fold", 0.7, 1563, 1063, 1),
    Step("between transformers", "optimize", 0.05, 1063, 1063),
    Step("ConstantFolding", "constant_fold", 0.2, 1070, 1063, 2),
    Step("save initializers", "initialize", 0.01, 1063, 1063),
    Step("kernels and prepacking", "prepack", 0.3, 1563, 1563),
    Step("first run", "first_run", 0.035, 1579, 1579),
    Step("runs", "steady", 0.28, 1579, 1579),
)


def tied_if() -> Profile:
    """Return the profile of the tied weight, as a complete measurement gives it."""
    return build(TIED_IF, weights=500, runs=10)


GENERATED = (
    *TIED_IF[:-2],
    Step("prompt", "prefill", 0.4, 1700, 1600),
    Step("steps of one token", "decode", 0.28, 1640, 1620),
)


def generated() -> Profile:
    """Return the profile of a decoder that was run with a prompt of 512 tokens and ten more."""
    profile = build(GENERATED, weights=500, runs=10)
    cache = KeyValueCache(
        tensors=8, token_bytes=24_576, layers=4, heads=12, head_size=64, element_bytes=4
    )
    generation = Generation(
        feed=("present.*=past_key_values.*",),
        found_by="names",
        prefill_tokens=512,
        steps=10,
        cache=cache,
        max_tokens=1024,
        max_tokens_source="genai_config.json",
        prefill_cache_bytes=cache.bytes_at(512),
        cache_bytes=cache.bytes_at(522),
        growth_bytes_per_token=30_000.0,
    )
    outcome = Outcome(status="completed", phase="decode", message="")
    return msgspec.structs.replace(profile, generation=generation, outcome=outcome)


def build(
    steps: Sequence[Step],
    *,
    name: str = "tied_if.onnx",
    weights: float | None = 500,
    runs: int = 0,
    kind: PeakKind = "exact",
    outcome: Outcome | None = None,
    samples_a_span: int = 40,
    split: bool = True,
    notes: tuple[str, ...] = (),
    baseline: float = 46,
) -> Profile:
    """Return a profile whose phases, spans, samples and totals all follow from `steps`."""
    spans = _spans(steps, kind)
    phases = _phases(spans, split)
    later = [phase for phase in phases if phase.name != "start"] or list(phases)
    peak = max(later, key=lambda phase: phase.peak_rss_bytes, default=None)
    last = later[-1].end if later else _memory(round(baseline * MIB), split)
    complete = outcome is None and runs > 0
    return Profile(
        schema=PROFILE_SCHEMA,
        model=Model(
            path=f"models/{name}",
            file_bytes=500 * MIB,
            external_bytes=0,
            weight_bytes=None if weights is None else round(weights * MIB),
            weight_count=None if weights is None else 3,
            node_count=12,
            ir_version=10,
            opsets={"": 21},
        ),
        environment=Environment(
            memdiag="0.1.0",
            onnxruntime="1.31.1",
            python="3.11.2",
            platform="Linux-6.1-x86_64",
            cpu="AMD EPYC",
            cpu_count=2,
            memory_bytes=8 * 1024 * MIB,
        ),
        session=Session(
            options={"intra_op_num_threads": "2", "session.disable_prepacking": "0"},
            environment={"MALLOC_ARENA_MAX": "2"},
            providers=("CPUExecutionProvider",),
            disabled_optimizers=(),
            load_from="path",
            runs=runs or None,
        ),
        inputs=(
            Input(
                name="ids",
                dtype="int64",
                shape=(1, 16),
                source="generated",
                note="indices within the 128000 rows of the table",
            ),
        ),
        baseline_rss_bytes=round(baseline * MIB),
        phases=phases,
        spans=spans,
        samples=_samples(spans, samples_a_span, split),
        sampling=Sampling(
            method="proc",
            count=2000,
            period_s=0.001,
            largest_gap_s=0.004,
            boundary_lag_s=0.0003,
        ),
        peak_rss_bytes=peak.peak_rss_bytes if peak else round(baseline * MIB),
        peak_phase=peak.name if peak else "start",
        peak_kind=kind,
        steady_rss_bytes=last.rss_bytes if complete else None,
        steady=last if complete else None,
        allocator_retained_bytes=6 * MIB if complete else None,
        first_run_s=0.035 if complete else None,
        runs=tuple(
            Run(
                latency_s=0.028 + 0.0001 * index,
                rss_bytes=last.rss_bytes,
                end_s=spans[-1].start_s + 0.028 * (index + 1),
                peak_rss_bytes=last.rss_bytes if kind == "exact" else None,
            )
            for index in range(runs)
        ),
        notes=notes,
        outcome=outcome or Outcome(status="completed", phase="steady", message=""),
    )


def failed() -> Profile:
    """Return a profile that ended in parse, a few samples in."""
    message = "Load model from broken.onnx failed: Protobuf parsing failed."
    outcome = Outcome(status="failed", phase="parse", message=message)
    steps = (TIED_IF[0], Step("load and resolve the graph", "parse", 0.01, 310, 290))
    return build(steps, name="broken.onnx", outcome=outcome, weights=None, samples_a_span=3)


def killed() -> Profile:
    """Return a profile that the system ended in constant folding; the last sample reads zero."""
    outcome = Outcome(
        status="killed", phase="constant_fold", message="the system ended it", cause="sigkill"
    )
    profile = build(TIED_IF[:5], outcome=outcome)
    columns = profile.samples
    gone = Samples(
        t_s=(*columns.t_s, columns.t_s[-1] + 0.001),
        rss_bytes=(*columns.rss_bytes, 0),
        anonymous_bytes=(*columns.anonymous_bytes, 0),
        file_and_shared_bytes=(*columns.file_and_shared_bytes, 0),
    )
    return msgspec.structs.replace(profile, samples=gone)


def with_shared() -> Profile:
    """Return the tied weight with shared memory from the end of loading on."""
    profile = tied_if()
    columns = profile.samples
    shared = tuple(SHARED_MIB * MIB if t_s > 1 else 0 for t_s in columns.t_s)
    samples = msgspec.structs.replace(columns, shared_bytes=shared)
    return msgspec.structs.replace(profile, samples=samples)


def not_run() -> Profile:
    """Return a session that was created and, as asked, not run."""
    return build(TIED_IF[:9])


def sampled() -> Profile:
    """Return the tied weight as a system without an exact high-water mark shows it."""
    return build(TIED_IF, runs=10, kind="sampled", split=False)


def nothing_seen() -> Profile:
    """Return a profile without a single phase, span or sample."""
    outcome = Outcome(status="failed", phase="start", message="no interpreter")
    return build((), outcome=outcome, weights=None)


def tiny() -> Profile:
    """Return a session of 20 ms with 64 KiB of weights."""
    shares = {"interpreter and imports": 0.012, "load and resolve the graph": 0.001}
    steps = tuple(
        Step(step.name, step.phase, shares.get(step.name, 0.0007), low, low - 0.1, step.step)
        for step, low in zip(
            TIED_IF, (46, 46.6, 46.6, 46.7, 46.8, 46.8, 46.8, 46.9, 47, 48.5, 48.5), strict=True
        )
    )
    return build(steps, name="tiny.onnx", weights=0.0625, runs=10, baseline=45.9)


def uneven() -> Profile:
    """Return phases from a millisecond to a minute."""
    seconds = {"parse": 0.004, "constant_fold": 0.9, "prepack": 0.2, "first_run": 6.0, "steady": 60}
    steps = tuple(
        dataclasses.replace(step, seconds=seconds.get(step.phase, 0.002)) for step in TIED_IF
    )
    return build(steps, name="uneven.onnx", runs=10)


def hostile() -> Profile:
    """Return a profile whose every name tries to be something else."""
    outcome = Outcome(status="failed", phase="steady", message=f"{HOSTILE}\n\x1b[31mred\u202e")
    steps = tuple(dataclasses.replace(step, name=f"{HOSTILE} {step.name}") for step in TIED_IF)
    profile = build(
        steps, name=f"x{HOSTILE.replace('/', '')}.onnx", outcome=outcome, notes=(HOSTILE,)
    )
    entry = Input(name=HOSTILE, dtype="float32", shape=None, source="given", note=HOSTILE)
    session = msgspec.structs.replace(
        profile.session, options={HOSTILE: HOSTILE}, environment={"X": "</SCRIPT>"}
    )
    return msgspec.structs.replace(profile, inputs=(entry,), session=session)


def long(count: int = 100_000) -> Profile:
    """Return a profile with `count` samples that all differ, and one spike among them."""
    profile = tied_if()
    rss = [600 * MIB + index % 7919 * 4096 for index in range(count)]
    rss[count * 2 // 3] = 1579 * MIB
    samples = Samples(
        t_s=tuple(round(index * 2.3 / count, 6) for index in range(count)),
        rss_bytes=tuple(rss),
        anonymous_bytes=tuple(size - FILE_MIB * MIB for size in rss),
        file_and_shared_bytes=(FILE_MIB * MIB,) * count,
    )
    return msgspec.structs.replace(profile, samples=samples)


def _memory(rss: int, split: bool) -> Memory:
    file = min(FILE_MIB * MIB, rss)
    return Memory(
        rss_bytes=rss,
        anonymous_bytes=rss - file if split else None,
        file_bytes=file if split else None,
        shared_bytes=0 if split else None,
    )


def _spans(steps: Sequence[Step], kind: PeakKind) -> tuple[Span, ...]:
    spans = []
    now, rss = 0.0, 0
    for step in steps:
        end = round(step.end * MIB)
        spans.append(
            Span(
                name=step.name,
                phase=step.phase,
                step=step.step,
                modified=None if step.step is None else True,
                start_s=round(now, 6),
                end_s=round(now + step.seconds, 6),
                start_rss_bytes=rss,
                net_rss_bytes=end - rss,
                peak_rss_bytes=max(round(step.peak * MIB), rss, end),
                peak_kind=kind,
            )
        )
        now += step.seconds
        rss = end
    return tuple(spans)


def _phases(spans: Sequence[Span], split: bool) -> tuple[Phase, ...]:
    phases = []
    for name in PHASES:
        own = [span for span in spans if span.phase == name]
        if not own:
            continue
        first, last = own[0], own[-1]
        phases.append(
            Phase(
                name=name,
                duration_s=sum(span.end_s - span.start_s for span in own),
                start=_memory(first.start_rss_bytes, split),
                end=_memory(last.start_rss_bytes + last.net_rss_bytes, split),
                net_rss_bytes=sum(span.net_rss_bytes for span in own),
                peak_rss_bytes=max(span.peak_rss_bytes for span in own),
                peak_kind=first.peak_kind,
            )
        )
    return tuple(phases)


def _samples(spans: Sequence[Span], count: int, split: bool) -> Samples:
    t_s: list[float] = []
    rss: list[int] = []
    for span in spans:
        end = span.start_rss_bytes + span.net_rss_bytes
        for index in range(count):
            share = index / max(1, count - 1)
            t_s.append(round(span.start_s + share * (span.end_s - span.start_s), 6))
            # Up to the peak in two thirds of the time, then down to where the span ends.
            low, high, part = (
                (span.start_rss_bytes, span.peak_rss_bytes, share * 1.5)
                if share * 1.5 <= 1
                else (span.peak_rss_bytes, end, (share * 1.5 - 1) * 2)
            )
            rss.append(round(low + (high - low) * part))
    file = [min(FILE_MIB * MIB, size) for size in rss]
    return Samples(
        t_s=tuple(t_s),
        rss_bytes=tuple(rss),
        anonymous_bytes=tuple(a - b for a, b in zip(rss, file, strict=True))
        if split
        else (None,) * len(rss),
        file_and_shared_bytes=tuple(file) if split else (None,) * len(rss),
    )
