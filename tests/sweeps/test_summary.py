"""The answers of stores: series, steps, groups of findings, comparison with another store.

What a sweep says of each store is in ``approved/sweeps.txt``.
"""

from pathlib import Path
from typing import Any

import pytest

from memdiag.records.estimate import PINNED_NOTE
from memdiag.records.sweep import Placement, Sweep, SweepSeries
from memdiag.sweeps.summary import summarize_sweep
from memdiag.units import format_size
from tests.snapshots import assert_approved
from tests.sweeps.stores import finding, job, write

APPROVED = Path(__file__).parent / "approved" / "sweeps.txt"
OLD, NEW = "1.24.4", "1.32.0"
Jobs = list[list[dict[str, Any]]]
FAILED = job("a.onnx", NEW, None, sentence="a.onnx: the file ends early.")
GROWN = [job("a.onnx", OLD, 50), job("a.onnx", NEW, 90)]
QUIET = [job(f"quiet{number}.onnx", release, 50) for number in range(8) for release in (OLD, NEW)]
"""Jobs of models that do not change."""


def phases(release: str, peak: float) -> list[dict[str, Any]]:
    sizes = {"parse": 60, "prepack": peak, "steady": peak - 10}
    return job("grown.onnx", release, peak, phases=sizes)


def elsewhere(name: str, digest: str) -> list[dict[str, Any]]:
    return job(name, NEW, 10, address=f"other/{name}", digest=digest)


SHARED, OTHER_SIZES = "shared-weight-transposed", {"key": "b.onnx-1.32.0-batch=4-0"}
STORES: dict[str, tuple[Jobs, list[dict[str, Any]]]] = {
    "a step in a phase": ([*QUIET, phases(OLD, 100), phases(NEW, 140)], []),
    "sizes, options and machines are series of their own": (
        [
            job("a.onnx", OLD, 10),
            job("a.onnx", OLD, 20, dims="batch=4"),
            job("a.onnx", OLD, 30, options="enable_mem_pattern=0", key="x"),
            job("a.onnx", OLD, 40, machine="Linux aarch64", key="y"),
            job("b.onnx", OLD, 50, address=""),
        ],
        [],
    ),
    "the same name and content in another folder": (
        [
            job("a.onnx", OLD, 10, day=1),
            job("a.onnx", NEW, 10, day=2, address="elsewhere/a.onnx"),
            job("a.onnx", NEW, 10, day=3, address="elsewhere/a.onnx", digest="changed"),
            job("a.onnx", NEW, 10, day=4, address="third/a.onnx", digest="of another model"),
            job("b.onnx", NEW, 10, day=5, digest="digest of a.onnx"),
        ],
        [],
    ),
    "a failure after a point": ([job("a.onnx", OLD, 10), FAILED], []),
    "nothing but a failure": ([FAILED], []),
    "findings at the newest point of each model": (
        [
            *(job("a.onnx", OLD, 10), job("a.onnx", NEW, 10), job("b.onnx", NEW, 10)),
            job("b.onnx", NEW, 20, dims="batch=4"),
        ],
        [
            finding("a.onnx", OLD, "duplicate-weights", 70),
            finding("a.onnx", NEW, SHARED, 5),
            finding("a.onnx", NEW, SHARED, 2),
            finding("b.onnx", NEW, SHARED, 9, peak=12),
            finding("b.onnx", NEW, SHARED, 9) | OTHER_SIZES,
            finding("b.onnx", NEW, "folding-peak", 0, peak=30),
        ],
    ),
    "the model changed at a step": (
        [
            *(job("a.onnx", OLD, 50, day=1), job("a.onnx", OLD, 50, day=2)),
            *(job("a.onnx", OLD, 90, day=3, digest="other"), *QUIET),
        ],
        [],
    ),
}
COMPARED: dict[str, tuple[Jobs, Jobs]] = {
    "only steps after the other store are regressions": (
        [job("a.onnx", NEW, 90), job("b.onnx", NEW, 25)],
        [job("a.onnx", "1.22.1", 50), job("a.onnx", OLD, 90), job("b.onnx", OLD, 10), *QUIET],
    ),
    "a step before all points of the other store": (GROWN, [job("a.onnx", "1.33.0", 90)]),
    "the same models in another folder": (
        [elsewhere("changed.onnx", "11"), elsewhere("name.onnx", "2"), elsewhere("t.onnx", "44")],
        [
            job("changed.onnx", OLD, 10, digest="1"),
            job("renamed.onnx", OLD, 10, digest="2"),
            job("gone.onnx", OLD, 10, digest="3"),
            job("t.onnx", OLD, 10, digest="4"),
            job("t.onnx", OLD, 10, digest="5", address="zoo/b/t.onnx", day=1),
        ],
    ),
    "other models": ([elsewhere("name.onnx", "2")], [job("x.onnx", OLD, 10)]),
}


def series_lines(series: SweepSeries) -> list[str]:
    settings = ", ".join(filter(None, (series.dims, series.options, series.machine)))
    lines = [f"{series.model} at {series.address} ({settings})"]
    for point in series.points:
        size = "failed" if point.peak_bytes is None else format_size(point.peak_bytes)
        where = f" in {point.peak_phase}" if point.peak_phase else ""
        newest = " (newest)" if point == series.newest else ""
        lines.append(f"  {point.onnxruntime}: {size}{where}{newest} {point.sentence}")
    for step in series.steps:
        changed = ", the model changed" if step.is_model_changed else ""
        size = format_size(step.bytes, signed=True)
        lines.append(f"  step of {step.figure}: {size} in {step.phase} at {step.key}{changed}")
    if series.avoidable_bytes:
        lines.append(f"  {format_size(series.avoidable_bytes)} avoidable")
    return [*lines, "  compared"] if series.is_compared else lines


