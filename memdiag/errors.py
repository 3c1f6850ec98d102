"""The errors memdiag raises: one tree, one sentence each, the file first and what to do last.

    MemdiagError
    ├── UsageError         an argument or option that cannot be honoured
    │   └── ArgumentError      an argument that commands have as an option
    ├── ModelError         the model file cannot be read or is not a valid model
    │   └── MissingDataError   external data that the model names is missing
    ├── RecordError        a saved record cannot be decoded
    ├── MeasurementError   the child could not be started or watched at all
    ├── ReportError        a report could not be written
    ├── ProvisionError     an environment with other packages cannot be made
    └── XrayError          a process whose memory cannot be read

A session that fails *while it is being measured* raises none of these: that is an outcome of the
profile (`Profile.outcome`), so that the figures until then are kept.
"""

import re
from collections.abc import Callable

MAX_REASON_LENGTH = 300
"""Characters of a reason in the words of onnxruntime, of a tool or of an unexpected error."""


class MemdiagError(Exception):
    """Base of every error memdiag raises; its text is one sentence for the user."""


class UsageError(MemdiagError):
    """An argument or option that cannot be honoured."""


class ArgumentError(UsageError):
    """An argument that cannot be honoured, which commands have as an option.

    Args:
        sentence: the text, with arguments in braces, such as ``{timeout_s}`` or ``{run=False}``.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        super().__init__(self.with_arguments(lambda argument: argument))

    def with_arguments(self, spelling: Callable[[str], str]) -> str:
        """Return the text, with each argument replaced by its `spelling`."""
        return re.sub(r"\{(\w+(?:=False)?)\}", lambda match: spelling(match[1]), self._sentence)


class ModelError(MemdiagError):
    """A model file that cannot be read or is not a valid ONNX model."""


class MissingDataError(ModelError):
    """External data that the model names is missing or too short.

    Attributes:
        location: the location of the file as the model names it, if it cannot be opened; else "".
    """

    def __init__(self, message: str, *, location: str = "") -> None:
        super().__init__(message)
        self.location = location


class RecordError(MemdiagError):
    """A saved record that does not match its schema."""


class MeasurementError(MemdiagError):
    """A child process that could not be started or observed."""


class ReportError(MemdiagError):
    """A report file that could not be written."""


class XrayError(MemdiagError):
    """A process whose memory cannot be read: it ended, or is another user's."""


class ProvisionError(MemdiagError):
    """An environment that cannot be created, or a version that is not available."""


def defect_reason(error: Exception) -> str:
    """Return what a defect of memdiag says, for notes on what is missing because of it."""
    return f"{type(error).__name__}: {error}"[:MAX_REASON_LENGTH]


def defect_note(failure: str, error: Exception) -> str:
    """Return the note on a defect: `failure` is a clause such as ``the ledger failed``."""
    return f"{failure}, which is a defect of memdiag. Please report it ({defect_reason(error)})"


def rule_defect_note(rule: str, subject: str, error: Exception) -> str:
    """Return the note that `rule` failed on `subject`, such as ``model``."""
    return defect_note(f"rule {rule} failed on this {subject}", error)
