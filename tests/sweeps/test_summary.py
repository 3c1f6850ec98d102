"""The answers of stores: series, steps, groups of findings, comparison with another store."""

from pathlib import Path

import pytest

from memdiag.records.estimate import PINNED_NOTE
from memdiag.records.sweep import Placement, Sweep
from memdiag.sweeps.summary import release_order, summarize_sweep
from tests.sweeps.stores import MIB, finding, job, write

OLD, NEW = "1.24.4", "1.32.0"


def quiet_models(count: int = 8) -> list[list[dict[str, object]]]:
    """Return jobs of models that do not change."""
    return [
        job(f"quiet{number}.onnx", release, 50) for number in range(count) for release in (OLD, NEW)
    ]


def test_a_step_between_releases_has_its_phase_and_the_others_have_none(tmp_path: Path) -> None:
    grown = [
        job("grown.onnx", OLD, 100, phases={"parse": 60, "prepack": 100, "steady": 90}),
        job("grown.onnx", NEW, 140, phases={"parse": 60, "prepack": 140, "steady": 130}),
    ]
    sweep = summarize_sweep(write(tmp_path, [*quiet_models(), *grown]))
    assert sweep.releases == (OLD, NEW)
    assert len(sweep.series) == 9
    (series,) = [each for each in sweep.series if each.steps]
    assert series.model == "grown.onnx"
    assert [(s.figure, s.bytes, s.phase) for s in series.steps] == [
        ("peak", 40 * MIB, "prepack"),
        ("steady", 40 * MIB, "prepack"),
    ]
    assert series.newest.peak_phase == "prepack"
    assert series.newest.peak_bytes == 140 * MIB  # above the baseline
    assert not sweep.regressions  # there is no store to compare with


def test_releases_are_in_order_with_candidates_before_their_release(tmp_path: Path) -> None:
    releases = ["", "1.9.0", "1.10.0", "1.32.0.dev20260101", "1.32.0rc1", "1.32.0", "1.32.0.post1"]
    assert sorted(reversed(releases), key=release_order) == releases
    jobs = [job("a.onnx", release, 10 + n) for n, release in enumerate(reversed(releases))]
    (series,) = summarize_sweep(write(tmp_path, jobs)).series
    assert [point.onnxruntime for point in series.points] == releases


def test_models_sizes_options_and_machines_are_series_of_their_own(tmp_path: Path) -> None:
    jobs = [
        job("a.onnx", OLD, 10),
        job("a.onnx", OLD, 20, dims="batch=4"),
        job("a.onnx", OLD, 30, options="enable_mem_pattern=0", key="x"),
        job("a.onnx", OLD, 40, machine="Linux aarch64", key="y"),
        job("b.onnx", OLD, 50, address=""),
    ]
    sweep = summarize_sweep(write(tmp_path, jobs))
    assert len(sweep.series) == 5
    assert sweep.notes == (
        "Figures of different classes of machines are not compared: Linux aarch64,"
        " Linux x86_64 avx2 glibc.",
        PINNED_NOTE,
    )
    failed = [job("a.onnx", OLD, None, sentence="a.onnx: the file ends early.")]
    assert summarize_sweep(write(tmp_path / "failed", failed)).notes == ()


def test_a_model_in_another_folder_is_the_same_if_name_and_content_are(tmp_path: Path) -> None:
    jobs = [
        job("a.onnx", OLD, 10, day=1),
        job("a.onnx", NEW, 10, day=2, address="elsewhere/a.onnx"),
        job("a.onnx", NEW, 10, day=3, address="elsewhere/a.onnx", digest="changed"),
        job("a.onnx", NEW, 10, day=4, address="third/a.onnx", digest="of another model"),
        job("b.onnx", NEW, 10, day=5, digest="digest of a.onnx"),
    ]
    sweep = summarize_sweep(write(tmp_path, jobs))
    assert [(each.address, len(each.points)) for each in sweep.series] == [
        ("elsewhere/a.onnx", 3),
        ("third/a.onnx", 1),
        ("zoo/b.onnx", 1),
    ]


