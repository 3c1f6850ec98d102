"""A stack of convolutions with denormal weights, as weight decay leaves them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memdiag.errors import UsageError
from sample_models.graph_builder import GraphBuilder, floats_of
from sample_models.weights import RandomWeight, floats

NAME = "denormal_conv"
SUMMARY = "a stack of convolutions with denormal weights, half of them or a share to be chosen"

LAYERS = 8
SIDE = 16
"""The height and width of the image."""

KERNEL = 3
CHANNEL_BLOCK = 16
"""Channels in whole blocks of it are what the runtime's NCHWc layout takes without padding."""

SHARE = 0.5

_DENORMAL_SCALE = np.float32(1e-39)
"""Normal random numbers times this are denormal out to more than eleven standard deviations."""


def build(megabytes: float, path: Path, external: bool, *, share: float = SHARE) -> None:
    """Write the model with weights of about `megabytes`, of which a `share` is denormal.

    The other weights are larger in return, so that no value between the layers is denormal.

    Raises:
        UsageError: `share` is not at least 0 and below 1.
    """
    if not 0 <= share < 1:
        raise UsageError(f"{share:g} is no share of denormal weights; ask for 0 up to below 1.")
    taps = KERNEL * KERNEL
    blocks = floats(megabytes, per=CHANNEL_BLOCK**2 * taps)
    channels = CHANNEL_BLOCK * max(1, round((blocks / LAYERS) ** 0.5))
    layers = max(1, round(blocks / (channels // CHANNEL_BLOCK) ** 2))
    weights = [
        DenormalWeight(
            name=f"layer.{layer}.weight",
            shape=(channels, channels, KERNEL, KERNEL),
            seed=layer,
            # He's scale, of the weights that count (He et al. 2015, equation 10).
            scale=(2 / (channels * taps * (1 - share))) ** 0.5,
            share=share,
        )
        for layer in range(layers)
    ]
    builder = GraphBuilder()
    value = "x"
    for weight in weights:
        name = weight.name.removesuffix(".weight")
        operand = builder.weight(weight)
        shape = {"kernel_shape": [KERNEL, KERNEL], "pads": [KERNEL // 2] * 4}
        value = builder.node("Conv", f"{name}/Conv", value, operand, **shape)
        value = builder.node("Relu", f"{name}/Relu", value)
    image = ("batch", channels, SIDE, SIDE)
    builder.write(NAME, [floats_of("x", *image)], [builder.result("y", *image)], path, external)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenormalWeight(RandomWeight):
    """A random weight of which a `share` of the values, at random positions, is of the order of
    1e-39."""

    share: float

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks of at most 4 MiB."""
        places = np.random.default_rng((self.seed, 1))
        # Not super(): a dataclass with slots is another class than the one this was written in.
        for chunk in RandomWeight.chunks(self):
            values = np.frombuffer(chunk, "<f4").copy()
            chosen = places.random(len(values), dtype=np.float32) < self.share
            values[chosen] *= _DENORMAL_SCALE / np.float32(self.scale)
            yield values.tobytes()
