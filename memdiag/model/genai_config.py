"""The configuration of a model for onnxruntime-genai: ``genai_config.json``.

It names the file of the decoder, and the inputs and outputs of its cache with ``%d`` for the number
of the layer.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from memdiag.errors import ModelError
from memdiag.records.generation import GenaiConfig
from memdiag.regular_files import read_regular

CONFIG_NAME = "genai_config.json"
MAX_CONFIG_BYTES = 1 << 20

_CACHE_NAMES = (
    ("present_key_names", "past_key_names"),
    ("present_value_names", "past_value_names"),
    ("present_names", "past_names"),  # keys and values in one tensor
)


class NamedModel(NamedTuple):
    """The model that a path names.

    Attributes:
        path: the file of the model; the decoder of a model for onnxruntime-genai.
        genai: what the configuration for onnxruntime-genai states of the cache; None without one.
    """

    path: Path
    genai: GenaiConfig | None = None


def named_model(path: Path) -> NamedModel:
    """Return the model that `path` names: an ONNX file, a configuration, or a folder with one.

    Raises:
        ModelError: the folder has no configuration, or the configuration cannot be read or names
            no decoder.
    """
    if path.is_dir():
        path = path / CONFIG_NAME
        if not path.exists():
            raise ModelError(
                f"{path.parent}: this is a folder without a {CONFIG_NAME}. Name an ONNX file."
            )
    elif path.name != CONFIG_NAME:
        return NamedModel(path)
    return read_genai_config(path)


def read_genai_config(path: Path) -> NamedModel:
    """Return the model that the configuration `path` describes.

    Raises:
        ModelError: it cannot be read, or names no decoder.
    """
    try:
        content = json.loads(read_regular(path, MAX_CONFIG_BYTES))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error}).") from error
    model = _config_section(content, "model")
    decoder, search = _config_section(model, "decoder"), _config_section(content, "search")
    name = decoder.get("filename")
    if "pipeline" in decoder:
        raise ModelError(
            f"{path}: the decoder is a pipeline of several models. Name one of the ONNX files."
        )
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path}: it names no file of a decoder (model.decoder.filename).")
    inputs, outputs = _config_section(decoder, "inputs"), _config_section(decoder, "outputs")
    feed = tuple(
        f"{outputs[present]}={inputs[past]}".replace("%d", "*")
        for present, past in _CACHE_NAMES
        if isinstance(outputs.get(present), str) and isinstance(inputs.get(past), str)
    )
    max_length = _positive_count(search, "max_length")
    heads = _positive_count(decoder, "num_key_value_heads") or _positive_count(
        decoder, "num_attention_heads"
    )
    config = GenaiConfig(
        feed=feed,
        layers=_positive_count(decoder, "num_hidden_layers"),
        heads=heads,
        head_size=_positive_count(decoder, "head_size"),
        max_tokens=_positive_count(model, "context_length") or max_length,
        buffer_tokens=max_length if search.get("past_present_share_buffer") is True else None,
    )
    return NamedModel(path.parent / name, config)


def _config_section(content: Any, name: str) -> dict[str, Any]:
    section = content.get(name) if isinstance(content, dict) else None
    return section if isinstance(section, dict) else {}


def _positive_count(section: dict[str, Any], name: str) -> int | None:
    value = section.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_count else None
