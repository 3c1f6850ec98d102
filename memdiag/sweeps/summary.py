"""The answers of a store: series of models with steps, groups of findings, failures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memdiag.errors import RecordError
from memdiag.ort.runtime import release_order
from memdiag.records.estimate import PINNED_NOTE
from memdiag.records.phases import PHASES
from memdiag.records.sweep import (
    FindingGroup,
    Placement,
    SteppedFigure,
    Sweep,
    SweepPoint,
    SweepSeries,
    SweepStep,
    WastingModel,
)
from memdiag.sweeps.steps import (
    MAX_STEP_POINTS,
    level_segments,
    noise_bytes,
    noise_share,
    step_penalty,
)
from memdiag.sweeps.store import require_pyarrow, row_errors

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.compute import Expression

MAX_GROUP_MODELS = 50
"""Models that a group of findings names."""

_STEPPED_FIGURES: tuple[SteppedFigure, ...] = ("peak", "steady")
_POINT_COLUMNS = (
    *("key", "model", "digest", "address", "onnxruntime", "machine", "dims", "options"),
    *("started_at", "status", "sentence", "peak_bytes", "steady_bytes", "baseline_bytes"),
    *("estimated_peak_bytes", "estimated_steady_bytes", "weight_bytes"),
    *("duration_s", "latency_s"),
)
_FINDING_COLUMNS = ("key", "rule", "bytes_steady", "bytes_peak", "message", "remedy")


class _SeriesId(NamedTuple):
    model: str
    address: str
    machine: str
    dims: str
    options: str


class _RuleWaste(NamedTuple):
    steady_bytes: int
    peak_bytes: int
    message: str
    remedy: str


def summarize_sweep(
    store: Path,
    *,
    against: Path | None = None,
    new_keys: Collection[str] | None = None,
    requested_keys: Collection[str] | None = None,
    place: Callable[[Sweep], Placement] | None = None,
) -> Sweep:
    """Return the answers of `store`.

    Args:
        store: the folder of the store.
        against: a store to compare with: its points come before those of `store`, and jobs that it
            does not have are new. It may be `store` itself, with `new_keys`.
        new_keys: the keys of the new jobs; None for those that `against` does not have.
        requested_keys: the keys of the jobs that the sweep names; None for all of the store.
        place: returns the placement for the answers without one.

    Raises:
        UsageError: pyarrow is not installed.
    """
    rows = {row["key"]: row for row in _job_rows(store)}
    if against is not None:
        known = {row["key"]: row for row in _job_rows(against)} if against != store else rows
        new_keys = rows.keys() - known.keys() if new_keys is None else new_keys
        if against != store:
            known = _rows_with_own_names(known, list(rows.values()))
        rows = {**known, **rows}
    new = frozenset(new_keys or ()) if against is not None else frozenset()
    stores = [store] if against is None or against == store else [store, against]
    requested = rows.keys() if requested_keys is None else frozenset(requested_keys)
    series = _sorted_series(rows.values(), new, requested, _peak_phases(stores, rows))
    share = _store_noise_share(series)
    series = _series_with_steps(series, share, stores)
    wastes = _wastes_by_rule(
        store, {each.newest.key for each in series if not each.newest.is_failed}
    )
    series = [_series_with_waste(each, wastes) for each in series]
    sweep = Sweep(
        store=str(store),
        against="" if against is None else str(against),
        releases=tuple(
            sorted({p.onnxruntime for s in series for p in s.points}, key=release_order)
        ),
        series=tuple(series),
        findings=_finding_groups(series, wastes),
        noise_share=share,
        notes=_coverage_notes(series),
    )
    if place is None:
        return sweep
    return msgspec.structs.replace(sweep, placement=place(sweep))


def _row_batches(
    store: Path, name: str, columns: Collection[str], filter: Expression | None = None
) -> Iterator[RecordBatch]:
    """Yield the rows of the data set `name` of `store`; none if it has none yet.

    Raises:
        RecordError: they cannot be read.
    """
    pa = require_pyarrow()
    import pyarrow.dataset as ds

    folder = store / name
    files = list(folder.rglob("*.parquet"))
    unusual = next((path for path in files if not path.is_file()), None)
    if unusual is not None:
        raise RecordError(f"{unusual}: not a regular file. Remove it.")
    keys = pa.schema([("onnxruntime", pa.string()), ("machine", pa.string())])
    hive = ds.partitioning(keys, flavor="hive")
    if files:
        with row_errors(store):
            dataset = ds.dataset(folder, format="parquet", partitioning=hive)
            yield from dataset.to_batches(columns=list(columns), filter=filter)


def _job_rows(store: Path) -> list[dict[str, Any]]:
    """Return the row of each job of `store`: the one of all phases."""
    require_pyarrow()
    import pyarrow.compute as pc

    batches = _row_batches(store, "profiles.parquet", _POINT_COLUMNS, pc.field("phase") == "all")
    return [row for batch in batches for row in batch.to_pylist()]


def _peak_phases(stores: Sequence[Path], keys: Collection[str]) -> dict[str, str]:
    found: dict[str, tuple[int, str]] = {}
    for key, phase, peak, _ in chain(*(_phase_rows(store, keys) for store in stores)):
        if peak is not None and (key not in found or peak > found[key][0]):
            found[key] = peak, phase
    return {key: phase for key, (_, phase) in found.items()}


def _phase_rows(
    store: Path, keys: Collection[str]
) -> Iterator[tuple[str, str, int | None, int | None]]:
    """Yield key, phase, peak and kept memory of the phases of the session of jobs."""
    import pyarrow.compute as pc

    wanted = ~pc.field("phase").isin(["all", "start"])
    names = ["key", "phase", "peak_bytes", "kept_bytes", "baseline_bytes"]
    for batch in _row_batches(store, "profiles.parquet", names, wanted):
        columns = (batch.column(name).to_pylist() for name in names)
        for key, phase, peak, kept, baseline in zip(*columns, strict=True):
            if key in keys:
                yield key, phase, None if peak is None else peak - (baseline or 0), kept


def _rows_with_own_names(
    known: Mapping[str, dict[str, Any]], rows: Collection[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the rows `known` of another store with the names and addresses that models have here.

    A model is that with the same address, else that with the same name, if one on either side has
    it, else that with the same content.
    """
    by_name, known_by_name = _addresses_by_model(rows), _addresses_by_model(known.values())
    here = {row["address"] for row in rows}
    by_digest = {row["digest"]: row for row in rows if row["digest"]}
    found = {}
    for key, row in known.items():
        own: Mapping[str, Any] = row
        name = row["model"]
        if row["address"] not in here:
            if len(by_name[name]) == len(known_by_name[name]) == 1:
                own = {"model": name, "address": next(iter(by_name[name]))}
            elif not by_name[name]:
                own = by_digest.get(row["digest"], row)
        found[key] = {**row, "model": own["model"], "address": own["address"]}
    return found


