from pathlib import Path

import onnx
import pytest

from memdiag.records.finding import Finding
from memdiag.rules.catalog import conv_cache
from tests.rules.examining import findings
from tests.rules.test_conv_scratch import Sizes, conv


@pytest.fixture(autouse=True)
def arm_with_sme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_cache, "has_sme", lambda: True)


def found(model: onnx.ModelProto, folder: Path, release: str = "1.24.4") -> list[Finding]:
    return findings("conv-cache", model, folder, runtime=release)


IMAGES = conv(["n", 3, "h", "w"], [8, 3, 3, 3], "pads = [1, 1, 1, 1]")
X = [1, 3, 32, 32]


@pytest.mark.parametrize("release", ["1.24.0", "1.25.1", "1.26.0"])
def test_a_convolution_of_images_is_reported(release: str, tmp_path: Path) -> None:
    (finding,) = found(IMAGES, tmp_path, release)
    assert (finding.rule, finding.nodes) == ("MD803", ("conv",))
    assert (finding.bytes, finding.peak_bytes) == (0, 0)
    assert f"onnxruntime {release} keeps memory for each new input" in finding.message


@pytest.mark.parametrize("release", ["1.27.0", "1.32.0"])
def test_releases_without_the_defect_are_not_reported(release: str, tmp_path: Path) -> None:
    assert found(IMAGES, tmp_path, release) == []


def test_other_processors_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_cache, "has_sme", lambda: False)
    assert found(IMAGES, tmp_path) == []


@pytest.mark.parametrize(
    ("x", "weight", "attributes", "kind"),
    [
        (X, [8, 3, 1, 1], "", "float32"),
        (X, [8, 3, 3, 1], "", "float32"),
        (X, [1, 3, 3, 3], "", "float32"),
        ([1, 8, 32, 32], [8, 1, 3, 3], "group = 8", "float32"),
        ([4, 3, 32, 32], [8, 3, 3, 3], "", "float32"),
        (X, [8, 3, 3, 3], "pads = [0, 0, 1, 1]", "float32"),
        (X, [8, 3, 3, 3], 'auto_pad = "SAME_UPPER"', "float32"),
        ([1, 3, 320], [8, 3, 3], "", "float32"),
        ([1, 3, 32, 32, 32], [8, 3, 3, 3, 3], "", "float32"),
        (X, [8, 3, 3, 3], "", "float16"),
    ],
    ids=["1x1", "3x1", "filter", "depthwise", "batch", "pads", "auto_pad", "1-D", "3-D", "float16"],
)
def test_convolutions_that_other_kernels_take_are_not_reported(
    x: Sizes, weight: Sizes, attributes: str, kind: str, tmp_path: Path
) -> None:
    assert found(conv(x, weight, attributes, kind), tmp_path) == []
