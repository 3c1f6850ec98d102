"""How much memory what is held of a model may take: a hostile one would ask for all there is."""

MOST_BYTES = 1 << 29
"""Far more than any real model was seen to need."""

OWN_BYTES = 80_000_000
"""What a check takes at most beside what is held of the model, by the estimates below."""

# Measured: by how much the peak of `memdiag check` grows with each of many, in bytes.
NODE_BYTES = 70
NAME_BYTES = 30
"""Of an input, an output or an attribute of a node."""

INITIALIZER_BYTES = 130
LARGE = 1 << 14
LARGE_INITIALIZER_BYTES = 1_000
"""Of one that has at least `LARGE` elements: findings are about these, and name them."""

STATED_TYPE_BYTES = 10
SUBGRAPH_BYTES = 5_500
FUNCTION_BYTES = 6_000
CALL_BYTES = 1_300
"""Of a call, written out, of a function that is called elsewhere as well."""

FOLD_BYTES = 750
"""Of a node that constant folding evaluates."""

WIDE = 100
WIDE_NAME_BYTES = 700
"""Of each of these where a node has more than `WIDE`: such a node is looked at whole."""

HEAD_BYTES = 80
"""Of a serialized byte of a graph's inputs, outputs and sparse initializers, which are kept as
ONNX's own objects."""

PARSED_BYTES = 10
"""What a byte of a serialized message takes at most while it is parsed, where it is of graphs."""


class TooLarge(Exception):
    """There is no room for it."""


class Room:
    """Counts the bytes that all parts of a model take, by estimate; `left` are those of `most`.

    `advice` is what to do where they are not enough.
    """

    def __init__(self, most: int = MOST_BYTES, advice: str = "split the model") -> None:
        self.left = most
        self.advice = advice

    def take(self, nbytes: int) -> None:
        """Count what will stay.

        Raises:
            TooLarge: it is more than is left.
        """
        self.check(nbytes)
        self.left -= nbytes

    def check(self, nbytes: int) -> None:
        """Check that there is room for what is needed for a moment.

        Raises:
            TooLarge: it is more than is left.
        """
        if nbytes > self.left:
            raise TooLarge
