"""What a process holds beside the copies of weights: heap, arenas, modules, stacks, objects."""

from dataclasses import dataclass

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.bfc_arena import Arenas, read_arenas
from memdiag.attribution.heap import Heap, read_heap
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.modules import Module, read_modules
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.python_heap import read_pools
from memdiag.attribution.stacks import read_stacks


@dataclass(frozen=True, kw_only=True, eq=False)
class Surroundings:
    """The parts of a process that can be told without knowing any model.

    `arenas` are the runtime's, `stacks` the threads' stacks, `python_pools` the small-object heap
    of CPython.
    """

    heap: Heap
    arenas: Arenas
    modules: tuple[Module, ...]
    stacks: Ranges
    python_pools: Ranges

    def live(self, address: int, nbytes: int) -> bool | None:
        """Return whether the extent lies in one block in use (True) or not (False).

        A block is one of malloc's, or within it a chunk of the runtime's arena. None where neither
        is known.
        """
        block, chunk = self.heap.live(address, nbytes), self.arenas.live(address, nbytes)
        return False if block is False else block if chunk is None else chunk


def read_surroundings(space: AddressSpace, memory: ProcessMemory) -> Surroundings:
    """Return what `memory` shows of the process in `space`; what cannot be told is left out."""
    heap = read_heap(space, memory)
    return Surroundings(
        heap=heap,
        arenas=read_arenas(space, memory, heap),
        modules=read_modules(space, memory),
        stacks=read_stacks(space),
        python_pools=read_pools(space, memory, known=intervals.union(heap.in_use, heap.retained)),
    )