def _addresses_by_model(rows: Iterable[Mapping[str, Any]]) -> defaultdict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        found[row["model"]].add(row["address"])
    return found


def _sorted_series(
    rows: Iterable[Mapping[str, Any]],
    new: Collection[str],
    requested: Collection[str],
    peak_phases: Mapping[str, str],
) -> list[SweepSeries]:
    return [
        _one_series(each, new, requested, peak_phases)
        for each in sorted(_rows_by_series(rows), key=lambda each: _series_id(each[-1]))
    ]


def _rows_by_series(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the rows of each series, by date.

    A model is the same at the same address, and with the same name and content elsewhere: sweeps
    of several machines have it in other folders.
    """
    found: list[list[Mapping[str, Any]]] = []
    numbers: dict[tuple[object, ...], int] = {}
    for row in sorted(rows, key=_started_s):
        series = _series_id(row)
        same_address = (*series, "address")
        same_content = (*series._replace(address=""), "digest", row["digest"] or series.address)
        number = numbers.get(same_address, numbers.get(same_content, len(found)))
        if number == len(found):
            found.append([])
        found[number].append(row)
        numbers.setdefault(same_address, number)
        numbers.setdefault(same_content, number)
    return found


def _series_id(row: Mapping[str, Any]) -> _SeriesId:
    return _SeriesId(*(row[name] or "" for name in _SeriesId._fields))


def _one_series(
    rows: Sequence[Mapping[str, Any]],
    new: Collection[str],
    requested: Collection[str],
    peak_phases: Mapping[str, str],
) -> SweepSeries:
    weights = (row["weight_bytes"] for row in reversed(rows) if row["weight_bytes"])
    return SweepSeries(
        **_series_id(rows[-1])._asdict(),
        weight_bytes=next(weights, None),
        points=tuple(
            sorted(
                (_series_point(row, new, requested, peak_phases) for row in rows),
                key=lambda point: (release_order(point.onnxruntime), point.started_s, point.key),
            )
        ),
    )


def _started_s(row: Mapping[str, Any]) -> float:
    started = row["started_at"]
    return started.timestamp() if isinstance(started, datetime) else 0.0


def _series_point(
    row: Mapping[str, Any],
    new: Collection[str],
    requested: Collection[str],
    peak_phases: Mapping[str, str],
) -> SweepPoint:
    return SweepPoint(
        key=row["key"],
        digest=row["digest"] or "",
        onnxruntime=row["onnxruntime"] or "",
        started_s=_started_s(row),
        status=row["status"],
        sentence=row["sentence"] or "",
        peak_bytes=_bytes_above_baseline(row, "peak_bytes"),
        steady_bytes=_bytes_above_baseline(row, "steady_bytes"),
        peak_phase=peak_phases.get(row["key"], ""),
        estimated_peak_bytes=row["estimated_peak_bytes"],
        estimated_steady_bytes=row["estimated_steady_bytes"],
        duration_s=row["duration_s"],
        latency_s=row["latency_s"],
        is_new=row["key"] in new,
        is_requested=row["key"] in requested,
    )


def _bytes_above_baseline(row: Mapping[str, Any], name: str) -> int | None:
    """Return a resident set above the process before the session."""
    size, baseline = row[name], row["baseline_bytes"]
    return None if size is None or row["status"] != "completed" else size - (baseline or 0)


def _figure_points(series: SweepSeries, figure: SteppedFigure) -> list[tuple[SweepPoint, int]]:
    sizes = ((p, p.peak_bytes if figure == "peak" else p.steady_bytes) for p in series.points)
    return [(point, size) for point, size in sizes if size is not None]


def _repeated_figures(points: Sequence[tuple[SweepPoint, int]]) -> list[list[int]]:
    """Return the figures of neighbours with the same content on the same release."""
    found = groupby(points, key=lambda each: (each[0].onnxruntime, each[0].digest))
    parts = [[size for _, size in part] for _, part in found]
    return [part for part in parts if len(part) > 1]


def _store_noise_share(series: Sequence[SweepSeries]) -> float | None:
    return noise_share(
        part
        for each in series
        for figure in _STEPPED_FIGURES
        for part in _repeated_figures(_figure_points(each, figure))
    )


def _series_with_steps(
    series: Sequence[SweepSeries], share: float | None, stores: Sequence[Path]
) -> list[SweepSeries]:
    """Return the series with their steps, whose phases the `stores` show."""
    count = sum(len(each.points) for each in series)
    steps = [_series_steps(each, share, count) for each in series]
    keys = {key for found in steps for step in found for key in (step.before_key, step.key)}
    phases: dict[str, dict[str, tuple[int | None, int | None]]] = defaultdict(dict)
    searched = stores if keys else ()
    for key, phase, peak, kept in chain(*(_phase_rows(store, keys) for store in searched)):
        phases[key][phase] = peak, kept
    return [
        msgspec.structs.replace(
            each,
            steps=tuple(
                msgspec.structs.replace(
                    step, phase=_step_phase(step, phases[step.before_key], phases[step.key])
                )
                for step in found
            ),
        )
        if found
        else each
        for each, found in zip(series, steps, strict=True)
    ]


def _series_steps(series: SweepSeries, share: float | None, count: int) -> list[SweepStep]:
    found = []
    for figure in _STEPPED_FIGURES:
        points = _figure_points(series, figure)[-MAX_STEP_POINTS:]
        values = [size for _, size in points]
        noise = noise_bytes(values, _repeated_figures(points), share)
        for before, after in pairwise(level_segments(values, step_penalty(noise, count))):
            old, new = points[before.end - 1][0], points[after.start][0]
            found.append(
                SweepStep(
                    figure=figure,
                    before_key=old.key,
                    key=new.key,
                    before_bytes=round(before.level),
                    after_bytes=round(after.level),
                    noise_bytes=math.ceil(noise),
                    is_model_changed=old.digest != new.digest,
                    is_new=new.is_new
                    and not all(p.is_new for p, _ in points[: after.start])
                    and any(p.is_requested for p, _ in points[after.start : after.end]),
                )
            )
    return found


def _step_phase(
    step: SweepStep,
    before: Mapping[str, tuple[int | None, int | None]],
    after: Mapping[str, tuple[int | None, int | None]],
) -> str:
    """Return the first phase whose peak or kept memory changed by half of the step or more."""
    index = 0 if step.figure == "peak" else 1
    for phase in PHASES:
        old, new = (sizes.get(phase, (None, None))[index] for sizes in (before, after))
        if old is not None and new is not None and 2 * (new - old) / step.bytes >= 1:
            return phase
    return ""


def _wastes_by_rule(store: Path, keys: Collection[str]) -> dict[str, dict[str, _RuleWaste]]:
    """Return what the findings of jobs waste, by key and rule."""
    found: dict[str, dict[str, _RuleWaste]] = defaultdict(dict)
    for batch in _row_batches(store, "findings.parquet", _FINDING_COLUMNS):
        for row in batch.to_pylist():
            if row["key"] not in keys:
                continue
            steady, peak = row["bytes_steady"] or 0, row["bytes_peak"] or 0
            waste = found[row["key"]].get(row["rule"])
            if waste is None:
                found[row["key"]][row["rule"]] = _RuleWaste(
                    steady, peak, row["message"] or "", row["remedy"] or ""
                )
            else:  # the costliest finding of a model comes first
                found[row["key"]][row["rule"]] = waste._replace(
                    steady_bytes=waste.steady_bytes + steady,
                    peak_bytes=max(waste.peak_bytes, peak),
                )
    return found


def _series_with_waste(
    series: SweepSeries, wastes: Mapping[str, Mapping[str, _RuleWaste]]
) -> SweepSeries:
    found = wastes.get(series.newest.key, {}).values()
    avoidable = sum(waste.steady_bytes for waste in found)
    return msgspec.structs.replace(series, avoidable_bytes=avoidable) if avoidable else series


def _finding_groups(
    series: Sequence[SweepSeries], wastes: Mapping[str, Mapping[str, _RuleWaste]]
) -> tuple[FindingGroup, ...]:
    """Return the groups, the costliest first. Of the series of a model the costliest counts."""
    models: dict[str, dict[tuple[str, str], tuple[str, _RuleWaste]]] = defaultdict(dict)
    for each in series:
        for rule, waste in wastes.get(each.newest.key, {}).items():
            name = each.model, each.address
            known = models[rule].get(name)
            if known is None or waste[:2] > known[1][:2]:
                models[rule][name] = each.newest.key, waste
    groups = [_finding_group(rule, found) for rule, found in models.items()]
    return tuple(sorted(groups, key=lambda g: (-g.steady_bytes, -g.peak_bytes, g.rule)))


def _finding_group(
    rule: str, found: Mapping[tuple[str, str], tuple[str, _RuleWaste]]
) -> FindingGroup:
    order = sorted(found.items(), key=lambda each: (*(-size for size in each[1][1][:2]), each[0]))
    _, (_, costliest) = order[0]
    return FindingGroup(
        rule=rule,
        model_count=len(order),
        steady_bytes=sum(waste.steady_bytes for _, (_, waste) in order),
        peak_bytes=sum(waste.peak_bytes for _, (_, waste) in order),
        message=costliest.message,
        remedy=costliest.remedy,
        models=tuple(
            WastingModel(
                model=model,
                address=address,
                key=key,
                steady_bytes=waste.steady_bytes,
                peak_bytes=waste.peak_bytes,
            )
            for (model, address), (key, waste) in order[:MAX_GROUP_MODELS]
        ),
    )


def _coverage_notes(series: Sequence[SweepSeries]) -> tuple[str, ...]:
    """Return sentences on what the answers do not cover."""
    notes = []
    machines = sorted({each.machine for each in series})
    if len(machines) > 1:
        names = ", ".join(machines)
        notes.append(f"Figures of different classes of machines are not compared: {names}.")
    if any(each.newest.peak_bytes is not None for each in series):
        notes.append(PINNED_NOTE)
    return tuple(notes)
