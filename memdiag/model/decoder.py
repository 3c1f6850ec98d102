"""The calls by which a decoder with past generates a text, and the KV cache between them.

The first call has the prompt and an empty past. Each further call has one token, and the keys and
values that the call before returned. Which output is fed to which input is a pair of patterns such
as ``present.*=past_key_values.*``, where ``*`` stands for the same text on both sides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from onnx import ValueInfoProto

from memdiag.errors import UsageError
from memdiag.model.axis_roles import AxisRole, axis_roles, dims_by_name, total_lengths
from memdiag.model.dimensions import (
    InputAxis,
    axes_of,
    batch_keys,
    expression_sizes,
    is_expression,
    tensor_type,
    unsized_axes,
)
from memdiag.model.inputs import InputPlan, plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.records.generation import KeyValueCache
from memdiag.stored_arrays import GivenArray
from memdiag.units import some_of

NATURAL_FEEDS = (
    "present*=past*",
    "present.*=past_key_values.*",
    "present_*=past_key_values_*",
)
"""Names that exporters use: optimum, onnxruntime-genai, transformers, onnxruntime's own tools."""

BRANCH_INPUT = "use_cache_branch"
"""The input by which optimum's merged decoders choose between a graph with and without cache."""

MAX_LISTED_INPUTS = 6
MAX_NUMBER_ELEMENTS = 8
"""An input of more integers is data, not the number of tokens."""


class FeedPair(NamedTuple):
    """An output, and the input of the next call to which it is fed."""

    output: str
    input: str


