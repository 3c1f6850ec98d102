"""The search for the version of onnxruntime in which a figure jumped."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from memdiag.api.comparing.side_by_side import SideBySide
from memdiag.api.comparing.subjects import Say, versions
from memdiag.comparison import runtimes
from memdiag.comparison.bisection import bisect
from memdiag.comparison.changes import changes
from memdiag.comparison.comparable import Comparable
from memdiag.errors import ProvisionError
from memdiag.records.comparison import Bisection, Column, Metric
from memdiag.runner.job import Job


@dataclass(kw_only=True)
class VersionSearch:
    """Looks for the jump of `metric`, and keeps every column that it measured."""

    job: Job
    metric: Metric
    bench: SideBySide
    say: Say
    columns: dict[str, Column] = field(default_factory=dict)

    def run(self, ends: Sequence[str]) -> tuple[list[Column], Bisection | None]:
        """Return the columns that were measured, the oldest first, and what was found.

        `ends` are versions: it is looked at none before the first or after the last of them. What
        was found is None where the search was interrupted.

        Raises:
            ProvisionError: the newest version is an end, and not known.
        """
        candidates = self._candidates(ends)
        bisection = None
        try:
            found = bisect(candidates, self._measure, self._differs)
        except KeyboardInterrupt:
            self.bench.interrupted = True
        else:
            bisection = Bisection(
                metric=self.metric,
                before=found[0].label if found else None,
                after=found[1].label if found else None,
                candidates=len(candidates),
            )
        return [self.columns[each] for each in candidates if each in self.columns], bisection

    def _candidates(self, ends: Sequence[str]) -> list[str]:
        try:
            known = runtimes.versions()
        except ProvisionError as error:
            known = runtimes.available()
            self.bench.notes.append(
                f"only versions that are installed already were tried ({error})"
            )
        named = [runtimes.latest()[0] if one == runtimes.LATEST else one for one in ends]
        ages = [runtimes.in_order(one) for one in named or known]
        return [one for one in known if min(ages) <= runtimes.in_order(one) <= max(ages)]

    def _measure(self, version: str) -> Column:
        if version not in self.columns:
            found = [*versions(self.job, [version], self.say)]
            (self.columns[version],) = self.bench.measure(found)
            if self.bench.interrupted:
                raise KeyboardInterrupt
        return self.columns[version]

    def _differs(self, before: Column, after: Column) -> bool:
        found, _ = changes(before, after, Comparable())
        return any(each.metric == self.metric for each in found)
