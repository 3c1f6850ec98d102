"""A skeleton in pieces, so that the whole never is in memory."""

from collections.abc import Iterator, Mapping

from memdiag.errors import ModelError
from memdiag.graph.damage import Damage
from memdiag.graph.fields import Buffer
from memdiag.graph.room import PARSED_BYTES, Room
from memdiag.graph.tensor_fields import Stored
from memdiag.graph.wire import THIS_FILE, THRESHOLD, Piece, walk_of


class Pieces:
    """The skeleton of the serialized ModelProto `data`, field by field, as `skeleton` makes it.

    Numbers in typed fields are references as well. `references` has those of the pieces that were
    iterated over, which can be done once. `room` is that for what the pieces hold.
    """

    def __init__(self, data: Buffer, *, origin: str, room: Room | None = None) -> None:
        self._origin = origin
        self.room = room or Room()
        self._walk = walk_of(data, origin, THIS_FILE, THRESHOLD, numbers=True, check=self._check)
        self.references: Mapping[int, Stored] = self._walk.references

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces.

        Raises:
            ModelError: as `skeleton` does.
            TooLarge: there is no room for one.
        """
        try:
            yield from self._walk.pieces()
        except Damage as damage:
            raise ModelError(f"{self._origin}: {damage.sentence()}.") from None

    def _check(self, nbytes: int) -> None:
        self.room.check(nbytes * PARSED_BYTES)
