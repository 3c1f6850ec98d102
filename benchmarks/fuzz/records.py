"""Saved records of every kind, thinned out, and what is done to their JSON."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.encoding import NUMBERS, mutate_bytes
from benchmarks.fuzz.target import NAMES
from memdiag.api.load import load_profile
from memdiag.budgets.baselines import baseline_entry, with_entry
from memdiag.records.base import Record
from memdiag.records.codec import encode

_GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
PROFILE = _GALLERY / "tied_if" / "profile.json"
"""The profile of the baseline among the records."""

_LONGEST = 60
_VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"": None}, 0, -1, 0.5, -0.0, 1e-320, 1e308, 1e309),
    *(float("nan"), 10**19, -(10**19), 10**40, -(10**40), *NUMBERS),
)


def base_records() -> list[Any]:
    """Return records as JSON's values, with long lists thinned out.

    They are those of the gallery, and others that the tests build.
    """
    saved = [path.read_bytes() for path in sorted(_GALLERY.glob("*/*.json"))]
    return [_thinned(json.loads(data)) for data in (*saved, *map(encode, _built_records()))]


def _built_records() -> Iterator[Record]:
    """Yield a record of each kind that the gallery does not have, and more of those that vary."""
    from tests.reports import attributions, checks, estimates, growths, limits, runs
    from tests.sweeps import results

    yield from (make() for make in runs.ALL)
    yield from (make() for make in growths.VERDICTS.values())
    yield from (estimates.single(), estimates.grid(), estimates.measured())
    yield attributions.attribution(*attributions.SHARED)
    yield limits.program()
    yield checks.check(checks.finding())
    yield results.result()
    profile = load_profile(PROFILE)
    machine = profile.environment.machine
    yield with_entry(None, profile.model.path, machine, baseline_entry([profile]))


def _thinned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thinned(each) for key, each in value.items()}
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return [_thinned(each) for each in value]
    if isinstance(value, list):  # columns of one length stay so
        return value[:: max(1, len(value) // _LONGEST)]
    return value


def mutate_record(bases: Sequence[Any], random: Random) -> bytes:
    """Return a damaged record: one of `bases` after one to five changes."""
    record = json.loads(json.dumps(random.choice(bases)))
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        _change(record, random)
    data = json.dumps(record).encode()
    if random.random() < 0.02:
        deep = random.choice((500, 100_000))
        data = data[:-1] + b', "deep": ' + b"[" * deep + b"]" * deep + b"}"
    return mutate_bytes(data, random) if random.random() < 0.1 else data


def _change(record: Any, random: Random) -> None:
    """Change one value of `record`, in place, at a place of any depth."""
    parent: Any = None
    here = record
    key: Any = None
    while isinstance(here, dict | list) and here and (parent is None or random.random() < 0.8):
        parent, key = (
            here,
            random.choice(list(here) if isinstance(here, dict) else range(len(here))),
        )
        here = parent[key]
    if parent is None:
        return
    kind = random.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(here, list) and here:
        here += [random.choice(here)] * random.choice((1, 20, 1000))
    elif kind == 2 and isinstance(here, list):
        random.shuffle(here)
    elif isinstance(here, str):
        parent[key] = random.choice(NAMES) if random.random() < 0.8 else random.choice(_VALUES)
    elif isinstance(here, int | float) and not isinstance(here, bool) and kind < 6:
        chosen = (-here, here * 10**6, here + 1, here / 1024, here // 1024, *NUMBERS)
        parent[key] = random.choice(chosen)
    else:
        parent[key] = random.choice((*_VALUES, *NAMES))
