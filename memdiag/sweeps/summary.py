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
        earlier = {row["key"]: row for row in _job_rows(against)} if against != store else rows
        new_keys = rows.keys() - earlier.keys() if new_keys is None else new_keys
        if against != store:
            earlier = _rows_with_present_names(earlier, list(rows.values()))
        rows = {**earlier, **rows}
    new_keys = frozenset(new_keys or ()) if against is not None else frozenset()
    stores = [store] if against is None or against == store else [store, against]
    if requested_keys is None:
        requested_keys = rows.keys()
    all_series = _sorted_series(
        rows.values(), new_keys, frozenset(requested_keys), _peak_phases(stores, rows)
    )
    share = _store_noise_share(all_series)
    all_series = _series_with_steps(all_series, share, stores)
    newest_keys = {series.newest.key for series in all_series if not series.newest.is_failed}
    wastes = _wastes_by_rule(store, newest_keys)
    all_series = [_series_with_waste(series, wastes) for series in all_series]
    releases = {point.onnxruntime for series in all_series for point in series.points}
    sweep = Sweep(
        store=str(store),
        against="" if against is None else str(against),
        releases=tuple(sorted(releases, key=release_order)),
        series=tuple(all_series),
        findings=_finding_groups(all_series, wastes),
        noise_share=share,
        notes=_coverage_notes(all_series),
    )
    if place is None:
        return sweep
    return msgspec.structs.replace(sweep, placement=place(sweep))


def _row_batches(
    store: Path, name: str, columns: Collection[str], filter: Expression | None = None
) -> Iterator[RecordBatch]:
    """Yield the rows of the data set `name` of `store`, if there are any.

    Raises:
        RecordError: they cannot be read.
    """
    pa = require_pyarrow()
    import pyarrow.dataset as ds

    folder = store / name
    files = list(folder.rglob("*.parquet"))
    irregular = next((path for path in files if not path.is_file()), None)
    if irregular is not None:
        raise RecordError(f"{irregular}: not a regular file. Remove it.")
    keys = pa.schema([("onnxruntime", pa.string()), ("machine", pa.string())])
    hive = ds.partitioning(keys, flavor="hive")
    if files:
        with row_errors(store):
            dataset = ds.dataset(folder, format="parquet", partitioning=hive)
            yield from dataset.to_batches(columns=list(columns), filter=filter)


def _job_rows(store: Path) -> list[dict[str, Any]]:
    """Return the row of each job of `store` as a whole (phase ``all``)."""
    require_pyarrow()
    import pyarrow.compute as pc

    batches = _row_batches(store, "profiles.parquet", _POINT_COLUMNS, pc.field("phase") == "all")
    return [row for batch in batches for row in batch.to_pylist()]


def _peak_phases(stores: Sequence[Path], keys: Collection[str]) -> dict[str, str]:
    peak_by_key: dict[str, tuple[int, str]] = {}
    for key, phase, peak, _ in chain(*(_phase_rows(store, keys) for store in stores)):
        if peak is not None and (key not in peak_by_key or peak > peak_by_key[key][0]):
            peak_by_key[key] = peak, phase
    return {key: phase for key, (_, phase) in peak_by_key.items()}


def _phase_rows(
    store: Path, keys: Collection[str]
) -> Iterator[tuple[str, str, int | None, int | None]]:
    """Yield key, phase, and peak and kept memory in bytes, of each phase of the jobs' sessions."""
    import pyarrow.compute as pc

    session_phases = ~pc.field("phase").isin(["all", "start"])
    names = ["key", "phase", "peak_bytes", "kept_bytes", "baseline_bytes"]
    for batch in _row_batches(store, "profiles.parquet", names, session_phases):
        columns = (batch.column(name).to_pylist() for name in names)
        for key, phase, peak, kept, baseline in zip(*columns, strict=True):
            if key in keys:
                yield key, phase, None if peak is None else peak - (baseline or 0), kept


