from array import array

import numpy as np
import pytest

from memdiag.attribution import intervals
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.bfc_arena import ProcessArenas
from memdiag.attribution.heap import Heap
from memdiag.attribution.process_layout import ProcessLayout, read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from tests.attribution.conftest import Start

# One block in use with an arena's region in it, a freed block, and one in use next to it.
HEAP = Heap(
    "glibc", array("q", [900, 3000, 4000]), array("q", [3000, 4000, 5000]), array("b", [0, 1, 0])
)
ARENAS = ProcessArenas(
    np.array([[1000, 1512], [1512, 2024], [2024, 2280]]), np.array([True, False, True])
)


@pytest.mark.parametrize(
    ("address", "nbytes", "live"),
    [
        (1000, 512, True),
        (1100, 100, True),
        (1600, 100, False),  # in a free chunk, though malloc has the region in use
        (1500, 50, False),
        (2000, 50, False),
        (2100, 300, False),  # beyond the region
        (2300, 300, True),
        (2900, 300, False),
        (3100, 300, False),
        (4100, 300, True),
        (5100, 300, None),
    ],
)
def test_a_block_lives_where_malloc_and_the_arena_say_so(
    address: int, nbytes: int, live: bool | None
) -> None:
    nothing = intervals.empty_ranges()
    around = ProcessLayout(
        heap=HEAP, arenas=ARENAS, modules=(), stacks=nothing, python_pools=nothing
    )
    assert around.is_in_use(address, nbytes) is live


def test_a_chunk_lives_also_where_the_heap_is_not_known() -> None:
    nothing = intervals.empty_ranges()
    around = ProcessLayout(
        heap=Heap(None), arenas=ARENAS, modules=(), stacks=nothing, python_pools=nothing
    )
    assert around.is_in_use(1100, 100) is True
    assert around.is_in_use(1600, 100) is False
    assert around.is_in_use(2300, 100) is None


def test_a_process_without_a_runtime_has_no_arena(start: Start) -> None:
    child = start("blocks = [ctypes.create_string_buffer(1520) for _ in range(1000)]")
    with ProcessMemory(child.pid) as memory:
        around = read_process_layout(read_address_space(child.pid), memory)
    assert not around.arenas.found
    assert intervals.total_bytes(around.stacks) > 0
    assert any(module.kind == "python" for module in around.modules)
