"""What a profile becomes in a baseline, and whether another one may be compared with it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from memdiag.budgets.copies import MOST_KEPT, held
from memdiag.budgets.figures import BUDGET_PHASES, FIGURES, late_bytes, settled
from memdiag.records.baseline import BASELINE_SCHEMA, Baseline, Taken
from memdiag.records.profile import Profile
from memdiag.units import KIB, MIB

DEFAULT_TOLERANCE = 0.02
_LEAST_GROWTH = {"growth_per_run": 64 * KIB, "copies": 0}
"""What a figure may grow by however small it is; 1 MiB where nothing is said."""
_NOT_KEPT = "process_peak"
"""The interpreter's own memory is in it, which differs from machine to machine."""


def take(profiles: Sequence[Profile]) -> Taken:
    """Return what a baseline keeps of `profiles`, each of the same model in a process of its own.

    What is told of copies and of the setup is told of the first.
    """
    profile, figures = profiles[0], settled(profiles)
    copies = held(profile.attribution) if profile.attribution else ()
    return Taken(
        onnxruntime=profile.environment.onnxruntime,
        memdiag=profile.environment.memdiag,
        setup=dict(_setup(profile)),
        figures={name: figures[name] for name in FIGURES if name in figures and name != _NOT_KEPT},
        late_bytes=late_bytes(profiles),
        copies=copies[:MOST_KEPT],
    )


def allowed(name: str, before: int, tolerance: float | None, *, late: int = 0) -> int:
    """Return what figure `name` may be where its baseline is `before`.

    Figures of phases may be off by `late` bytes, for boundaries are seen late.
    """
    share = DEFAULT_TOLERANCE if tolerance is None else tolerance
    if FIGURES[name].unit == "count":
        return before
    most = before + max(round(share * before), _LEAST_GROWTH.get(name, MIB))
    return most + late if name in BUDGET_PHASES else most


def is_same(before: Taken, now: Taken, tolerance: float | None) -> bool:
    """Return whether `now` says nothing new: the same runtime and setup, and about as much."""
    alike = (before.onnxruntime, before.setup) == (now.onnxruntime, now.setup)
    if not alike or before.figures.keys() != now.figures.keys():
        return False
    late = max(before.late_bytes, now.late_bytes)
    pairs = [(name, before.figures[name], now.figures[name]) for name in now.figures]
    return all(
        max(one, other) <= allowed(name, min(one, other), tolerance, late=late)
        for name, one, other in pairs
    )


def updated(before: Baseline | None, model: str, machine: str, taken: Taken) -> Baseline:
    """Return `before` with `taken` for `machine`; other machines keep what they have."""
    machines = dict(before.machines) if before else {}
    return Baseline(schema=BASELINE_SCHEMA, model=model, machines={**machines, machine: taken})


def differences(before: Taken, profile: Profile) -> tuple[str, ...]:
    """Return in words in what `profile` was measured otherwise than the baseline `before`.

    A difference makes comparing unsound: the figures are of something else.
    """
    now = dict(_setup(profile))
    return tuple(
        f"{name} {now.get(name) or 'as usual'} instead of {before.setup.get(name) or 'as usual'}"
        for name in sorted(before.setup.keys() | now.keys())
        if now.get(name) != before.setup.get(name)
    )


def sizes_of(before: Taken, profile: Profile) -> dict[str, int]:
    """Return the sizes of the baseline `before` that the free dimensions of `profile` differ in.

    Empty if the inputs differ in anything else, or if it is not known which dimension differs.
    """
    then = before.setup.get("inputs", "")
    found: dict[str, int] = {}
    known = {each.name: each.size for each in profile.dimensions}
    for each in profile.inputs:
        match = re.search(rf"(?:^|, ){re.escape(each.name)} {each.dtype}\[([\d, ]*)\]", then)
        sizes = [int(size) for size in match[1].split(", ") if size] if match else []
        if each.shape is None or len(sizes) != len(each.shape):
            return {}
        for axis, (size, now) in enumerate(zip(sizes, each.shape, strict=True)):
            if size == now:
                continue
            own = f"{each.name}:{axis}"
            names = [name for name, chosen in known.items() if ":" not in name and chosen == now]
            if own in known:
                names = [own]
            if len(names) != 1 or found.setdefault(names[0], size) != size:
                return {}
    return found


def _setup(profile: Profile) -> Iterator[tuple[str, str]]:
    session = profile.session
    exact = any(phase.peak_kind == "exact" for phase in profile.phases)
    said = (
        ("inputs", ", ".join(_input(*each) for each in _inputs(profile))),
        ("runs", "none" if session.runs is None else str(session.runs)),
        ("peaks", "exact" if exact else "sampled"),
        ("options", _pairs(session.options)),
        ("environment", _pairs(session.environment)),
        ("disabled optimizers", ", ".join(sorted(session.disabled_optimizers))),
        ("providers", ", ".join(session.providers)),
        ("loaded from", session.load_from),
    )
    usual = {"CPUExecutionProvider", "path"}
    yield from ((name, text) for name, text in said if text and text not in usual)


def _inputs(profile: Profile) -> list[tuple[str, str, tuple[int, ...] | None]]:
    return [(each.name, each.dtype, each.shape) for each in profile.inputs]


def _input(name: str, dtype: str, shape: tuple[int, ...] | None) -> str:
    return f"{name} {dtype}" + ("" if shape is None else f"[{', '.join(map(str, shape))}]")


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