def _rows_with_present_names(
    earlier: Mapping[str, dict[str, Any]], rows: Collection[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return rows of an earlier store with the names and addresses that the models have in `rows`.

    A model is identified by its address; otherwise by its name, if exactly one model has that name
    in each store; otherwise by its content.
    """
    addresses, earlier_addresses = _addresses_by_model(rows), _addresses_by_model(earlier.values())
    present_addresses = {row["address"] for row in rows}
    row_by_digest = {row["digest"]: row for row in rows if row["digest"]}
    renamed_rows = {}
    for key, row in earlier.items():
        present_row: Mapping[str, Any] = row
        name = row["model"]
        if row["address"] not in present_addresses:
            if len(addresses[name]) == len(earlier_addresses[name]) == 1:
                present_row = {"model": name, "address": next(iter(addresses[name]))}
            elif not addresses[name]:
                present_row = row_by_digest.get(row["digest"], row)
        renamed_rows[key] = {
            **row,
            "model": present_row["model"],
            "address": present_row["address"],
        }
    return renamed_rows


def _addresses_by_model(rows: Iterable[Mapping[str, Any]]) -> defaultdict[str, set[str]]:
    addresses: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        addresses[row["model"]].add(row["address"])
    return addresses


def _sorted_series(
    rows: Iterable[Mapping[str, Any]],
    new_keys: Collection[str],
    requested_keys: Collection[str],
    peak_phases: Mapping[str, str],
) -> list[SweepSeries]:
    rows_of_series = sorted(
        _rows_by_series(rows), key=lambda series_rows: _series_id(series_rows[-1])
    )
    return [
        _series_of_rows(series_rows, new_keys, requested_keys, peak_phases)
        for series_rows in rows_of_series
    ]


def _rows_by_series(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the rows of each series, by date.

    A model is the same if it has the same address, or the same name and content: sweeps of several
    machines have it in different folders.
    """
    rows_of_series: list[list[Mapping[str, Any]]] = []
    number_by_identity: dict[tuple[object, ...], int] = {}
    for row in sorted(rows, key=_started_s):
        series = _series_id(row)
        same_address = (*series, "address")
        same_content = (*series._replace(address=""), "digest", row["digest"] or series.address)
        number = number_by_identity.get(
            same_address, number_by_identity.get(same_content, len(rows_of_series))
        )
        if number == len(rows_of_series):
            rows_of_series.append([])
        rows_of_series[number].append(row)
        number_by_identity.setdefault(same_address, number)
        number_by_identity.setdefault(same_content, number)
    return rows_of_series


def _series_id(row: Mapping[str, Any]) -> _SeriesId:
    return _SeriesId(*(row[name] or "" for name in _SeriesId._fields))


def _series_of_rows(
    rows: Sequence[Mapping[str, Any]],
    new_keys: Collection[str],
    requested_keys: Collection[str],
    peak_phases: Mapping[str, str],
) -> SweepSeries:
    weights = (row["weight_bytes"] for row in reversed(rows) if row["weight_bytes"])
    return SweepSeries(
        **_series_id(rows[-1])._asdict(),
        weight_bytes=next(weights, None),
        points=tuple(
            sorted(
                (_series_point(row, new_keys, requested_keys, peak_phases) for row in rows),
                key=lambda point: (release_order(point.onnxruntime), point.started_s, point.key),
            )
        ),
    )


def _started_s(row: Mapping[str, Any]) -> float:
    started = row["started_at"]
    return started.timestamp() if isinstance(started, datetime) else 0.0


def _series_point(
    row: Mapping[str, Any],
    new_keys: Collection[str],
    requested_keys: Collection[str],
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
        is_new=row["key"] in new_keys,
        is_requested=row["key"] in requested_keys,
    )


def _bytes_above_baseline(row: Mapping[str, Any], name: str) -> int | None:
    """Return a resident set in bytes above the process before the session; None if not measured."""
    size, baseline = row[name], row["baseline_bytes"]
    return None if size is None or row["status"] != "completed" else size - (baseline or 0)


def _figure_points(series: SweepSeries, figure: SteppedFigure) -> list[tuple[SweepPoint, int]]:
    sizes = (
        (point, point.peak_bytes if figure == "peak" else point.steady_bytes)
        for point in series.points
    )
    return [(point, size) for point, size in sizes if size is not None]


def _repeated_figures(points: Sequence[tuple[SweepPoint, int]]) -> list[list[int]]:
    """Return the figures of neighbours with the same content on the same release."""
    groups = groupby(points, key=lambda entry: (entry[0].onnxruntime, entry[0].digest))
    parts = [[size for _, size in group] for _, group in groups]
    return [part for part in parts if len(part) > 1]


def _store_noise_share(all_series: Sequence[SweepSeries]) -> float | None:
    return noise_share(
        part
        for series in all_series
        for figure in _STEPPED_FIGURES
        for part in _repeated_figures(_figure_points(series, figure))
    )


def _series_with_steps(
    all_series: Sequence[SweepSeries], share: float | None, stores: Sequence[Path]
) -> list[SweepSeries]:
    """Return the series with their steps, whose phases are read from `stores`."""
    point_count = sum(len(series.points) for series in all_series)
    all_steps = [_series_steps(series, share, point_count) for series in all_series]
    keys = {key for steps in all_steps for step in steps for key in (step.before_key, step.key)}
    phases: dict[str, dict[str, tuple[int | None, int | None]]] = defaultdict(dict)
    searched_stores = stores if keys else ()
    for key, phase, peak, kept in chain(*(_phase_rows(store, keys) for store in searched_stores)):
        phases[key][phase] = peak, kept
    return [
        msgspec.structs.replace(
            series,
            steps=tuple(
                msgspec.structs.replace(
                    step, phase=_step_phase(step, phases[step.before_key], phases[step.key])
                )
                for step in steps
            ),
        )
        if steps
        else series
        for series, steps in zip(all_series, all_steps, strict=True)
    ]


def _series_steps(series: SweepSeries, share: float | None, point_count: int) -> list[SweepStep]:
    steps = []
    for figure in _STEPPED_FIGURES:
        points = _figure_points(series, figure)[-MAX_STEP_POINTS:]
        values = [size for _, size in points]
        noise = noise_bytes(values, _repeated_figures(points), share)
        for before, after in pairwise(level_segments(values, step_penalty(noise, point_count))):
            old, new = points[before.end - 1][0], points[after.start][0]
            steps.append(
                SweepStep(
                    figure=figure,
                    before_key=old.key,
                    key=new.key,
                    before_bytes=round(before.level),
                    after_bytes=round(after.level),
                    noise_bytes=math.ceil(noise),
                    is_model_changed=old.digest != new.digest,
                    is_new=new.is_new
                    and not all(point.is_new for point, _ in points[: after.start])
                    and any(point.is_requested for point, _ in points[after.start : after.end]),
                )
            )
    return steps


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
    wastes: dict[str, dict[str, _RuleWaste]] = defaultdict(dict)
    for batch in _row_batches(store, "findings.parquet", _FINDING_COLUMNS):
        for row in batch.to_pylist():
            if row["key"] not in keys:
                continue
            steady, peak = row["bytes_steady"] or 0, row["bytes_peak"] or 0
            waste = wastes[row["key"]].get(row["rule"])
            if waste is None:
                wastes[row["key"]][row["rule"]] = _RuleWaste(
                    steady, peak, row["message"] or "", row["remedy"] or ""
                )
            else:  # the costliest finding of a model comes first
                wastes[row["key"]][row["rule"]] = waste._replace(
                    steady_bytes=waste.steady_bytes + steady,
                    peak_bytes=max(waste.peak_bytes, peak),
                )
    return wastes


def _series_with_waste(
    series: SweepSeries, wastes: Mapping[str, Mapping[str, _RuleWaste]]
) -> SweepSeries:
    series_wastes = wastes.get(series.newest.key, {}).values()
    avoidable = sum(waste.steady_bytes for waste in series_wastes)
    return msgspec.structs.replace(series, avoidable_bytes=avoidable) if avoidable else series


def _finding_groups(
    all_series: Sequence[SweepSeries], wastes: Mapping[str, Mapping[str, _RuleWaste]]
) -> tuple[FindingGroup, ...]:
    """Return the groups, the costliest first. Of several series of a model the costliest counts."""
    models_by_rule: dict[str, dict[tuple[str, str], tuple[str, _RuleWaste]]] = defaultdict(dict)
    for series in all_series:
        for rule, waste in wastes.get(series.newest.key, {}).items():
            models = models_by_rule[rule]
            name = series.model, series.address
            if name not in models or waste[:2] > models[name][1][:2]:
                models[name] = series.newest.key, waste
    groups = [_finding_group(rule, models) for rule, models in models_by_rule.items()]
    return tuple(
        sorted(groups, key=lambda group: (-group.steady_bytes, -group.peak_bytes, group.rule))
    )


def _finding_group(
    rule: str, models: Mapping[tuple[str, str], tuple[str, _RuleWaste]]
) -> FindingGroup:
    def cost_order(
        entry: tuple[tuple[str, str], tuple[str, _RuleWaste]],
    ) -> tuple[int, int, tuple[str, str]]:
        name, (_, waste) = entry
        return -waste.steady_bytes, -waste.peak_bytes, name

    order = sorted(models.items(), key=cost_order)
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


def _coverage_notes(all_series: Sequence[SweepSeries]) -> tuple[str, ...]:
    """Return sentences on what the answers do not cover."""
    notes = []
    machines = sorted({series.machine for series in all_series})
    if len(machines) > 1:
        names = ", ".join(machines)
        notes.append(f"Figures of different classes of machines are not compared: {names}.")
    if any(series.newest.peak_bytes is not None for series in all_series):
        notes.append(PINNED_NOTE)
    return tuple(notes)
