"""Tests with the marker: at the limit, above it, and with budgets that mean nothing."""

from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

pytestmark = pytest.mark.usefixtures("measured_once")

MARKED = """
import pytest

@pytest.mark.memory_budget("model.onnx", {arguments})
def test_model():
    print("its own code ran")
"""


def marked(pytester: pytest.Pytester, arguments: str) -> None:
    pytester.makepyfile(MARKED.format(arguments=arguments))


@pytest.mark.usefixtures("model")
def test_within_its_budget_the_test_runs(
    pytester: pytest.Pytester, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "memdiag.reports.control_group.container_limits"
    monkeypatch.setattr(limits, lambda environment: "1.5 CPUs")
    marked(pytester, 'peak="100 MB", steady="100 MB", copies=3')
    result = run_pytest("-s", "--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*its own code ran*",
            "*memory above the baseline (memdiag)*",
            "model.onnx * test_model  within its budget, at *",
            "measured with MALLOC_MMAP_THRESHOLD_=131072, so that figures repeat; *",
            "measured in a container: *1.5 CPUs",
        ]
    )


@pytest.mark.usefixtures("model")
def test_above_its_budget_it_fails_before_it_runs(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    marked(pytester, 'peak="1 MB", copies=2')
    result = run_pytest("-s")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*its own code ran*")
    result.stdout.fnmatch_lines(
        [
            "memory budget: model.onnx: * MiB over its budget*",
            "  peak * budget 977 KiB (1 MB) *",
            "  copies * 3   budget * 2 *",
            "  most copies: model.shared.weight, 3 of them, *",
            "  try: memdiag fix model.onnx --only shared-weight-transposed",
            "model.onnx * over its budget*",
        ]
    )
    assert str(result.stdout).count("so that figures repeat") == 1


@pytest.mark.usefixtures("model")
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
    result = run_pytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["memory budget: model.onnx: * 1 B over its budget*"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('peek="1 GB"', "*memory_budget: unknown figure 'peek'. Use one of peak, steady,*"),
        ('peak="800"', "*memory_budget: peak=800 has no unit. Write 800MB*"),
        ('peak="1 GB", tolerance=2', "*memory_budget: 2 is not a tolerance. Write it like 2%*"),
        (
            "",
            "*there is no budget or baseline. Give*(pytest --memdiag-update-baseline).*",
        ),
        (
            'steady="1 GB", run=False',
            "*cannot check the 'steady' budget: the model was not run*",
        ),
        (
            'constant_fold="1 GB", session_options={"graph_optimization_level": "disable_all"}',
            "*cannot check the 'constant_fold' budget: onnxruntime * did not log that"
            " phase*. Available figures: peak, *parse, *",
        ),
        ('peak="1 GB", dims={"nope": 1}', "*unknown dimension 'nope'*"),
    ],
)
@pytest.mark.usefixtures("model")
def test_a_budget_that_cannot_be_judged_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest, arguments: str, words: str
) -> None:
    marked(pytester, arguments)
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_model_that_is_not_there_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    marked(pytester, 'peak="1 GB"')
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*model.onnx: there is no such file*"])


def test_a_model_that_fails_is_an_error_with_the_recorders_words(
    pytester: pytest.Pytester, run_pytest: RunPytest, model: Path
) -> None:
    marked(pytester, 'peak="1 GB", providers=["NopeExecutionProvider"]')
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["model.onnx: Failed in start at *no provider called Nope*"])


@pytest.mark.usefixtures("model")
def test_a_crash_is_an_error_with_the_recorders_words(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    crashing = pytester.path / "crashing"
    crashing.write_text("#!/bin/sh\nread job\necho 'something broke' >&2\nkill -SEGV $$\n")
    crashing.chmod(0o700)
    marked(pytester, 'peak="1 GB"')
    result = run_pytest("--memdiag-python=./crashing")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["model.onnx: Killed in start at *SIGSEGV: something broke*"])


@pytest.mark.usefixtures("model")
def test_a_test_that_is_skipped_measures_nothing(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skip
        @pytest.mark.memory_budget("model.onnx", peek=1)
        def test_model(): ...
        """
    )
    result = run_pytest()
    result.assert_outcomes(skipped=1)
    result.stdout.no_fnmatch_line("*memory above the baseline*")


@pytest.mark.usefixtures("model")
def test_rows_of_one_model_are_told_apart_by_what_differs(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("level", ["basic", "all"])
        def test_level(memdiag, level):
            options = {"intra_op_num_threads": "1", "graph_optimization_level": level}
            profile = memdiag.profile("model.onnx", runs=1, xray="none", session_options=options)
            memdiag.assert_budget(profile, peak="1 GB")
        """
    )
    result = run_pytest()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "model.onnx (graph_optimization_level=basic) * test_level?basic? *",
            "model.onnx (graph_optimization_level=all) * test_level?all? *",
        ]
    )


@pytest.mark.usefixtures("model")
def test_an_interrupt_has_the_name_that_pytest_knows(
    pytester: pytest.Pytester, run_pytest: RunPytest
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
    marked(pytester, 'peak="1 GB"')
    # In this process the interrupt would end the outer run.
    result = run_pytest(process=True)
    result.stdout.fnmatch_lines(["*! KeyboardInterrupt !*"])


@pytest.mark.usefixtures("model")
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
    result = run_pytest("--memdiag-python=./counting")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["memory budget: model.onnx: steady* over its budget, at *"])
    assert (pytester.path / "started").read_text().splitlines() == ["one"]
