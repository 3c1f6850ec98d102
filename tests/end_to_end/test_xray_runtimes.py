"""The X-ray on the runtimes that matter: the copies it names are the memory that was taken."""

import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from tests.end_to_end.conftest import SampleModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 1_000_000
SIZE = 48
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}

ONE_THREAD = {"intra_op_num_threads": "1"}
UNPACKED = {**ONE_THREAD, "session.disable_prepacking": "1"}
# 1.22 and 1.24 free the transposed copy once it is packed; in 1.22 it lay in the arena, which
# keeps its place. The newest frees nothing of a subgraph.
COPIES = {
    "1.22.1": {"as is": 2, "not packed": 2, "neither folded nor packed": 1},
    "1.24.4": {"as is": 2, "not packed": 2, "neither folded nor packed": 1},
    "newest": {"as is": 3, "not packed": 2, "neither folded nor packed": 1},
}
SETTINGS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "as is": (ONE_THREAD, ()),
    "not packed": (UNPACKED, ()),
    "neither folded nor packed": (UNPACKED, ("ConstantFolding",)),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("version", COPIES)
def test_the_copies_are_as_many_as_the_memory_says(
    sample_model: SampleModel, version: str, setting: str
) -> None:
    python = None
    if version != "newest":
        try:
            python = runtime(version)
        except ProvisionError as error:
            pytest.skip(str(error))
    session_options, disabled_optimizers = SETTINGS[setting]
    profile = memdiag.profile(
        sample_model("tied_if", SIZE),
        python=python,
        environment=PINNED,
        session_options=session_options,
        disabled_optimizers=disabled_optimizers,
        runs=1,
    )
    found = profile.attribution
    assert found is not None
    assert found.baseline_bytes is not None
    live = [copy for copy in found.copies if copy.in_use is not False]
    named = sum(copy.resident_bytes for copy in live) + found.bytes_of("arena")
    taken = found.resident_bytes - found.baseline_bytes
    # What is left is the runtime's own: its libraries' pages, graph and kernels.
    assert 0 <= taken - named < 16 * MB
    assert len(live) == COPIES[version][setting]
    assert found.named_share > 0.95
