"""The fixture: profiles, budgets, and sessions that a test makes itself; figures in JUnit's XML."""

from xml.etree import ElementTree

import pytest

from tests.pytest_plugin.conftest import RunPytest


@pytest.mark.usefixtures("model")
def test_a_profile_is_judged_and_its_figures_are_properties(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        def test_model(memdiag):
            one_thread = {"intra_op_num_threads": "1"}
            profile = memdiag.profile("model.onnx", runs=2, session_options=one_thread)
            memdiag.assert_budget(profile, copies=3, process_peak="500 MB")
            assert profile.session.options == one_thread
        """
    )
    run_pytest("--junit-xml=result.xml", passed=1)
    tree = ElementTree.parse(pytester.path / "result.xml")
    figures = {entry.get("name"): entry.get("value") for entry in tree.iter("property")}
    assert figures["memdiag.model.onnx.copies"] == "3"
    assert int(figures["memdiag.model.onnx.peak"] or 0) > 1_000_000


@pytest.mark.usefixtures("model")
def test_a_session_of_this_process_is_probed(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import onnxruntime
        import pytest

        def session():
            return onnxruntime.InferenceSession("model.onnx")

        def test_fits(memdiag):
            with memdiag.session_probe() as probe:
                kept = session()
            memdiag.assert_budget(probe, peak="500 MB", steady="500 MB")

        def test_does_not(memdiag):
            with memdiag.session_probe() as probe:
                kept = bytearray(50_000_000)
            memdiag.assert_budget(probe.result, peak="40 MB")

        def test_phases(memdiag):
            with memdiag.session_probe() as probe:
                kept = session()
            memdiag.assert_budget(probe, parse="500 MB")
        """
    )
    lines = [
        "memory budget: this process: * MiB over its budget",
        "  this process runs other code too: *",
        "E * this process: cannot check the 'parse' budget: *",
    ]
    run_pytest(passed=1, failed=2, lines=lines)


NOT_JUDGED = {
    "assert_budget(memdiag.profile('model.onnx'))": "assert_budget: no limit was given",
    "assert_budget(memdiag.profile('model.onnx'), peek=1)": "unknown figure 'peek'",
    "assert_budget(memdiag.profile('model.onnx', providers=['Nope']), peak=1)": (
        "MeasurementError: model.onnx: Failed in start at "
    ),
    "profile('nope.onnx')": "nope.onnx: there is no such file",
}


@pytest.mark.usefixtures("model", "measured_once")
def test_what_cannot_be_judged_fails_the_test(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    functions = [
        f"def test_{number}(memdiag): memdiag.{call}" for number, call in enumerate(NOT_JUDGED)
    ]
    pytester.makepyfile("\n".join(functions))
    run_pytest(failed=len(NOT_JUDGED), lines=[f"*{words}*" for words in NOT_JUDGED.values()])


def test_the_plugin_is_found_by_its_name(run_pytest: RunPytest) -> None:
    run_pytest("--fixtures", lines=["memdiag -- *memdiag/pytest_plugin/__init__.py:*"])
    run_pytest("--markers", lines=["@pytest.mark.memory_budget(model, *"])
