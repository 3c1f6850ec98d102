import pytest

from memdiag.cli.arguments import budget, sizes_by_name
from memdiag.errors import UsageError


def test_a_budget_is_read_from_one_text() -> None:
    found = budget("--budget", "peak=1.2GB, copies=1,tolerance=2%")
    assert found is not None
    assert found.limits == {"peak": 1_200_000_000, "copies": 1}
    assert found.tolerance == 0.02
    assert budget("--budget", None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--budget: no figure was given"),
        ("tolerance=2%", "--budget: no figure was given"),
        ("peak", "--budget: 'peak' is not NAME=VALUE"),
        ("peak=1GB,peak=2GB", "--budget: peak is given twice"),
        ("peek=1GB", "--budget: unknown figure 'peek'"),
        ("peak=1", "--budget: peak=1 has no unit"),
    ],
)
def test_what_is_no_budget_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        budget("--budget", text)


def test_sizes_have_the_names_that_are_allowed() -> None:
    assert sizes_by_name("--budget", "anonymous=1kB", ["anonymous"]) == {"anonymous": 1000}
    assert sizes_by_name("--budget", None, ["anonymous"]) == {}
    with pytest.raises(UsageError, match=r"unknown figure 'peak'\. Use one of anonymous"):
        sizes_by_name("--budget", "peak=1kB", ["anonymous"])