def test_a_failure_is_a_point_without_figures(tmp_path: Path) -> None:
    jobs = [
        job("a.onnx", OLD, 10),
        job("a.onnx", NEW, None, sentence="a.onnx: the file ends early."),
    ]
    (series,) = summarize_sweep(write(tmp_path, jobs)).series
    failed = series.points[1]
    assert (failed.is_failed, failed.sentence, failed.peak_bytes) == (
        True,
        "a.onnx: the file ends early.",
        None,
    )
    assert series.newest == series.points[0]


def test_findings_are_grouped_at_the_newest_point_of_each_model(tmp_path: Path) -> None:
    jobs = [
        job("a.onnx", OLD, 10),
        job("a.onnx", NEW, 10),
        job("b.onnx", NEW, 10),
        job("b.onnx", NEW, 20, dims="batch=4"),
    ]
    findings = [
        finding("a.onnx", OLD, "duplicate-weights", 70),
        finding("a.onnx", NEW, "shared-weight-transposed", 5),
        finding("a.onnx", NEW, "shared-weight-transposed", 2),
        finding("b.onnx", NEW, "shared-weight-transposed", 9, peak=12),
        finding("b.onnx", NEW, "shared-weight-transposed", 9) | {"key": "b.onnx-1.32.0-batch=4-0"},
        finding("b.onnx", NEW, "folding-peak", 0, peak=30),
    ]
    sweep = summarize_sweep(write(tmp_path, jobs, findings))
    groups = [(g.rule, g.model_count, g.steady_bytes, g.peak_bytes) for g in sweep.findings]
    assert groups == [
        ("shared-weight-transposed", 2, 16 * MIB, 12 * MIB),
        ("folding-peak", 1, 0, 30 * MIB),
    ]
    assert [model.model for model in sweep.findings[0].models] == ["b.onnx", "a.onnx"]
    assert [series.avoidable_bytes for series in sweep.series] == [7 * MIB, 9 * MIB, 9 * MIB]


def test_only_steps_after_the_other_store_are_regressions(tmp_path: Path) -> None:
    before = [job("a.onnx", "1.22.1", 50), job("a.onnx", OLD, 90), job("b.onnx", OLD, 10)]
    after = [job("a.onnx", NEW, 90), job("b.onnx", NEW, 25)]
    reference = write(tmp_path / "reference", [*before, *quiet_models()])
    sweep = summarize_sweep(write(tmp_path / "new", after), against=reference)
    assert [(s.model, step.figure) for s, step in sweep.regressions] == [
        ("b.onnx", "peak"),
        ("b.onnx", "steady"),
    ]
    assert len(sweep.series[0].steps) == 2  # of a.onnx, in the other store
    assert {point.peak_phase for each in sweep.series for point in each.points} == {"prepack"}


