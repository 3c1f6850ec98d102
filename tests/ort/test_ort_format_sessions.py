"""Sessions of files in ORT format: what is estimated, measured and found in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.ort.releases import ORT_FILE_MAPPED_SINCE
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME
from memdiag.records.profile import Profile
from memdiag.units import MIB
from tests.builders import build, noise
from tests.ort.executing import INSTALLED, analysed
from tests.ort.ort_files import convert
from tests.ort.profiling import PINNED, assert_as_estimated

GRAPH = """
(int64[n] ids, float[1, 64, 16, 16] image) => (float[n, 4096] y, float[1, 256, 16, 16] z) {
    rows = Gather(table, ids)
    y = MatMul(rows, weight)
    z = Conv <pads=[1, 1, 1, 1]> (image, filter)
}"""
SHAPES = {"table": (8192, 1024), "weight": (1024, 4096), "filter": (256, 64, 3, 3)}
IN_PLACE = {
    "session.use_memory_mapped_ort_model": "1",
    "session.use_ort_model_bytes_for_initializers": "1",
}


@pytest.fixture(scope="module")
def ort_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {name: noise(*shape) for name, shape in SHAPES.items()}
    folder = tmp_path_factory.mktemp("ort")
    return convert(build(GRAPH, weights=weights), folder / "m.ort", "ORT_ENABLE_ALL")


def profiled(path: Path, **session: Any) -> Profile:
    """Return a profile, on a busy machine the third one at the latest, with an exact peak."""
    for _ in range(3):
        profile = memdiag.profile(path, runs=2, dims={"n": 4}, environment=PINNED, **session)
        assert profile.outcome.status == "completed"
        peak_phase = profile.phase(profile.peak_phase)
        if peak_phase is not None and peak_phase.peak_kind == "exact":
            break
    return profile


def copies(profile: Profile) -> dict[tuple[str, str], tuple[str, float]]:
    """Return backing and size in MiB of the large copies, by weight and kind."""
    assert profile.attribution is not None
    return {
        (copy.weights[0], copy.kind): (copy.backing.kind, copy.bytes / MIB)
        for copy in profile.attribution.copies
        if copy.bytes > 4 * MIB
    }


def test_the_file_is_in_memory_until_the_session_is_ready(ort_model: Path) -> None:
    profile = profiled(ort_model)
    assert_as_estimated(profile, rel=0.06, mebibytes=4)
    assert copies(profile) == {
        ("table", "original"): ("anonymous", 32),
        ("weight", "packed"): ("anonymous", 16),
    }
    ends = {phase.name: phase.end.rss_bytes for phase in profile.phases}
    file_bytes = ort_model.stat().st_size
    freed = ends["initialize"] - ends["prepack"]
    # On a busy machine the first is read late, when the packed weight of 16 MiB is there, too.
    assert file_bytes - 6 * MIB <= freed <= file_bytes + (16 + 6) * MIB


def test_python_keeps_the_bytes_of_a_file(ort_model: Path) -> None:
    profile = profiled(ort_model, load_from="bytes")
    assert_as_estimated(profile, rel=0.06, mebibytes=4)
    found = copies(profile)
    backing, size = found[WHOLE_FILE_COPY_NAME, "original"]
    assert backing == "anonymous"
    assert size == pytest.approx(ort_model.stat().st_size / MIB)
    assert found["table", "original"] == ("anonymous", 32)


@pytest.mark.skipif(
    INSTALLED < ORT_FILE_MAPPED_SINCE, reason="this onnxruntime does not map such files"
)
def test_a_mapped_file_stays_with_weights_in_place(ort_model: Path) -> None:
    profile = profiled(ort_model, session_options=IN_PLACE)
    assert copies(profile) == {
        ("table", "original"): ("file", 32),
        ("weight", "original"): ("file", 16),
        ("weight", "packed"): ("anonymous", 16),
    }
    # How much of the table is resident depends on what the page cache maps at once.
    assert profile.estimate is not None
    taken = profile.peak_rss_bytes - profile.baseline_rss_bytes
    assert profile.estimate.peak_bytes - 4 * MIB <= taken
    assert taken <= profile.estimate.peak_bytes + 36 * MIB
    assert not [each for each in profile.notes if "not considered" in each]


def test_nothing_is_folded_fused_or_reordered(ort_model: Path) -> None:
    with analysed(ort_model, reads_weights=True) as ctx:
        file = ctx.model_file
        assert not ctx.folds
        steps = ctx.run({"n": 4}).steps
        assert {node.index for _, node in steps} == {node.index for node in file.graph.nodes}
        kinds = {
            weight.name: [buffer.kind for _, buffer in ctx.session.weight(weight).buffers()]
            for weight in file.weights
        }
        assert kinds.pop("weight") == ["packed"]
        assert not any(kinds.values())


def test_a_mapped_file_is_the_remedy_where_the_release_has_it(tmp_path: Path) -> None:
    shapes = SHAPES | {"table": (16384, 1024)}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    path = convert(build(GRAPH, weights=weights), tmp_path / "m.ort", "ORT_ENABLE_ALL")
    (found,) = memdiag.check(path, for_onnxruntime="1.32.0", select=["embedded-weights"])
    assert found.remedies == ("map-ort-file",)
    assert "mapped instead of copied, with the file" in found.message
    # Otherwise there are the file, its weights, and the table once more.
    assert found.peak_bytes == pytest.approx(path.stat().st_size + 128 * MIB, rel=0.1)
    (older,) = memdiag.check(path, for_onnxruntime="1.24.4", select=["embedded-weights"])
    assert older.remedies == ()
    assert "by onnxruntime 1.26" in older.message


def test_rewriting_is_refused_in_a_sentence(ort_model: Path) -> None:
    with pytest.raises(UsageError, match="ORT format cannot be rewritten"):
        memdiag.fix(ort_model, only=["rewrites"])
    with pytest.raises(UsageError, match="optimizers do not read models in ORT format"):
        memdiag.compare(ort_model, optimizers=["onnxslim"])
