"""The values that options of several commands choose from."""

from enum import StrEnum


class Format(StrEnum):
    """What a command prints: a summary for people, or the record alone."""

    console = "console"
    json = "json"


class LoadFrom(StrEnum):
    """What a session is given: the model's path, or its bytes."""

    path = "path"
    bytes = "bytes"


class Plotly(StrEnum):
    """Where a page has the library that draws: in itself, beside it, or at its makers' address."""

    inline = "inline"
    directory = "directory"
    cdn = "cdn"


class Verify(StrEnum):
    """How much of each copy the X-ray compares: every byte, or a spread of blocks."""

    full = "full"
    sampled = "sampled"
