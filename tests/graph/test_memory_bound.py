import resource

import pytest

from memdiag.graph.memory_bound import at_most

MIB = 1024 * 1024


def test_more_is_refused_and_the_limit_is_gone_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), at_most(64 * MIB):
        bytearray(512 * MIB)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(512 * MIB)) == 512 * MIB


def test_less_is_fine() -> None:
    with at_most(512 * MIB):
        assert len(bytearray(64 * MIB)) == 64 * MIB


def test_a_tighter_limit_stays() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    tight = 1 << 40
    resource.setrlimit(resource.RLIMIT_AS, (tight, hard))
    try:
        with at_most(1 << 42):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] == tight
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
