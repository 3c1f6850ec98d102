"""Layout of a process's memory without any model: heap, arenas, modules, stacks, Python objects."""

from dataclasses import dataclass

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.bfc_arena import ProcessArenas, read_arenas
from memdiag.attribution.heap import Heap, read_heap
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.modules import LoadedModule, read_modules
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.python_heap import read_pools
from memdiag.attribution.stacks import read_stacks


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessLayout:
    """The parts of a process's memory that are known without a model.

    Attributes:
        heap: the heap of glibc's malloc.
        arenas: onnxruntime's arenas.
        modules: programs and libraries.
        stacks: byte ranges of the threads' stacks.
        python_pools: byte ranges of CPython's small-object heap.
    """

    heap: Heap
    arenas: ProcessArenas
    modules: tuple[LoadedModule, ...]
    stacks: ByteRanges
    python_pools: ByteRanges

    def is_in_use(self, address: int, nbytes: int) -> bool | None:
        """Return whether `nbytes` bytes at `address` are in one block in use.

        A block is a malloc chunk, or within it a chunk of onnxruntime's arena. None if neither is
        known.
        """
        block = self.heap.is_in_use(address, nbytes)
        chunk = self.arenas.is_in_use(address, nbytes)
        return False if block is False else block if chunk is None else chunk


def read_process_layout(space: AddressSpace, memory: ProcessMemory) -> ProcessLayout:
    """Return the layout of the process in `space`; parts that cannot be recognised are left out."""
    heap = read_heap(space, memory)
    return ProcessLayout(
        heap=heap,
        arenas=read_arenas(space, memory, heap),
        modules=read_modules(space, memory),
        stacks=read_stacks(space),
        python_pools=read_pools(space, memory, known=intervals.union(heap.in_use, heap.retained)),
    )
