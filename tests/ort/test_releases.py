import pytest

from memdiag.ort.config_keys import TABLE_RELEASE
from memdiag.ort.releases import (
    NEWEST_MEASURED_RELEASE,
    OLDEST_PREDICTED_RELEASE,
    newer_release_note,
)
from memdiag.ort.runtime import Runtime


@pytest.mark.parametrize(
    "runtime",
    [
        OLDEST_PREDICTED_RELEASE,
        NEWEST_MEASURED_RELEASE,
        NEWEST_MEASURED_RELEASE._replace(patch=NEWEST_MEASURED_RELEASE.patch + 1),
    ],
)
def test_a_measured_release_has_no_note(runtime: Runtime) -> None:
    assert newer_release_note(runtime) is None


@pytest.mark.parametrize(
    "runtime",
    [
        Runtime(NEWEST_MEASURED_RELEASE.major, NEWEST_MEASURED_RELEASE.minor + 1),
        Runtime(NEWEST_MEASURED_RELEASE.major + 1, 0),
    ],
)
def test_the_note_of_a_newer_release_names_both(runtime: Runtime) -> None:
    note = newer_release_note(runtime) or ""
    assert f"onnxruntime {runtime} is newer than {NEWEST_MEASURED_RELEASE}" in note


def test_the_table_of_config_entries_is_that_of_the_newest_measured_release() -> None:
    assert str(NEWEST_MEASURED_RELEASE) == TABLE_RELEASE
