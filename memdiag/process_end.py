"""How a process ended, in words, by its exit code: negative for the signal that ended it."""

import signal

KILLED_AT_LIMIT = "killed at the limit (SIGKILL by the kernel)"


def signal_name(code: int) -> str:
    """Return the name of the signal of a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"


def end_text(code: int) -> str:
    """Return how a process ended, such as "ended with exit code 3" or "was ended by SIGTERM"."""
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal_name(code)}"


def crash_text(code: int) -> str:
    """Return what a signal says about a process that reads models."""
    return f"native code crashed ({signal_name(code)}), most likely over a damaged file"
