from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from memdiag.records.finding import Finding
from memdiag.rules.catalog import conv_cache
from tests.rules.examining import findings
from tests.rules.test_conv_scratch import conv


@pytest.fixture(autouse=True)
def arm_with_sme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_cache, "has_sme", lambda: True)


def found(model: onnx.ModelProto, folder: Path, release: str = "1.24.4") -> list[Finding]:
    return findings("conv-cache", model, folder, runtime=release)


def image() -> onnx.ModelProto:
    """Return a convolution of images whose number and size are free."""
    return conv(["n", 3, "h", "w"], [8, 3, 3, 3], {"pads": [1] * 4})


@pytest.mark.parametrize("release", ["1.24.0", "1.25.1", "1.26.0"])
def test_a_convolution_of_images_is_reported(release: str, tmp_path: Path) -> None:
    (finding,) = found(image(), tmp_path, release)
    assert finding.rule == "MD803"
    assert finding.message == (
        f"onnxruntime {release} keeps memory for each new input of the convolution conv on this"
        " processor (reported, not measured)"
    )
    assert (finding.nodes, finding.bytes, finding.peak_bytes) == (("conv",), 0, 0)


@pytest.mark.parametrize("release", ["1.27.0", "1.32.0"])
def test_releases_without_the_defect_are_not_reported(release: str, tmp_path: Path) -> None:
    assert found(image(), tmp_path, release) == []


def test_other_processors_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_cache, "has_sme", lambda: False)
    assert found(image(), tmp_path) == []


@pytest.mark.parametrize(
    ("x", "weight", "attributes"),
    [
        ([1, 3, 32, 32], [8, 3, 1, 1], {}),
        ([1, 3, 32, 32], [8, 3, 3, 1], {}),
        ([1, 3, 32, 32], [1, 3, 3, 3], {}),
        ([1, 8, 32, 32], [8, 1, 3, 3], {"group": 8}),
        ([4, 3, 32, 32], [8, 3, 3, 3], {}),
        ([1, 3, 32, 32], [8, 3, 3, 3], {"pads": [0, 0, 1, 1]}),
        ([1, 3, 32, 32], [8, 3, 3, 3], {"auto_pad": "SAME_UPPER"}),
        ([1, 3, 320], [8, 3, 3], {}),
        ([1, 3, 32, 32, 32], [8, 3, 3, 3, 3], {}),
    ],
    ids=["1x1", "3x1", "filter", "depthwise", "batch", "pads", "auto_pad", "1-D", "3-D"],
)
def test_convolutions_that_other_kernels_take_are_not_reported(
    x: Sequence[int], weight: Sequence[int], attributes: dict[str, object], tmp_path: Path
) -> None:
    assert found(conv(x, weight, attributes), tmp_path) == []


def test_float16_is_not_reported(tmp_path: Path) -> None:
    model = conv([1, 3, 32, 32], [8, 3, 3, 3], kind="float16")
    assert found(model, tmp_path) == []
