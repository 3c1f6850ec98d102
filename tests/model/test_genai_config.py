"""The configuration of a model for onnxruntime-genai: its file, its cache, and mistakes in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from memdiag.errors import ModelError
from memdiag.model.genai_config import named_model
from tests.decoders import genai_config


def written(folder: Path, content: Any) -> Path:
    path = folder / "genai_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_file_and_its_folder_name_the_decoder_and_its_cache(tmp_path: Path) -> None:
    path = written(tmp_path, genai_config())
    decoder, config = named_model(path)
    assert (decoder, config) == named_model(tmp_path)
    assert decoder == tmp_path / "decoder.onnx"
    assert config is not None
    assert config.feed == (
        "present.*.key=past_key_values.*.key",
        "present.*.value=past_key_values.*.value",
    )
    assert (config.layers, config.heads, config.head_size) == (1, 2, 32)
    assert (config.max_tokens, config.buffer_tokens) == (96, 80)


def test_other_files_are_models(tmp_path: Path) -> None:
    assert named_model(tmp_path / "model.onnx") == (tmp_path / "model.onnx", None)
    with pytest.raises(ModelError, match=r"a folder without a genai_config.json"):
        named_model(tmp_path)


def test_what_is_not_stated_is_not_known(tmp_path: Path) -> None:
    path = written(tmp_path, {"model": {"decoder": {"filename": "a.onnx"}}})
    config = named_model(path).genai
    assert config is not None
    assert config.feed == ()
    assert config.max_tokens is config.buffer_tokens is config.layers is None


def test_a_cache_that_grows_has_no_buffer(tmp_path: Path) -> None:
    content = genai_config()
    content["search"]["past_present_share_buffer"] = False
    config = named_model(written(tmp_path, content)).genai
    assert config is not None
    assert config.buffer_tokens is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "names no file of a decoder"),
        ({"model": {"decoder": {"filename": 3}}}, "names no file of a decoder"),
        ({"model": {"decoder": {"pipeline": []}}}, "a pipeline of several models"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        named_model(written(tmp_path, content))
