"""The tied weight on the runtimes that matter: phases and copies are found on each."""

from pathlib import Path

import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import VERSIONS, runtime
from memdiag.records.phases import GENERATION_PHASES, PHASES
from tests.end_to_end.conftest import SampleModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN_PHASES = [name for name in PHASES if name not in GENERATION_PHASES]
MB = 1_000_000
FASTEST = 6e9  # bytes a second that a copy takes at most
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc would keep copies that were freed


def interpreter(version: str) -> Path | None:
    if version == "newest":
        return None
    try:
        return runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
@pytest.mark.parametrize("megabytes", [64, 500])
@pytest.mark.parametrize("version", [*VERSIONS, "newest"])
def test_the_tied_weight_is_told_by_phase(
    sample_model: SampleModel, version: str, megabytes: int, external: bool
) -> None:
    python = interpreter(version)
    model = sample_model("tied_if", megabytes, external=external)
    profile = memdiag.profile(
        model,
        python=python,
        environment=PINNED,
        session_options={"intra_op_num_threads": "1"},
        runs=3,
    )
    assert profile.outcome.status == "completed"
    if version != "newest":
        assert profile.environment.onnxruntime == version
    assert [phase.name for phase in profile.phases] == RUN_PHASES
    weight = megabytes * MB
    # What may move between a line's writing and its reading counts to the phase before.
    lag_s = profile.sampling.boundary_lag_s or 0.0
    tolerance = 0.1 * weight + 8 * MB + lag_s * FASTEST
    parse, fold = profile.phase("parse"), profile.phase("constant_fold")
    assert parse is not None
    assert fold is not None
    # Embedded weights are read while parsing, external ones are mapped or read later.
    assert abs(parse.net_rss_bytes - (0 if external else weight)) < tolerance
    # Folding keeps one transposed copy, and needs at least one more while it works.
    assert abs(fold.net_rss_bytes - weight) < tolerance
    assert fold.peak_rss_bytes - fold.start.rss_bytes > 1.9 * weight - tolerance
    message = any("where a graph transformer ends but not where" in note for note in profile.notes)
    assert message == (version != "newest")


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
    session_options, disabled_optimizers = SETTINGS[setting]
    profile = memdiag.profile(
        sample_model("tied_if", 48),
        python=interpreter(version),
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
