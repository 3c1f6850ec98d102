import pytest

from memdiag.comparison.environments import failure_reason

# What installers print, shortened.
PRINTED = {
    "no such version": [
        "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: 1)\n"
        "ERROR: No matching distribution found for x==9",
        "error: No solution found\n  cause: Because there is no version of x==9 and you require",
    ],
    "no wheel": [
        "cause: Because x==1.10.0 has no wheels with a matching Python ABI tag (e.g., `cp311`)"
    ],
    "cannot be reached": [
        "error: Request failed after 3 retries in 10.0s\n  cause: Failed to fetch: `index`",
        "WARNING: Retrying (Retry(total=0)) after connection broken by"
        " 'NewConnectionError(refused)'\nERROR: No matching distribution found for x==1",
        "hint: Packages were unavailable because the network was disabled.",
    ],
    "disk is full": [
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "error: failed to write to file: No space left on device (os error 28)",
    ],
}


@pytest.mark.parametrize(
    ("reason", "printed"), [(why, text) for why, texts in PRINTED.items() for text in texts]
)
def test_the_reason_is_told_from_what_is_printed(reason: str, printed: str) -> None:
    message = failure_reason(printed)
    assert reason in message
    assert message.endswith(".")


def test_what_is_not_known_is_quoted() -> None:
    assert (
        failure_reason("one\nERROR: it is Tuesday\n")
        == "cannot be installed (ERROR: it is Tuesday)."
    )
    assert failure_reason("") == "cannot be installed (no reason was given)."
