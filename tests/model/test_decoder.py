"""How a decoder generates: which outputs are fed to which inputs, and what a call receives."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.errors import UsageError
from memdiag.model.decoder import CallInput, Decoder, FeedPair, check_calls, find_decoder
from memdiag.model.model_file import open_model
from tests.decoders import HEAD_SIZE, HEADS, POSITIONS, TOKEN_BYTES, decoder, saved


def found(folder: Path, model: onnx.ModelProto, *feed: str, **arguments: Any) -> Decoder:
    with open_model(saved(folder, model)) as file:
        return find_decoder(file, feed=feed, **arguments)


def integer(name: str, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


@pytest.mark.parametrize(
    ("past", "present", "feed"),
    [
        ("past_key_values.0", "present.0", "present.*=past_key_values.*"),  # optimum, genai
        ("past_0", "present_0", "present*=past*"),  # onnxruntime's own tools
        ("past_key_values_0", "present_0", "present_*=past_key_values_*"),
    ],
)
def test_the_names_of_exporters_are_paired(
    tmp_path: Path, past: str, present: str, feed: str
) -> None:
    one = found(tmp_path, decoder(past=past, present=present))
    assert one.feed == (feed,)
    assert one.pairs == (
        FeedPair(f"{present}.key", f"{past}.key"),
        FeedPair(f"{present}.value", f"{past}.value"),
    )


def test_other_names_need_a_pattern(tmp_path: Path) -> None:
    model = decoder(past="memory_in.0", present="memory_out.0")
    with pytest.raises(UsageError, match="so that there is no cache"):
        found(tmp_path, model)
    assert len(found(tmp_path, model, "memory_out.*=memory_in.*").pairs) == 2


@pytest.mark.parametrize("total", ["total_sequence_length", "past_sequence_length + new", "any"])
def test_a_call_has_the_prompt_or_a_token_and_the_tokens_before_it(
    tmp_path: Path, total: str
) -> None:
    one = found(tmp_path, decoder(total=total, new_length="new" if "new" in total else "length"))
    prompt = {plan.name: plan.shape for plan in one.plans(past=0, new=8)}
    assert prompt["input_ids"] == prompt["position_ids"] == prompt["attention_mask"] == (1, 8)
    assert prompt["past_key_values.0.key"] == (1, HEADS, 0, HEAD_SIZE)
    step = {plan.name: plan.shape for plan in one.plans(past=8, new=1)}
    assert step["input_ids"] == step["position_ids"] == (1, 1)
    assert step["attention_mask"] == (1, 9)
    assert step["past_key_values.0.value"] == (1, HEADS, 8, HEAD_SIZE)


def test_inputs_that_are_not_fed_change_from_step_to_step(tmp_path: Path) -> None:
    numbers = (integer("past_sequence_length", 1), integer("total_sequence_length", 1))
    one = found(tmp_path, decoder(extra_inputs=(*numbers, integer("language", 1))))
    assert one.step_inputs() == (
        CallInput("input_ids"),
        CallInput("attention_mask", grows_along=1),
        CallInput("position_ids", past_offset=0),
        CallInput("past_sequence_length", past_offset=0),
        CallInput("total_sequence_length", past_offset=1),
        CallInput("language"),
    )


def test_the_cache_has_a_formula(tmp_path: Path) -> None:
    cache = found(tmp_path, decoder(), dims={"batch": 3}).cache()
    assert cache.bytes_at(10) == 3 * 10 * TOKEN_BYTES
    assert cache.formula(10) == "1 layer × 2 × 2 heads × 32 × 10 tokens × 4 bytes × batch 3"


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ("gone.*=past_key_values.*", "no output is called 'gone.*'"),
        ("present.*=gone.*", "no input is called 'gone.*'"),
        ("present.*.key=past_key_values.*.key", "'past_key_values.0.value' has the shape"),
        ("present.0.key=past_key_values.*", "not a pair of patterns"),
        ("present.*", "not a pair of patterns"),
        ("logits=past_key_values.0.key", "cannot be fed"),
        ("present.0.*=position_*", "no input is called 'position_*'"),
    ],
)
def test_a_pattern_that_does_not_fit_is_one_sentence(
    tmp_path: Path, feed: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        found(tmp_path, decoder(), feed)
    assert message in str(error.value)


def test_keys_and_values_may_have_a_pattern_each(tmp_path: Path) -> None:
    keys, values = "present.*.key=past_key_values.*.key", "present.*.value=past_key_values.*.value"
    assert found(tmp_path, decoder(), keys, values).pairs == found(tmp_path, decoder()).pairs
    with pytest.raises(UsageError, match=r"output 'present.0.key' is in two pairs"):
        found(tmp_path, decoder(), keys, values, keys)


def test_each_past_needs_an_output(tmp_path: Path) -> None:
    past = helper.make_tensor_value_info(
        "past_key_values.1.key", TensorProto.FLOAT, ["batch", HEADS, "length_of_layer_1", 4]
    )
    with pytest.raises(UsageError, match=r"'past_key_values.1.key' is called .* but no output"):
        found(tmp_path, decoder(extra_inputs=(past,)))
    past.name = "past_key_values.1.encoder.key"  # is the same in all steps
    assert found(tmp_path, decoder(extra_inputs=(past,))).pairs


def test_types_that_differ_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"float \[batch, 2, .*cannot be fed .*float16 \[batch"):
        found(tmp_path, decoder(cache_type=TensorProto.FLOAT16))


def test_a_merged_decoder_is_refused(tmp_path: Path) -> None:
    branch = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    with pytest.raises(UsageError, match="merged decoder"):
        found(tmp_path, decoder(extra_inputs=(branch,)))


def test_a_cache_of_fixed_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot grow"):
        found(tmp_path, decoder(past_length=16))


def test_dimensions_that_count_tokens_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Use --prefill and --steps"):
        found(tmp_path, decoder(), dims={"sequence_length": 4})


def test_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    with open_model(saved(tmp_path, decoder())) as file:
        one = find_decoder(file)
        assert one.positions() == (POSITIONS, "the table that position_ids indexes")
        check_calls(one, prefill=90, steps=6, max_tokens=None)
        with pytest.raises(UsageError, match="make 97 tokens, but the model has 96 positions"):
            check_calls(one, prefill=90, steps=7, max_tokens=None)
        with pytest.raises(UsageError, match=r"40 positions \(genai_config.json\)"):
            check_calls(one, prefill=30, steps=11, max_tokens=40)


def test_a_prompt_needs_a_free_length(tmp_path: Path) -> None:
    with open_model(saved(tmp_path, decoder(new_length=1))) as file:
        one = find_decoder(file)
        check_calls(one, prefill=1, steps=4, max_tokens=None)
        with pytest.raises(UsageError, match="Use --prefill 1"):
            check_calls(one, prefill=2, steps=4, max_tokens=None)


def test_arrays_are_for_inputs_that_stay(tmp_path: Path) -> None:
    model = decoder(extra_inputs=(integer("language", 1),))
    assert found(tmp_path, model, given={"language": np.ones(1, "i8")}).plans(past=4, new=1)
    with pytest.raises(UsageError, match="'input_ids' changes from call to call"):
        found(tmp_path, model, given={"input_ids": np.ones((1, 4), "i8")})
