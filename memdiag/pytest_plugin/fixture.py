"""The fixture ``memdiag``: measuring from within a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from memdiag.api.probe import SessionProbe
from memdiag.budgets.judging import judge, judge_probe
from memdiag.budgets.parsing import parse_budget
from memdiag.errors import UsageError
from memdiag.pytest_plugin.measuring import completed, profile
from memdiag.pytest_plugin.rows import record
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile
from memdiag.reports.views.judgement import lines


class Memdiag:
    """What the fixture offers; figures that are judged go to the summary and the test's report."""

    def __init__(self, config: pytest.Config, item: pytest.Item) -> None:
        self._config = config
        self._item = item

    def profile(
        self,
        model: str | Path,
        *,
        pinned: bool = True,
        xray: Literal["steady", "phases", "none"] = "steady",
        **options: Any,
    ) -> Profile:
        """Return the profile of `model`, whose path is from the rootdir, run in a child.

        `options` are those of `memdiag.profile`. With `pinned` what glibc keeps of freed memory
        is made to repeat. No two are measured at the same time, unless that is allowed.

        Raises:
            MemdiagError: as `memdiag.profile`.
        """
        return profile(self._config, Path(model), options, pinned=pinned, xray=xray)

    def assert_budget(self, measured: Profile | Probe | SessionProbe, **limits: Any) -> None:
        """Fail the test where a figure of `measured` is above its limit.

        `limits` are figures by name, and ``tolerance``: ``peak="1.2 GB", copies=1``.

        Raises:
            UsageError: a limit means nothing, there is none, or the figure cannot be had.
            MeasurementError: the profile is of a run that did not complete.
        """
        budget = parse_budget(limits, where="assert_budget")
        if not budget.limits:
            raise UsageError('assert_budget: no limit was given. Give one such as peak="1.2 GB".')
        if isinstance(measured, SessionProbe):
            measured = measured.result
        if isinstance(measured, Probe):
            judgement = judge_probe(measured, budget)
        else:
            judgement = judge([completed(measured)], budget)
        record(self._item, judgement)
        if not judgement.holds:
            pytest.fail("\n".join(lines(judgement)), pytrace=False)

    def session_probe(self) -> SessionProbe:
        """Return a ``with`` block's watcher, for code that makes its own session in this process.

        It tells peak and steady memory above what the process had before; no phases, no copies.
        """
        return SessionProbe()