class CallInput(NamedTuple):
    """How an input that is not fed changes from one call of one token to the next.

    Attributes:
        name: the input.
        grows_along: the axis that becomes longer by one in each call; None if its shape stays.
        past_offset: how much larger its elements are than the number of tokens in the past, for
            inputs such as ``position_ids``; None if they have other values.
    """

    name: str
    grows_along: int | None = None
    past_offset: int | None = None


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model that can generate: the pairs, and its dimensions by what they count.

    Attributes:
        model_file: the open model.
        feed: the patterns of the pairs.
        pairs: the outputs and the inputs to which they are fed.
        past, new, totals: names of the free dimensions that count the tokens in the past, the
            tokens of the call, and both together.
        dims: sizes of other free dimensions, by name.
        given: arrays for some of the inputs.
    """

    model_file: ModelFile
    feed: tuple[str, ...]
    pairs: tuple[FeedPair, ...]
    past: frozenset[str]
    new: frozenset[str]
    totals: frozenset[str]
    dims: Mapping[str, int]
    given: Mapping[str, GivenArray]

    def sizes(self, *, past: int, new: int) -> dict[str, int]:
        """Return the sizes of free dimensions in a call, as far as they are known."""
        return {
            **self.dims,
            **dict.fromkeys(self.past, past),
            **dict.fromkeys(self.new, new),
            **dict.fromkeys(self.totals, past + new),
        }

    def plans(self, *, past: int, new: int) -> tuple[InputPlan, ...]:
        """Return the inputs of a call of `new` tokens with `past` tokens before them.

        Raises:
            UsageError: as `plan_inputs`.
        """
        plans = plan_inputs(self.model_file, dims=self.sizes(past=past, new=new), given=self.given)
        return tuple(_counting_plan(plan, past=past, total=past + new) for plan in plans)

    def all_sizes(self, *, past: int, new: int) -> dict[str, int]:
        """Return the sizes of all free dimensions in a call, and of sums of them, by symbol.

        Exporters name the sizes of other values by sums such as ``past + new``.
        """
        shapes = {plan.name: plan.shape for plan in self.plans(past=past, new=new)}
        sizes = {
            axis.key: shapes[value.name][axis.position]
            for value in self.model_file.graph.required_inputs
            for axis in axes_of(value) or ()
            if axis.size is None
        }
        graph = self.model_file.proto.graph
        symbols = (
            size.dim_param
            for value in (*graph.value_info, *graph.output)
            for size in value.type.tensor_type.shape.dim
        )
        return sizes | expression_sizes(symbols, sizes)

    def step_inputs(self) -> tuple[CallInput, ...]:
        """Return how the inputs that are not fed change from step to step."""
        fed = {pair.input for pair in self.pairs}
        plans, later_plans = self.plans(past=1, new=1), self.plans(past=2, new=1)
        inputs = []
        for plan, later in zip(plans, later_plans, strict=True):
            if plan.name in fed:
                continue
            axes = [axis for axis, size in enumerate(plan.shape) if later.shape[axis] != size]
            offset = None
            if plan.fill == "positions" and not axes:
                offset = 0
            elif plan.value != later.value and isinstance(plan.value, int):
                offset = plan.value - 1
            inputs.append(CallInput(plan.name, axes[0] if axes else None, offset))
        return tuple(inputs)

    def cache(self) -> KeyValueCache:
        """Return the KV cache at the chosen sizes."""
        fed = {pair.input for pair in self.pairs}
        plans = [plan for plan in self.plans(past=1, new=1) if plan.name in fed]
        sizes = [ELEMENT_TYPES[plan.element_type].nbytes(plan.shape) for plan in plans]
        cache = KeyValueCache(tensors=len(plans), token_bytes=sum(sizes))
        axes = {axis.position for axis in self._past_axes()}
        kinds = {(plan.shape, plan.element_type) for plan in plans}
        first = plans[0]
        bits = ELEMENT_TYPES[first.element_type].bits
        if len(kinds) > 1 or len(axes) > 1 or len(first.shape) not in (4, 5) or bits % 8:
            return cache
        other_sizes = [size for position, size in enumerate(first.shape) if position not in axes]
        is_stacked = len(first.shape) == 5  # keys and values in one tensor
        if (other_sizes.pop(0) != 2) if is_stacked else len(plans) % 2:
            return cache
        batch, heads, head_size = other_sizes
        return msgspec.structs.replace(
            cache,
            layers=len(plans) if is_stacked else len(plans) // 2,
            heads=heads,
            head_size=head_size,
            element_bytes=bits // 8,
            batch=batch,
        )

    def _past_axes(self) -> Iterable[InputAxis]:
        fed = {pair.input for pair in self.pairs}
        for value in self.model_file.graph.required_inputs:
            if value.name in fed:
                yield from (axis for axis in axes_of(value) or () if axis.key in self.past)

    def positions(self) -> tuple[int, str] | None:
        """Return the number of positions that the model has, and their table; None if unknown."""
        for plan in self.plans(past=0, new=1):
            if plan.fill == "positions" and plan.high:
                return plan.high, f"the table that {plan.name} indexes"
        return None


def find_decoder(
    model_file: ModelFile,
    *,
    feed: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    given: Mapping[str, GivenArray] | None = None,
) -> Decoder:
    """Return how `model_file` generates.

    Args:
        model_file: the open model.
        feed: pairs of patterns ``OUTPUT=INPUT``; those of an exporter if there are none.
        dims: sizes of free dimensions by name or role.
        given: arrays for some of the inputs, which are the same in all calls.

    Raises:
        UsageError: the model has no cache that can be fed, or an argument does not fit it.
    """
    inputs = {value.name: value for value in model_file.graph.required_inputs}
    outputs = {value.name: value for value in model_file.graph.output_values}
    if BRANCH_INPUT in inputs:
        raise UsageError(
            f"{model_file.path}: this is a merged decoder: its input {BRANCH_INPUT!r} chooses"
            " between a graph with and a graph without cache. Export the decoder with past alone"
            " (optimum-cli export onnx --no-post-process, or model.onnx of newer exports)."
        )
    patterns = tuple(feed) or (_natural_feed(model_file, inputs, outputs),)
    pairs = [pair for text in patterns for pair in _feed_pairs(text, inputs, outputs)]
    for name in ("output", "input"):
        names = [getattr(pair, name) for pair in pairs]
        repeated_name = next((name for name in names if names.count(name) > 1), None)
        if repeated_name is not None:
            raise UsageError(f"--feed: {name} {repeated_name!r} is in two pairs. Name it once.")
    for pair in pairs:
        _check_types(outputs[pair.output], inputs[pair.input])
    return _make_decoder(model_file, patterns, tuple(pairs), inputs, dict(dims or {}), given or {})


def _make_decoder(
    model_file: ModelFile,
    feed: tuple[str, ...],
    pairs: tuple[FeedPair, ...],
    inputs: Mapping[str, ValueInfoProto],
    dims: dict[str, int],
    given: Mapping[str, GivenArray],
) -> Decoder:
    axes = {name: axes_of(value) for name, value in inputs.items()}
    free_axes = {axis.key: axis for axis in unsized_axes(axes)}
    roles = axis_roles(model_file.graph, model_file.functions)
    batches = batch_keys(axes)
    past = set()
    for pair in pairs:
        keys = {axis.key for axis in axes[pair.input] or () if axis.size is None}
        keys -= batches
        past_keys = {key for key in keys if key in roles and roles[key].name == "past"}
        keys = past_keys or keys
        if len(keys) != 1:
            raise UsageError(
                f"input {pair.input!r} has {_input_shape_text(axes[pair.input])}: "
                + (
                    "its past has a fixed length, so that the cache cannot grow."
                    if not keys
                    else "it is not known which dimension counts the tokens of the past."
                )
                + " Profile the model without --feed, --steps and --prefill."
            )
        past |= keys
    fed = {pair.input for pair in pairs}
    for name, input_axes in axes.items():
        is_past = any(axis.key in past for axis in input_axes or ())
        if is_past and name not in fed and "mask" not in name.lower():
            raise UsageError(
                f"--feed: input {name!r} has {_input_shape_text(input_axes)}, with the length of"
                " the past, but no output is fed to it. Name a pair for it as well."
            )
    # Dimensions are also recognized by their position, as not all exporters name them.
    known_roles = roles | dict.fromkeys(past, AxisRole("past", 0, "fed"))
    unfed_axes = {
        name: input_axes
        for name, input_axes in axes.items()
        if name not in fed and input_axes and "encoder" not in name.lower()
    }
    totals = set(total_lengths({**unfed_axes, **{name: axes[name] for name in fed}}, known_roles))
    new = {
        axis.key
        for name, input_axes in unfed_axes.items()
        for axis in input_axes or ()
        if axis.size is None
        and axis.position == (1 if axis.rank >= 2 else 0)
        and "mask" not in name.lower()
        and (known_roles.get(axis.key) or AxisRole("", 0, "")).name == "sequence"
        and axis.key not in past | totals | batches
    }
    for name, input_axes in unfed_axes.items():
        if "mask" in name.lower() and input_axes and input_axes[-1].size is None:
            totals |= {input_axes[-1].key} - new - past - batches
    totals = {key for key in totals if not is_expression(key, free_axes)}
    dims = dims_by_name(model_file.graph, model_file.functions, dims)
    for key in dims:
        if key in past | new | totals:
            raise UsageError(
                f"--dim: {key!r} counts tokens, which change from call to call. Use --prefill and"
                " --steps."
            )
    counting_keys = past | new | totals
    for name in given:
        if name in fed or any(axis.key in counting_keys for axis in axes.get(name) or ()):
            raise UsageError(
                f"--input: {name!r} changes from call to call, so that one array cannot be given"
                " for it. Use --prefill for the number of tokens."
            )
    return Decoder(
        model_file=model_file,
        feed=feed,
        pairs=pairs,
        past=frozenset(past),
        new=frozenset(new),
        totals=frozenset(totals - past - new),
        dims=dims,
        given=given,
    )


def check_calls(decoder: Decoder, *, prefill: int, steps: int, max_tokens: int | None) -> None:
    """Check that a prompt of `prefill` tokens and `steps` tokens after it fit the model.

    Args:
        decoder: the model.
        prefill: the tokens of the prompt.
        steps: the calls of one token after it.
        max_tokens: the longest context by the configuration of the model; None without one.

    Raises:
        UsageError: they do not fit.
    """
    if not decoder.new and prefill != 1:
        raise UsageError(
            f"{decoder.model_file.path}: no dimension of its inputs counts the tokens of a call, so"
            f" that a prompt of {prefill} tokens cannot be run at once. Use --prefill 1."
        )
    positions = decoder.positions()
    limits = [positions] if positions is not None else []
    if max_tokens is not None:
        limits.append((max_tokens, "genai_config.json"))
    for limit, source in sorted(limits)[:1]:
        if prefill + steps > limit:
            raise UsageError(
                f"--prefill {prefill} and --steps {steps} make {prefill + steps:,} tokens, but the"
                f" model has {limit:,} positions ({source}). Use fewer."
            )


def _natural_feed(
    model_file: ModelFile,
    inputs: Mapping[str, ValueInfoProto],
    outputs: Mapping[str, ValueInfoProto],
) -> str:
    """Return the one pattern of an exporter that pairs outputs with inputs.

    Raises:
        UsageError: no pattern does, or several do.
    """
    feeds = [text for text in NATURAL_FEEDS if _matching_pairs(text, inputs, outputs)]
    if len(feeds) == 1:
        return feeds[0]
    if feeds:
        raise UsageError(
            f"{model_file.path}: both {' and '.join(feeds)} pair outputs with inputs. Choose one of"
            " them with --feed."
        )
    raise UsageError(
        f"{model_file.path}: no input is a past of keys and values that an output continues, by the"
        f" names that exporters use ({', '.join(NATURAL_FEEDS)}), so that there is no cache. Name"
        f" the pairs with --feed OUTPUT=INPUT. Inputs: {_names_text(inputs)}; outputs:"
        f" {_names_text(outputs)}."
    )


def _matching_pairs(text: str, inputs: Iterable[str], outputs: Iterable[str]) -> list[FeedPair]:
    left, right = _pattern_halves(text)
    matches = ((name, _star_text(left, name)) for name in outputs)
    names = set(inputs)
    pairs = (FeedPair(name, right.replace("*", part)) for name, part in matches if part is not None)
    return [pair for pair in pairs if pair.input in names]


def _feed_pairs(
    text: str, inputs: Mapping[str, ValueInfoProto], outputs: Mapping[str, ValueInfoProto]
) -> list[FeedPair]:
    """Return the pairs of outputs and inputs that the patterns `text` name.

    Raises:
        UsageError: they name none, or an output without its input.
    """
    left, right = _pattern_halves(text)
    if not any(_star_text(left, name) is not None for name in outputs):
        raise UsageError(
            f"--feed: no output is called {left!r}. The model's outputs are:"
            f" {_names_text(outputs)}."
        )
    pairs = _matching_pairs(text, inputs, outputs)
    if not pairs:
        raise UsageError(
            f"--feed: no input is called {right!r} with the same text for * as an output called"
            f" {left!r}. The model's inputs are: {_names_text(inputs)}."
        )
    fed = {pair.input for pair in pairs}
    # Caches of an encoder stay as they are, and past_sequence_length is not a cache.
    unpaired = [
        name
        for name in inputs
        if _star_text(right, name) is not None
        and name not in fed
        and "encoder" not in name.lower()
        and re.search(r"\d", name)
    ]
    if unpaired:
        raise UsageError(
            f"--feed: input {unpaired[0]!r} is called {right!r}, but no output {left!r} has the"
            " same text for *. Choose patterns that pair every past input."
        )
    return pairs


def _pattern_halves(text: str) -> tuple[str, str]:
    left, separator, right = text.partition("=")
    if not separator or left.count("*") > 1 or left.count("*") != right.count("*") or not right:
        raise UsageError(
            f"--feed: {text!r} is not a pair of patterns with one * each. Write it like"
            " present.*=past_key_values.*."
        )
    return left, right


def _star_text(pattern: str, name: str) -> str | None:
    """Return the text for which ``*`` stands; None if `name` does not match."""
    before, star, after = pattern.partition("*")
    if not star:
        return "" if name == pattern else None
    is_long = len(name) > len(before) + len(after)
    fits = is_long and name.startswith(before) and name.endswith(after)
    return name[len(before) : len(name) - len(after)] if fits else None


def _check_types(output: ValueInfoProto, input: ValueInfoProto) -> None:
    """Check that an output can be fed to an input: element type, rank and fixed sizes.

    Raises:
        UsageError: it cannot be fed.
    """
    source, target = tensor_type(output.type), tensor_type(input.type)
    produced, expected = axes_of(output), axes_of(input)
    is_tensor = input.type.HasField("tensor_type") and output.type.HasField("tensor_type")
    fits = (
        is_tensor
        and source is not None
        and target is not None
        and source.elem_type in (0, target.elem_type)
    )
    if fits and produced is not None and expected is not None:
        fits = len(produced) == len(expected) and all(
            None in (axis.size, other.size) or axis.size == other.size
            for axis, other in zip(produced, expected, strict=True)
        )
    if not fits:
        raise UsageError(
            f"--feed: output {output.name!r} ({_element_type_text(output)}) cannot be fed to input"
            f" {input.name!r} ({_element_type_text(input)}). Choose patterns whose shapes and types"
            " fit."
        )


def _counting_plan(plan: InputPlan, *, past: int, total: int) -> InputPlan:
    """Return `plan` with the number of tokens, for inputs that are such a number."""
    is_integer = ELEMENT_TYPES[plan.element_type].dtype.kind in "iu"
    if plan.fill == "given" or not is_integer or np.prod(plan.shape) > MAX_NUMBER_ELEMENTS:
        return plan
    words = set(re.findall(r"[a-z]+", plan.name.lower()))
    kind: Literal["past", "total", "last"] | None = None
    if {"seqlens", "k"} <= words:
        kind = "last"
    elif words & {"len", "length", "lengths", "lens"} and words & {"past", "total"}:
        kind = "past" if "past" in words else "total"
    if kind is None:
        return plan
    value = {"past": past, "total": total, "last": total - 1}[kind]
    note = {"past": "the tokens in the past", "total": "all tokens", "last": "the last token"}
    return msgspec.structs.replace(
        plan, fill="constant", value=value, low=None, high=None, note=f"{value}, {note[kind]}"
    )


def _input_shape_text(axes: Sequence[InputAxis] | None) -> str:
    if axes is None:
        return "an unknown shape"
    sizes = ", ".join(str(axis.key if axis.size is None else axis.size) for axis in axes)
    return f"the shape [{sizes}]"


def _element_type_text(value: ValueInfoProto) -> str:
    tensor = tensor_type(value.type)
    element = ELEMENT_TYPES.get(tensor.elem_type) if tensor is not None else None
    axes = axes_of(value)
    sizes = "…" if axes is None else ", ".join(str(axis.symbol or axis.size) for axis in axes)
    return f"{element.name if element else 'no tensor'} [{sizes}]"


def _names_text(values: Iterable[str]) -> str:
    return some_of(list(values), MAX_LISTED_INPUTS) or "none"
