"""The calls of a generation: their inputs, saved for the child, and their record."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from memdiag.api.inputs import ChosenInputs, chosen_dimensions, save_inputs
from memdiag.model.decoder import Decoder, check_calls, find_decoder
from memdiag.model.genai_config import CONFIG_NAME
from memdiag.model.inputs import InputPlan
from memdiag.model.model_file import ModelFile
from memdiag.records.generation import GenaiConfig, Generation, KeyValueCache
from memdiag.runner.job import Feed, GenerationConfig, GenerationJob, InputConfig, StepInput


class GenerationCalls(NamedTuple):
    """The calls of a generation.

    Attributes:
        prompt: the inputs of the first call.
        step: the inputs of a step that are not fed; inputs that grow have their last size.
        job: what the child needs to know of the calls.
        record: the generation, without measured figures.
        decoder: the model, with its pairs and dimensions.
    """

    prompt: ChosenInputs
    step: tuple[InputPlan, ...]
    job: GenerationJob
    record: Generation
    decoder: Decoder


def choose_calls(
    model_file: ModelFile, config: GenerationConfig, inputs: InputConfig
) -> GenerationCalls:
    """Return the calls of the generation that `config` describes.

    Args:
        model_file: the open model.
        config: how many tokens are run, and the pairs.
        inputs: sizes of free dimensions that do not count tokens, and arrays for inputs that are
            the same in all calls.

    Raises:
        UsageError: the model has no cache that can be fed, or an argument does not fit it.
    """
    decoder = find_decoder(model_file, feed=config.feed, dims=inputs.dims, given=inputs.arrays)
    prefill, steps = config.prefill_tokens, config.steps
    genai = config.genai
    max_tokens = None if genai is None else genai.max_tokens
    check_calls(decoder, prefill=prefill, steps=steps, max_tokens=max_tokens)
    record = generation_record(decoder, config)
    output_by_input = {pair.input: pair.output for pair in decoder.pairs}
    plans = tuple(
        msgspec.structs.replace(
            plan, note=f"empty, then {output_by_input[plan.name]} of the call before"
        )
        if plan.name in output_by_input
        else plan
        for plan in decoder.plans(past=0, new=prefill)
    )
    # Dimensions that count tokens have another size in each call.
    counting_dimensions = decoder.past | decoder.new | decoder.totals
    dimensions = tuple(
        dimension
        for dimension in chosen_dimensions(model_file, plans, decoder.dims, inputs.arrays)
        if dimension.name not in counting_dimensions and dimension.role != "sum"
    )
    last_step_plans = decoder.plans(past=prefill + steps - 1, new=1)
    return GenerationCalls(
        prompt=ChosenInputs(plans, dimensions, tuple(_cache_difference_notes(record.cache, genai))),
        step=tuple(plan for plan in last_step_plans if plan.name not in output_by_input),
        job=GenerationJob(
            pairs=tuple((pair.output, pair.input) for pair in decoder.pairs),
            prefill_tokens=prefill,
            step_inputs=tuple(
                StepInput(
                    name=step_input.name,
                    grows_along=step_input.grows_along,
                    past_offset=step_input.past_offset,
                )
                for step_input in decoder.step_inputs()
            ),
            cache=record.cache.formula(record.tokens),
            prefill_cache=record.cache.formula(prefill),
        ),
        record=record,
        decoder=decoder,
    )


def generation_record(decoder: Decoder, config: GenerationConfig) -> Generation:
    """Return the record of a generation of `decoder`, without measured figures."""
    genai = config.genai
    limits = [decoder.positions()]
    if genai is not None and genai.max_tokens is not None:
        limits.append((genai.max_tokens, CONFIG_NAME))
    smallest_limit = min((limit for limit in limits if limit is not None), default=None)
    is_named = genai is not None and config.feed == genai.feed
    return Generation(
        feed=decoder.feed,
        found_by="genai" if is_named else "user" if config.feed else "names",
        prefill_tokens=config.prefill_tokens,
        steps=config.steps,
        cache=decoder.cache(),
        max_tokens=smallest_limit[0] if smallest_limit else None,
        max_tokens_source=smallest_limit[1] if smallest_limit else "",
        buffer_tokens=None if genai is None else genai.buffer_tokens,
    )


def _cache_difference_notes(cache: KeyValueCache, genai: GenaiConfig | None) -> Iterator[str]:
    """Yield a note if the model has another cache than its configuration states."""
    if genai is None or not cache.layers:
        return
    config_sizes = (genai.layers, genai.heads, genai.head_size)
    model_sizes = (cache.layers, cache.heads, cache.head_size)
    names = ("layers", "key and value heads", "elements in a head")
    for name, config_size, model_size in zip(names, config_sizes, model_sizes, strict=True):
        if config_size is not None and config_size != model_size:
            yield (
                f"{CONFIG_NAME} states {config_size:,} {name}, but the cache of the model has"
                f" {model_size:,}"
            )


def save_step_inputs(calls: GenerationCalls, inputs: InputConfig, folder: Path) -> list[Feed]:
    """Write the arrays of a step to `folder` and return their files."""
    return save_inputs(calls.step, inputs.arrays, folder)