def sweep_lines(title: str, sweep: Sweep) -> list[str]:
    lines = [f"{title}: {', '.join(sweep.releases)}"]
    for series in sweep.series:
        if not series.model.startswith("quiet"):
            lines += [f"  {line}" for line in series_lines(series)]
    for group in sweep.findings:
        sizes = f"{format_size(group.steady_bytes)}, peak {format_size(group.peak_bytes)}"
        models = ", ".join(model.model for model in group.models)
        lines.append(f"  {group.rule}: {sizes} in {group.model_count} models ({models})")
    lines += [f"  regression: {series.model}, {step.figure}" for series, step in sweep.regressions]
    notes = ("malloc is pinned" if note == PINNED_NOTE else note for note in sweep.notes)
    lines += [f"  note: {note}" for note in notes]
    return [*lines, "  compares nothing"] if sweep.compares_nothing else lines


def test_every_store_has_its_answers(tmp_path: Path) -> None:
    lines: list[str] = []
    for title, (jobs, findings) in STORES.items():
        sweep = summarize_sweep(write(tmp_path / title, jobs, findings))
        assert not sweep.regressions  # there is no store to compare with
        lines += sweep_lines(title, sweep)
    for title, (jobs, others) in COMPARED.items():
        reference = write(tmp_path / title / "reference", others)
        store = write(tmp_path / title / "new", jobs)
        lines += sweep_lines(title, summarize_sweep(store, against=reference))
    assert_approved("\n".join(lines), APPROVED)


def test_quiet_models_have_no_steps(tmp_path: Path) -> None:
    series = summarize_sweep(write(tmp_path, QUIET)).series
    assert [(each.steps, len(each.points)) for each in series] == [((), 2)] * 8


def test_points_are_in_order_of_their_releases(tmp_path: Path) -> None:
    releases = ["1.9.0", "1.10.0", "1.32.0rc1", "1.32.0"]
    jobs = [job("a.onnx", release, 10 + n) for n, release in enumerate(reversed(releases))]
    (series,) = summarize_sweep(write(tmp_path, jobs)).series
    assert [point.onnxruntime for point in series.points] == releases


def test_a_store_is_compared_with_its_own_earlier_jobs_by_the_new_keys(tmp_path: Path) -> None:
    store = write(tmp_path, [*GROWN, *QUIET])
    new = {"a.onnx-1.32.0--0"}
    assert len(summarize_sweep(store, against=store, new_keys=new).regressions) == 2
    assert not summarize_sweep(store, against=store, new_keys=set()).regressions


def test_only_requested_jobs_are_judged(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", [GROWN[0], *QUIET])
    grown = [job("a.onnx", NEW, 90), job("a.onnx", NEW, 90, day=1)]
    store = write(tmp_path / "store", [*grown, job("other.onnx", NEW, 90)])

    def judged(key: str) -> Sweep:
        return summarize_sweep(store, against=reference, requested_keys=[key])

    for key in (rows[0]["key"] for rows in grown):  # the second one is beyond the step as well
        found = judged(key)
        assert {point.key for _, point in found.requested_jobs} == {key}
        assert {s.judged_point(step).key for s, step in found.regressions} == {key}
        assert not found.compares_nothing
    other = judged("other.onnx-1.32.0--0")
    assert not other.regressions
    assert other.compares_nothing  # although a.onnx is in both stores
    assert len(summarize_sweep(store, against=reference).regressions) == 2


def test_the_noise_comes_from_repeated_jobs_and_not_from_releases(tmp_path: Path) -> None:
    repeated = [
        job(f"{number}.onnx", OLD, 100 + 2 * day, day=day)
        for number in range(12)
        for day in range(2)
    ]
    noisy = summarize_sweep(write(tmp_path / "noisy", [*repeated, job("0.onnx", NEW, 106, day=3)]))
    assert noisy.noise_share == pytest.approx(2 / 102 / 1.146, rel=0.01)
    assert not any(each.steps for each in noisy.series)
    others = [job(f"{n}.onnx", release, 100) for n in range(12) for release in (OLD, NEW)]
    calm = summarize_sweep(write(tmp_path / "calm", [job("0.onnx", "1.20.1", 94), *others]))
    assert calm.noise_share is None
    assert [each.model for each in calm.series if each.steps] == ["0.onnx"]


def test_several_batches_are_one_store_and_an_empty_one_has_no_answers(tmp_path: Path) -> None:
    write(tmp_path, [job("a.onnx", OLD, 50)])
    write(tmp_path, [job("b.onnx", OLD, 50)], batch="1")
    assert [each.model for each in summarize_sweep(tmp_path).series] == ["a.onnx", "b.onnx"]
    assert summarize_sweep(tmp_path / "nothing") == Sweep(store=str(tmp_path / "nothing"))


def test_the_placement_is_made_from_the_answers(tmp_path: Path) -> None:
    seen: list[Sweep] = []
    placed = Placement(machines=(), margin=0.1)

    def place(sweep: Sweep) -> Placement:
        seen.append(sweep)
        return placed

    assert summarize_sweep(write(tmp_path, GROWN), place=place).placement is placed
    assert [each.placement for each in seen] == [None]


def test_a_series_refuses_a_step_at_a_point_that_it_lacks(tmp_path: Path) -> None:
    series = summarize_sweep(write(tmp_path, [*GROWN, *QUIET])).series[0]
    fields = {name: getattr(series, name) for name in ("model", "address", "machine", "steps")}
    with pytest.raises(ValueError, match="a step is at a point that its series does not have"):
        SweepSeries(**fields, points=series.points[:1])
