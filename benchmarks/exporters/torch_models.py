"""Export architectures of torchvision and transformers: ``python torch_models.py FOLDER NAME…``.

It runs under the interpreter that `benchmarks.exported_models` makes. The weights are random, the
batch and the number of tokens are free dimensions.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers

PIXELS = 224
LAYERS = {"num_hidden_layers": 4}
SAMPLES = 16_000
FRAMES, MELS = 3000, 80
TEXT: dict[str, tuple[str, dict[str, int]]] = {
    "bert": ("Bert", LAYERS),
    "distilbert": ("DistilBert", {"n_layers": 4}),
    "roberta": ("Roberta", LAYERS),
    "albert": ("Albert", {"hidden_size": 768, "num_attention_heads": 12, **LAYERS}),
    "electra": ("Electra", LAYERS),
    "mobilebert": ("MobileBert", LAYERS),
    "squeezebert": ("SqueezeBert", LAYERS),
    "mpnet": ("MPNet", LAYERS),
    "xlm_roberta": ("XLMRoberta", LAYERS),
    "convbert": ("ConvBert", LAYERS),
    "gpt2": ("GPT2", {"n_layer": 4, "use_cache": False}),
    "opt": ("OPT", {**LAYERS, "use_cache": False}),
    "deberta_v2": ("DebertaV2", {"hidden_size": 768, "num_attention_heads": 12, **LAYERS}),
    "nystromformer": ("Nystromformer", LAYERS),
    "modernbert": ("ModernBert", LAYERS),
    "roformer": ("RoFormer", LAYERS),
}
"""Text models of transformers: the prefix of their classes, and sizes that differ from the usual
ones."""

IMAGES: dict[str, tuple[str, dict[str, int]]] = {
    "vit": ("ViT", LAYERS),
    "deit": ("DeiT", LAYERS),
    "dinov2": ("Dinov2", LAYERS),
    "beit": ("Beit", {"image_size": PIXELS, **LAYERS}),
    "mobilevit": ("MobileViT", {"image_size": PIXELS}),
    "segformer": ("Segformer", {}),
    "convnextv2": ("ConvNextV2", {}),
}
"""Image models of transformers. All names that are in no table are models of torchvision."""

AUDIO: dict[str, tuple[str, dict[str, int]]] = {
    "wav2vec2": ("Wav2Vec2", LAYERS),
    "whisper_encoder": ("WhisperEncoder", {"encoder_layers": 4}),
}
"""Audio models of transformers: one reads samples, the other one a spectrogram of fixed length."""


class FirstOutput(torch.nn.Module):  # type: ignore[misc] # torch is not installed here
    """A model with one input, which returns the first output of `model`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: torch.Tensor) -> Any:
        output = self.model(input)
        return next(iter(output.values())) if isinstance(output, dict) else output


def torchvision_model(name: str) -> torch.nn.Module:
    if hasattr(torchvision.models, name):
        return getattr(torchvision.models, name)(weights=None)
    create = getattr(torchvision.models.segmentation, name)
    return create(weights=None, weights_backbone=None)


def transformers_model(prefix: str, sizes: dict[str, int]) -> torch.nn.Module:
    config = getattr(transformers, f"{prefix.removesuffix('Encoder')}Config")(**sizes)
    if prefix == "WhisperEncoder":
        return transformers.WhisperModel(config).encoder
    return getattr(transformers, f"{prefix}Model")(config)


def export(name: str, path: Path) -> None:
    """Write the model `name` with random weights to `path`."""
    sizes = {0: torch.export.Dim("batch", min=1, max=64)}
    if name in TEXT:
        model = transformers_model(*TEXT[name])
        example = torch.randint(3, model.config.vocab_size, (2, 17))
        sizes[1] = torch.export.Dim("tokens", min=2, max=256)
    elif name in AUDIO:
        model = transformers_model(*AUDIO[name])
        example = torch.randn(2, SAMPLES) if name == "wav2vec2" else torch.randn(2, MELS, FRAMES)
    else:
        model = transformers_model(*IMAGES[name]) if name in IMAGES else torchvision_model(name)
        example = torch.randn(2, 3, PIXELS, PIXELS)
    torch.onnx.export(
        FirstOutput(model).eval(),
        (example,),
        path,
        dynamo=True,
        external_data=False,
        dynamic_shapes={"input": sizes},
        verbose=False,
    )


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.manual_seed(0)
    for name in names:
        try:
            export(name, Path(folder, f"{name}.onnx"))
        except Exception as error:  # the others are exported nevertheless
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
