"""The fixture ``memdiag``: measures from within a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memdiag.api.probe import SessionProbe
from memdiag.budgets.evaluation import judge_budget, judge_probe
from memdiag.budgets.parsing import parse_budget
from memdiag.defaults import XrayTime
from memdiag.errors import UsageError
from memdiag.pytest_plugin.profiling import isolated_profile, require_completed_profile
from memdiag.pytest_plugin.summary import record_judgement
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile
from memdiag.reports.budget import judgement_lines


class Memdiag:
    """The value of the fixture; judged figures are added to the summary and the test's report."""

    def __init__(self, config: pytest.Config, item: pytest.Item) -> None:
        self._config = config
        self._item = item

    def profile(
        self,
        model: str | Path,
        *,
        pinned: bool = True,
        xray: XrayTime = "steady",
        **options: Any,
    ) -> Profile:
        """Return the profile of `model`, run in a child process.

        No two models are measured at the same time, unless ``--memdiag-parallel`` is given.

        Args:
            model: the model, relative to the rootdir.
            pinned: make malloc release freed memory, so that figures are reproducible.
            xray: as in `memdiag.profile`.
            options: further options of `memdiag.profile`.

        Raises:
            MemdiagError: as `memdiag.profile`.
        """
        return isolated_profile(self._config, Path(model), options, pinned=pinned, xray=xray)

    def assert_budget(self, measured: Profile | Probe | SessionProbe, **limits: Any) -> None:
        """Fail the test if a figure of `measured` is above its limit.

        `limits` are figures by name, and ``tolerance``: ``peak="1.2 GB", copies=1``.

        Raises:
            UsageError: no limit was passed, a limit is not valid, or its figure is not available.
            MeasurementError: the profile is of a run that did not complete.
        """
        budget = parse_budget(limits, where="assert_budget")
        if not budget.limits:
            raise UsageError('assert_budget: no limit was given. Give one such as peak="1.2 GB".')
        if isinstance(measured, SessionProbe):
            measured = measured.result
        if isinstance(measured, Probe):
            judgement = judge_probe(measured, budget)
            record_judgement(self._item, judgement)
        else:
            judgement = judge_budget([require_completed_profile(measured)], budget)
            record_judgement(self._item, judgement, measured)
        if not judgement.is_met:
            pytest.fail("\n".join(judgement_lines(judgement)), pytrace=False)

    def session_probe(self) -> SessionProbe:
        """Return a context manager for code that creates its own session in this process.

        It measures peak and steady memory above the memory before the block, but neither phases nor
        copies.
        """
        return SessionProbe()
