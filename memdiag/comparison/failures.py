"""Why an installer failed, told from what it printed."""

from memdiag.comparison.cache import VARIABLE

_REASONS = (
    (
        ("No space left", "os error 28", "Errno 28"),
        f"the disk is full; free some, or name another folder in {VARIABLE}.",
    ),
    (
        (
            "Failed to fetch",
            "NewConnectionError",
            "ConnectionError",
            "Connection refused",
            "Max retries exceeded",
            "ProxyError",
            "Connection broken",
            "Read timed out",
            "name resolution",
            "network was disabled",
        ),
        "the package registry cannot be reached; connect to the network, or name an interpreter"
        " that has it with --environment.",
    ),
    (
        ("no wheels with a matching", "has no wheels", "no wheels are available"),
        "there is no wheel for this Python and platform; name an interpreter that has it with"
        " --environment.",
    ),
    (
        ("No matching distribution", "there is no version of", "was not found in the"),
        "there is no such version for this Python and platform.",
    ),
)
_LONGEST = 200


def why_not(printed: str) -> str:
    """Return in words why an installer that `printed` this failed: its last line where unknown."""
    text = " ".join(printed.split())  # sentences are broken over lines
    for words, reason in _REASONS:
        if any(word in text for word in words):
            return reason
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"cannot be installed ({(lines or ['no reason was given'])[-1][:_LONGEST]})."
