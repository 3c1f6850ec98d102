"""How much memory what is held of a model may take: a hostile one would ask for all there is."""

MOST_BYTES = 1 << 29
"""Far more than any real model was seen to need."""

NODE_BYTES = 100
NAME_BYTES = 30
"""Of an input or an output of a node."""

INITIALIZER_BYTES = 600
STATED_TYPE_BYTES = 60
"""Measured peaks of `memdiag check`, divided by the number of nodes, initializers and types."""

PARSED_BYTES = 10
"""What a byte of a serialized message takes at most while it is parsed, where it is of graphs."""


class TooLarge(Exception):
    """There is no room for it."""


class Room:
    """Counts the bytes that all parts of a model take, by estimate, up to `most`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most

    def take(self, nbytes: int) -> None:
        """Count what will stay.

        Raises:
            TooLarge: it is more than is left.
        """
        self.check(nbytes)
        self._left -= nbytes

    def check(self, nbytes: int) -> None:
        """Check that there is room for what is needed for a moment.

        Raises:
            TooLarge: it is more than is left.
        """
        if nbytes > self._left:
            raise TooLarge
