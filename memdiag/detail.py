"""How much of a record is printed on a terminal."""

from enum import IntEnum


class Detail(IntEnum):
    """How much is printed.

    Attributes:
        ANSWER: the answer, its reason, and what to do.
        USUAL: also one table, in no more than `MAX_LINES` lines.
        ALL: everything that the reports have.
    """

    ANSWER = 0
    USUAL = 1
    ALL = 2


MAX_LINES = 30
"""Lines of 80 columns that are printed unless the user asks for more."""
