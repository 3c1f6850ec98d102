"""Tests with the marker: at the limit, above it, and with budgets that mean nothing."""

import pytest

from tests.pytest_plugin.conftest import Marked, RunPytest

pytestmark = pytest.mark.usefixtures("measured_once", "model")

OWN_CODE = " | print('its own code ran')"


def test_within_its_budget_the_test_runs(
    marked: Marked, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "memdiag.reports.control_group.container_limits"
    monkeypatch.setattr(limits, lambda environment: "1.5 CPUs")
    marked(f"'model.onnx', peak='100 MB', steady='100 MB', copies=3{OWN_CODE}")
    lines = [
        "*its own code ran*",
        "*memory above the baseline (memdiag)*",
        "model.onnx * test_0  within its budget, at *",
        "measured with MALLOC_MMAP_THRESHOLD_=131072, so that figures repeat; *",
        "measured in a container: *1.5 CPUs",
    ]
    run_pytest("-s", "--strict-markers", passed=1, lines=lines)


def test_above_its_budget_it_fails_before_it_runs(marked: Marked, run_pytest: RunPytest) -> None:
    marked(f"'model.onnx', peak='1 MB', copies=2{OWN_CODE}")
    lines = [
        "memory budget: model.onnx: * MiB over its budget*",
        "  peak * budget 977 KiB (1 MB) *",
        "  copies * 3   budget * 2 *",
        "  most copies: model.shared.weight, 3 of them, *",
        "  try: memdiag fix model.onnx --only shared-weight-transposed",
        "model.onnx * over its budget*",
    ]
    result = run_pytest("-s", failed=1, lines=lines)
    result.stdout.no_fnmatch_line("*its own code ran*")
    assert str(result.stdout).count("so that figures repeat") == 1


def test_exactly_the_budget_passes_and_a_byte_over_fails(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("less", [0, 1])
        def test_peak(memdiag, less):
            profile = memdiag.profile("model.onnx", xray="none")
            peak = profile.peak_rss_bytes - profile.baseline_rss_bytes
            memdiag.assert_budget(profile, peak=peak - less)
        """
    )
    run_pytest(passed=1, failed=1, lines=["memory budget: model.onnx: * 1 B over its budget*"])


NO_OPTIMIZATION = {"graph_optimization_level": "disable_all"}
NOT_JUDGED = {
    "'model.onnx', peek='1 GB'": "unknown figure 'peek'. Use one of peak, steady,",
    "'model.onnx', peak='800'": "memory_budget: peak=800 has no unit. Write 800MB",
    "'model.onnx', peak='1 GB', tolerance=2": "2 is not a tolerance. Write it like 2%",
    "'model.onnx'": "there is no budget or baseline. Give*(pytest --memdiag-update-baseline).",
    "'model.onnx', steady='1 GB', run=False": "cannot check the 'steady' budget: the model was not",
    f"'model.onnx', constant_fold='1 GB', session_options={NO_OPTIMIZATION}": (
        "cannot check the 'constant_fold' budget: onnxruntime * did not log that phase*."
        " Available figures: peak, *parse, "
    ),
    "'model.onnx', peak='1 GB', dims={'nope': 1}": "unknown dimension 'nope'",
    "'missing.onnx', peak='1 GB'": "missing.onnx: there is no such file",
    # With the recorder's words.
    "'model.onnx', peak='1 GB', providers=['NopeExecutionProvider']": (
        "model.onnx: Failed in start at *no provider called Nope"
    ),
}  # fmt: skip


def test_a_budget_that_cannot_be_judged_is_an_error(marked: Marked, run_pytest: RunPytest) -> None:
    marked(*NOT_JUDGED)
    lines = [f"*{words}*" for words in NOT_JUDGED.values()]
    result = run_pytest(errors=len(NOT_JUDGED), lines=lines)
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_crash_is_an_error_with_the_recorders_words(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    crashing = pytester.path / "crashing"
    crashing.write_text("#!/bin/sh\nread job\necho 'something broke' >&2\nkill -SEGV $$\n")
    crashing.chmod(0o700)
    marked("'model.onnx', peak='1 GB'")
    lines = ["model.onnx: Killed in start at *SIGSEGV: something broke*"]
    run_pytest("--memdiag-python=./crashing", errors=1, lines=lines)


def test_a_test_that_is_skipped_measures_nothing(marked: Marked, run_pytest: RunPytest) -> None:
    marked("'model.onnx', peek=1", before="import pytest\npytestmark = pytest.mark.skip\n")
    run_pytest(skipped=1).stdout.no_fnmatch_line("*memory above the baseline*")


def test_rows_of_one_model_are_told_apart_by_what_differs(
    marked: Marked, run_pytest: RunPytest
) -> None:
    levels = ("basic", "all")
    options = "{{'intra_op_num_threads': '1', 'graph_optimization_level': '{}'}}"
    marked(
        *(
            f"'model.onnx', peak='1 GB', runs=1, session_options={options.format(level)}"
            for level in levels
        )
    )
    rows = [f"model.onnx (graph_optimization_level={level}) * test_? *" for level in levels]
    run_pytest(passed=2, lines=rows)


def test_an_interrupt_has_the_name_that_pytest_knows(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    pytester.makeconftest(
        """
        import memdiag

        class Interrupted(KeyboardInterrupt): ...

        def interrupt(*arguments, **options):
            raise Interrupted

        memdiag.profile = interrupt
        """
    )
    marked("'model.onnx', peak='1 GB'")
    # In this process the interrupt would end the outer run.
    run_pytest(process=True, lines=["*! KeyboardInterrupt !*"])


def test_every_marker_of_a_test_counts_and_the_same_question_is_asked_once(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    counting = pytester.path / "counting"
    counting.write_text('#!/bin/sh\necho one >> started\nexec "$REAL" "$@"\n')
    counting.chmod(0o700)
    pytester.makepyfile(
        """
        import sys
        import pytest

        options = {"environment": {"REAL": sys.executable}}
        pytestmark = pytest.mark.memory_budget("model.onnx", peak="1 GB", **options)

        @pytest.mark.memory_budget("model.onnx", steady="1 kB", repeats=1, **options)
        def test_one(): ...

        def test_two(): ...
        """
    )
    lines = ["memory budget: model.onnx: steady* over its budget, at *"]
    run_pytest("--memdiag-python=./counting", passed=1, failed=1, lines=lines)
    assert (pytester.path / "started").read_text().splitlines() == ["one"]