def test_a_step_before_all_points_of_the_other_store_is_no_regression(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", [job("a.onnx", "1.33.0", 90)])
    store = write(tmp_path / "new", [job("a.onnx", OLD, 50), job("a.onnx", NEW, 90)])
    sweep = summarize_sweep(store, against=reference)
    assert len(sweep.series[0].steps) == 2
    assert not sweep.regressions


def test_a_store_is_compared_with_its_own_earlier_jobs_by_the_new_keys(tmp_path: Path) -> None:
    jobs = [job("a.onnx", OLD, 50), job("a.onnx", NEW, 90), *quiet_models()]
    store = write(tmp_path, jobs)
    new = {"a.onnx-1.32.0--0"}
    assert len(summarize_sweep(store, against=store, new_keys=new).regressions) == 2
    assert not summarize_sweep(store, against=store, new_keys=set()).regressions


def test_only_requested_jobs_are_judged(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", [job("a.onnx", OLD, 50), *quiet_models()])
    grown = [job("a.onnx", NEW, 90), job("a.onnx", NEW, 90, day=1)]
    earlier, again = (rows[0]["key"] for rows in grown)
    store = write(tmp_path / "store", [*grown, job("other.onnx", NEW, 90)])

    def judged(*requested: str) -> Sweep:
        return summarize_sweep(store, against=reference, requested_keys=requested)

    for keys in ((earlier,), (again,)):  # the second one is beyond the step as well
        found = judged(*keys)
        assert {point.key for _, point in found.requested_jobs} == set(keys)
        assert {s.judged_point(step).key for s, step in found.regressions} == set(keys)
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
    changed = [job("0.onnx", "1.20.1", 94), *others]
    calm = summarize_sweep(write(tmp_path / "calm", changed))
    assert calm.noise_share is None
    assert [each.model for each in calm.series if each.steps] == ["0.onnx"]


def test_a_step_at_which_the_model_changed_is_marked(tmp_path: Path) -> None:
    jobs = [
        job("a.onnx", OLD, 50, day=1),
        job("a.onnx", OLD, 50, day=2),
        job("a.onnx", OLD, 90, day=3, digest="other"),
    ]
    (series,) = summarize_sweep(write(tmp_path, [*jobs, *quiet_models()])).series[:1]
    assert {step.is_model_changed for step in series.steps} == {True}
    assert {step.key for step in series.steps} == {"a.onnx-1.24.4--3"}


def test_several_batches_are_one_store_and_an_empty_one_has_no_answers(tmp_path: Path) -> None:
    write(tmp_path, [job("a.onnx", OLD, 50)])
    write(tmp_path, [job("b.onnx", OLD, 50)], batch="1")
    assert [each.model for each in summarize_sweep(tmp_path).series] == ["a.onnx", "b.onnx"]
    assert summarize_sweep(tmp_path / "nothing") == Sweep(store=str(tmp_path / "nothing"))


def test_the_placement_is_made_from_the_answers(tmp_path: Path) -> None:
    store = write(tmp_path, [job("a.onnx", OLD, 50)])
    placed = Placement(machines=(), margin=0.1)
    seen: list[Sweep] = []

    def place(sweep: Sweep) -> Placement:
        seen.append(sweep)
        return placed

    assert summarize_sweep(store, place=place).placement is placed
    assert [each.placement for each in seen] == [None]


def test_a_series_refuses_a_step_at_a_point_that_it_lacks(tmp_path: Path) -> None:
    jobs = [job("a.onnx", OLD, 50), job("a.onnx", NEW, 90), *quiet_models()]
    series = summarize_sweep(write(tmp_path, jobs)).series[0]
    with pytest.raises(ValueError, match="a step is at a point that its series does not have"):
        type(series)(
            **{name: getattr(series, name) for name in ("model", "address", "machine", "steps")},
            points=series.points[:1],
        )


def test_the_same_models_in_another_folder_are_compared(tmp_path: Path) -> None:
    def here(name: str, digest: str) -> list[dict[str, object]]:
        return job(name, NEW, 10, address=f"other/{name}", digest=digest)

    reference = write(
        tmp_path / "old",
        [
            job("changed.onnx", OLD, 10, digest="1"),
            job("renamed.onnx", OLD, 10, digest="2"),
            job("gone.onnx", OLD, 10, digest="3"),
            job("twice.onnx", OLD, 10, digest="4"),
            job("twice.onnx", OLD, 10, digest="5", address="zoo/b/twice.onnx", day=1),
        ],
    )
    store = write(
        tmp_path / "new",
        [
            here("changed.onnx", digest="11"),
            here("name.onnx", digest="2"),
            here("twice.onnx", digest="44"),
        ],
    )
    sweep = summarize_sweep(store, against=reference)
    compared = {each.model: each.address for each in sweep.series if each.is_compared}
    assert compared == {"changed.onnx": "other/changed.onnx", "name.onnx": "other/name.onnx"}
    assert not sweep.compares_nothing
    only_other = write(tmp_path / "else", [job("x.onnx", OLD, 10)])
    assert summarize_sweep(store, against=only_other).compares_nothing
