"""Search for the version of onnxruntime in which a figure changed, by bisection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memdiag.api.arguments import OnProgress
from memdiag.api.comparing.column_growth import with_growth
from memdiag.api.comparing.column_plans import version_plans
from memdiag.api.comparing.side_by_side import SideBySide
from memdiag.comparison import runtimes
from memdiag.comparison.changes import column_changes
from memdiag.comparison.comparable import ComparableFigures
from memdiag.errors import ProvisionError
from memdiag.ort.runtime import release_order
from memdiag.records.comparison import Bisection, ComparisonColumn, Metric
from memdiag.runner.job import Job


@dataclass(kw_only=True)
class VersionSearch:
    """Search for the version in which `metric` changed.

    Attributes:
        job: the model and the configuration.
        metric: the figure.
        side_by_side: measures the versions.
        on_progress: called with the current step.
        growth_runs: the number of runs by which growth is judged, if growth is the figure; None for
            the default of `memdiag leak`.
        columns: the columns that were measured, by version.
    """

    job: Job
    metric: Metric
    side_by_side: SideBySide
    on_progress: OnProgress
    growth_runs: int | None = None
    columns: dict[str, ComparisonColumn] = field(default_factory=dict)

    def run(self, ends: Sequence[str]) -> tuple[list[ComparisonColumn], Bisection | None]:
        """Return the measured columns, the oldest first, and the result; None if the search ended
        early.

        `ends` are versions: no version before the oldest or after the newest of them is measured.

        Raises:
            ProvisionError: ``latest`` is an end, and the newest version is not known.
        """
        candidates = self._candidate_versions(ends)
        bisection = None
        try:
            pair = bisect_versions(candidates, self._measure_version, self._has_change)
        except KeyboardInterrupt:
            if self.side_by_side.ended_by == "completion":
                self.side_by_side.ended_by = "interrupt"
        else:
            bisection = Bisection(
                metric=self.metric,
                before=pair[0].label if pair else None,
                after=pair[1].label if pair else None,
                candidates=len(candidates),
            )
        return [
            self.columns[version] for version in candidates if version in self.columns
        ], bisection

    def _candidate_versions(self, ends: Sequence[str]) -> list[str]:
        try:
            known_versions = runtimes.registry_versions()
        except ProvisionError as error:
            known_versions = runtimes.local_versions()
            self.side_by_side.notes.append(
                f"only versions that are installed already were tried ({error})"
            )
        end_versions = [
            runtimes.latest_version()[0] if end == runtimes.LATEST_VERSION else end for end in ends
        ]
        keys = [release_order(version) for version in end_versions or known_versions]
        return [
            version
            for version in known_versions
            if min(keys) <= release_order(version) <= max(keys)
        ]

    def _measure_version(self, version: str) -> ComparisonColumn | None:
        """Return the column of `version`; None if the figure is not known."""
        if version not in self.columns:
            (plan,) = version_plans(self.job, [version], self.on_progress)
            (column,) = self.side_by_side.measure([plan])
            self.columns[version] = column
            if self.side_by_side.ended_by != "completion":
                raise KeyboardInterrupt
            if self.metric == "growth" and column.measured is not None:
                self.on_progress(f"{version}, growth over many runs")
                self.columns[version] = with_growth(
                    column, plan.job, self.side_by_side.inputs, self.growth_runs
                )
        column = self.columns[version]
        if self.metric == "growth":
            return column if column.growth is not None and column.growth.is_decided else None
        return column if column.measured is not None else None

    def _has_change(self, before: ComparisonColumn, after: ComparisonColumn) -> bool:
        changes, _ = column_changes(before, after, ComparableFigures())
        return any(change.metric == self.metric for change in changes)


def bisect_versions(
    candidates: Sequence[str],
    measure: Callable[[str], ComparisonColumn | None],
    differs: Callable[[ComparisonColumn, ComparisonColumn], bool],
) -> tuple[ComparisonColumn, ComparisonColumn] | None:
    """Return the columns of two successive versions between which a figure `differs`.

    Versions that cannot be measured are skipped. If the figure changes several times, the search
    ends at one of the changes. Returns None if the oldest and the newest version do not differ.

    Args:
        candidates: the versions, the oldest first.
        measure: measures a version; returns None if it cannot be measured.
        differs: compares the figure of two columns.
    """
    remaining = list(candidates)
    low = _first_measured_column(remaining, measure)
    high = _first_measured_column(remaining[::-1], measure)
    if low is None or high is None or not differs(low, high):
        return None
    remaining = remaining[remaining.index(low.label) + 1 : remaining.index(high.label)]
    while remaining:
        middle = remaining[len(remaining) // 2]
        column = measure(middle)
        if column is None:
            remaining.remove(middle)
        elif differs(low, column):
            high, remaining = column, remaining[: remaining.index(middle)]
        else:
            low, remaining = column, remaining[remaining.index(middle) + 1 :]
    return low, high


def _first_measured_column(
    candidates: Sequence[str], measure: Callable[[str], ComparisonColumn | None]
) -> ComparisonColumn | None:
    for version in candidates:
        column = measure(version)
        if column is not None:
            return column
    return None
