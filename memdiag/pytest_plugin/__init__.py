"""The pytest plugin: memory budgets of models as tests.

Importing the package and its hooks is quick; the modules that measure are imported when a test
needs them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from memdiag.pytest_plugin.calls import MemdiagLeak
    from memdiag.pytest_plugin.fixture import Memdiag

BUDGET_MARKER = "memory_budget"
_MARKER_DESCRIPTION = (
    f'{BUDGET_MARKER}(model, *, peak="1.2 GB", steady=…, tolerance=…, baseline=…, **options):'
    " profile the"
    " model in an isolated process before the test, and fail if a figure is above its budget"
    ' or its baseline, or with growth="none" if it leaks; with estimated=True compare an'
    f" estimate instead, without a run; {BUDGET_MARKER}(*, sessions=3,"
    ' tree_peak="2 GB"): fail if the test itself creates more sessions, or its process and'
    " children take more memory together (memdiag)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ``--memdiag-*`` flags and the ini options of the same names."""
    from memdiag.pytest_plugin.settings import add_plugin_options

    add_plugin_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and read the settings."""
    from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY, read_settings

    config.addinivalue_line("markers", _MARKER_DESCRIPTION)
    config.stash[SETTINGS_STASH_KEY] = read_settings(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add a test for each model of ``--memdiag-models``, before other plugins select tests."""
    from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY

    if session.config.stash[SETTINGS_STASH_KEY].models:
        from memdiag.pytest_plugin.marker import model_items

        items.extend(model_items(session))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the recording of ``--memdiag-sessions``."""
    if _records_sessions(session.config):
        from memdiag.pytest_plugin.sessions import start_recording

        start_recording(session.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Store when each test runs, for the sessions that it creates."""
    if not _records_sessions(item.config):
        return (yield)
    from memdiag.pytest_plugin.sessions import timed_test

    with timed_test(item):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the sessions of a worker of pytest-xdist."""
    if _records_sessions(node.config):
        from memdiag.pytest_plugin.sessions import add_worker_recording

        add_worker_recording(node.config, node)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the recording of ``--memdiag-sessions``."""
    if _records_sessions(session.config):
        from memdiag.pytest_plugin.sessions import finish_recording

        finish_recording(session.config)


def _records_sessions(config: pytest.Config) -> bool:
    from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY

    return config.stash[SETTINGS_STASH_KEY].sessions


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Measure the models of a test with the marker; a failure is an error of its setup."""
    if item.get_closest_marker(BUDGET_MARKER) is not None:
        from memdiag.pytest_plugin.marker import measure_marked

        measure_marked(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose models exceed their budgets, before its own code runs.

    Baselines are written after that code, if the test passes.
    """
    if item.get_closest_marker(BUDGET_MARKER) is None:
        return (yield)
    from memdiag.pytest_plugin.marker import judge_marked, update_baselines
    from memdiag.pytest_plugin.process_budget import judged_test_block

    judge_marked(item)
    with judged_test_block(item):
        result = yield
    update_baselines(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the figures to the report, which can be sent to another process."""
    from memdiag.pytest_plugin.summary import attach_summary_rows

    report = yield
    attach_summary_rows(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the figures of all tests."""
    from memdiag.pytest_plugin.summary import write_figure_summary

    write_figure_summary(terminalreporter)
    if _records_sessions(terminalreporter.config):
        from memdiag.pytest_plugin import sessions

        sessions.write_session_summary(terminalreporter)


@pytest.fixture
def memdiag(request: pytest.FixtureRequest) -> Memdiag:
    """Measure memory: ``profile(model, …)``, ``assert_budget(…)`` and ``session_probe()``."""
    from memdiag.pytest_plugin.fixture import Memdiag

    return Memdiag(request.config, request.node)


@pytest.fixture
def memdiag_leak(request: pytest.FixtureRequest) -> MemdiagLeak:
    """Fail the test if a function leaks: ``memdiag_leak(lambda: service.handle(x), runs=200)``."""
    from memdiag.pytest_plugin.calls import MemdiagLeak

    return MemdiagLeak(request)
