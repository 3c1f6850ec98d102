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
    "ernie": ("Ernie", LAYERS),
    "splinter": ("Splinter", LAYERS),
    "data2vec_text": ("Data2VecText", LAYERS),
    "layoutlm": ("LayoutLM", LAYERS),
    "megatron_bert": ("MegatronBert", LAYERS),
    "codegen": ("CodeGen", {"n_embd": 768, "n_head": 12, "n_layer": 4, "use_cache": False}),
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
    "levit": ("Levit", {}),
    "mobilenet_v1": ("MobileNetV1", {}),
    "pvt": ("Pvt", {}),
    "vit_msn": ("ViTMSN", LAYERS),
    "poolformer": ("PoolFormer", {}),
}
"""Image models of transformers. All names that are in no table are models of torchvision."""

AUDIO: dict[str, tuple[str, dict[str, int]]] = {
    "wav2vec2": ("Wav2Vec2", LAYERS),
    "wavlm": ("WavLM", LAYERS),
    "unispeech": ("UniSpeech", LAYERS),
    "data2vec_audio": ("Data2VecAudio", LAYERS),
    "whisper_encoder": ("WhisperEncoder", {"encoder_layers": 4}),
}
"""Audio models of transformers, which read samples, the last one a spectrogram of fixed length."""


DECODERS: dict[str, tuple[str, str, dict[str, int]]] = {
    "gpt2_with_past": ("GPT2", "LMHeadModel", {"n_layer": 4}),
    "llama_with_past": (
        "Llama",
        "ForCausalLM",
        {
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "vocab_size": 16_000,
        },
    ),
}
"""Decoders of transformers with their cache: the prefix of their classes, the end of the name of
the one with logits, and sizes. The names of inputs and outputs are those of optimum's exports."""


class WithPast(torch.nn.Module):  # type: ignore[misc] # torch is not installed here
    """A decoder whose inputs and outputs are the tensors of its cache, layer by layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        *past: torch.Tensor,
    ) -> Any:
        cache = transformers.DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        layers = output.past_key_values.layers
        return output.logits, *(each for layer in layers for each in (layer.keys, layer.values))


def export_decoder(name: str, path: Path) -> None:
    """Write the decoder `name` with past and random weights to `path`."""
    prefix, suffix, sizes = DECODERS[name]
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    model = getattr(transformers, f"{prefix}{suffix}")(config)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = config.hidden_size // config.num_attention_heads
    layers = range(config.num_hidden_layers)
    cache = [f"{layer}.{kind}" for layer in layers for kind in ("key", "value")]
    batch, past, new = 2, 5, 3
    length = {0: "batch_size", 1: "sequence_length"}
    torch.onnx.export(
        WithPast(model).eval(),
        (
            torch.randint(3, config.vocab_size, (batch, new)),
            torch.ones(batch, past + new, dtype=torch.int64),
            torch.arange(past, past + new).unsqueeze(0).repeat(batch, 1),
            *(torch.randn(batch, heads, past, head_size) for _ in cache),
        ),
        path,
        dynamo=True,
        external_data=False,
        input_names=[
            *("input_ids", "attention_mask", "position_ids"),
            *(f"past_key_values.{each}" for each in cache),
        ],
        output_names=["logits", *(f"present.{each}" for each in cache)],
        dynamic_shapes=(
            length,
            {0: "batch_size", 1: "total_sequence_length"},
            length,
            tuple({0: "batch_size", 2: "past_sequence_length"} for _ in cache),
        ),
        verbose=False,
    )


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
        is_spectrogram = name == "whisper_encoder"
        example = torch.randn(2, MELS, FRAMES) if is_spectrogram else torch.randn(2, SAMPLES)
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
            write = export_decoder if name in DECODERS else export
            write(name, Path(folder, f"{name}.onnx"))
        except Exception as error:  # the others are exported nevertheless
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
