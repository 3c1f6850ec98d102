"""Roles of free dimensions (batch, sequence, image height …), and a realistic size for each."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from onnx import ValueInfoProto

from memdiag.errors import UsageError
from memdiag.model.count_inputs import INTEGERS, count_inputs, free_axes
from memdiag.model.dimensions import (
    InputAxis,
    axes_of,
    batch_keys,
    is_expression,
    tensor_type,
    unknown_dimension,
    unsized_axes,
)
from memdiag.model.graph_index import (
    Graph,
    Node,
    Scope,
    Use,
    integer_attribute,
    integers_attribute,
    main_scope,
)
from memdiag.model.index_ranges import small_integers

SEQUENCE_LENGTH = 128
IMAGE_SIDE = 224
DETECTION_SIDE = 640  # of an image whose output is a map of it, or a list of detected objects
AUDIO_SAMPLES = 16_000  # a second of sound
VIDEO_FRAMES = 16
MEL_FEATURES = 80

MAX_FOLLOWED_USES = 200
"""An input is followed through at most this many uses to find the operators that need a size."""

_BATCH_WORDS = {"batch", "batchsize", "bs"}
_PAST_WORDS = {"past", "cache", "cached", "history"}
_TOTAL_WORDS = {"total"}
_SEQUENCE_WORDS = {
    *("seq", "seqlen", "sequence", "length", "len", "lengths", "context", "prompt"),
    *("time", "times", "timestep", "timesteps", "step", "steps", "frame", "frames"),
    *("token", "tokens", "word", "words", "text", "char", "chars", "phoneme", "phonemes"),
    *("src", "tgt", "query"),
}
_SAMPLES_WORDS = {"samples", "audio", "wav", "waveform", "pcm", "signal", "speech"}
_HEIGHT_WORDS, _WIDTH_WORDS = {"height"}, {"width"}
_CHANNELS_WORDS = {"channel", "channels"}
_ROLE_BY_LETTER = {"b": "batch", "n": "batch", "t": "sequence", "l": "sequence", "s": "sequence"}
_DETECTION_WORDS = {
    *("box", "boxes", "bbox", "bboxes", "det", "dets", "detection", "detections"),
    *("mask", "masks", "heatmap", "heatmaps"),
}
_IMAGE_LETTERS = {"h": "height", "w": "width", "c": "channels"}

_SAME_LAYOUT_OPERATORS = {
    "Cast",
    "Clip",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Identity",
    "Pad",
    "QuantizeLinear",
    "Relu",
}
_ELEMENTWISE_OPERATORS = {"Add", "Div", "Mul", "Sub"}
_ROLE_CONVOLUTIONS = ("Conv", "ConvInteger", "FusedConv", "QLinearConv")
_RECURRENT_OPERATORS = ("GRU", "LSTM", "RNN", "DynamicQuantizeLSTM")


Size = TypeVar("Size")


class AxisRole(NamedTuple):
    """The role of a free dimension.

    Attributes:
        name: ``batch``, ``sequence``, ``past``, ``samples``, ``height``, ``width``, ``channels``,
            ``frames``, ``features``, ``iterations`` (of a Loop), ``count`` (of values) or ``size``
            (not known).
        size: a realistic size.
        reason: the evidence for it, in words.
        is_required: whether an operator accepts no other size.
    """

    name: str
    size: int
    reason: str
    is_required: bool = False


def axis_roles(graph: Graph, functions: Sequence[Graph] = ()) -> dict[str, AxisRole]:
    """Return the role of every free dimension of the inputs of `graph`, by `InputAxis.key`.

    Dimensions that are arithmetic over others (``past + sequence``) have no role of their own.
    """
    values = {value.name: value for value in graph.required_inputs}
    axes = free_axes(graph)
    keys = {axis.key: axis for axis in unsized_axes(axes)}
    if not keys:
        return {}
    batches = batch_keys(axes)
    scope = main_scope(graph, functions)
    ranked_roles: dict[str, tuple[int, AxisRole]] = {}
    for name, value in values.items():
        input_axes = axes[name]
        if not input_axes or all(axis.size is not None for axis in input_axes):
            continue
        evidence = _operator_roles(scope, name, len(input_axes))
        for axis in input_axes:
            if axis.size is None and not is_expression(axis.key, keys):
                ranked = _ranked_axis_role(
                    axis, input_axes, value, axis.key in batches, evidence.get(axis.position)
                )
                if axis.key not in ranked_roles or ranked[0] < ranked_roles[axis.key][0]:
                    ranked_roles[axis.key] = ranked
    roles = {key: role for key, (_, role) in ranked_roles.items()}
    for name, count in count_inputs(graph).items():
        roles[name] = AxisRole(count.role, count.size, count.reason)
    output = _detection_output(graph, roles)
    for key in _free_sides(axes, roles) if output else ():
        reason = f"{roles[key].reason}, output {output!r} grows with the image"
        roles[key] = roles[key]._replace(size=DETECTION_SIDE, reason=reason)
    return roles


def dims_by_name(
    graph: Graph, functions: Sequence[Graph], dims: Mapping[str, Size]
) -> dict[str, Size]:
    """Return the sizes `dims` by the names of dimensions: a role is replaced by its dimension.

    A name that is the role of exactly one free dimension, such as ``batch``, is that dimension,
    unless a dimension has this name. Other names stay as they are.

    Raises:
        UsageError: a dimension is named both by its name and by its role, or several dimensions
            have the role.
    """
    keys = _free_keys(free_axes(graph))
    if dims.keys() <= keys:
        return dict(dims)
    keys_by_role = _dims_of_each_role(graph, functions)
    sizes_by_key: dict[str, Size] = {}
    for name, size in dims.items():
        dimension_keys = [name] if name in keys else keys_by_role.get(name, [name])
        if len(dimension_keys) > 1:
            example = ",".join(f"{key}=N" for key in dimension_keys[:_MAX_EXAMPLE_KEYS])
            raise UsageError(
                f"dimension {name!r}: {len(dimension_keys)} dimensions have this role. Name them:"
                f" --dim {example}."
            )
        key = dimension_keys[0]
        if key != name and key in dims:
            raise UsageError(f"dimension {key!r} is also given as {name!r}. Leave one of them out.")
        sizes_by_key[key] = size
    return sizes_by_key


def check_dim_names(graph: Graph, functions: Sequence[Graph], names: Collection[str]) -> None:
    """Check that a model has the free dimensions `names`, or dimensions with these roles.

    Raises:
        UsageError: it does not; the message names those that it has.
    """
    if not names:
        return
    inputs = free_axes(graph)
    roles = {
        key: role.name for key, role in axis_roles(graph, functions).items() if role != UNKNOWN_ROLE
    }
    keys = _free_keys(inputs)
    for name in names:
        if name not in keys and name not in roles.values():
            raise unknown_dimension(name, inputs, roles)


def _free_keys(inputs: Mapping[str, tuple[InputAxis, ...] | None]) -> set[str]:
    return {axis.key for axis in unsized_axes(inputs)}


def dims_by_role(graph: Graph, functions: Sequence[Graph]) -> dict[str, str]:
    """Return the free dimension of each role that exactly one has, by the name of the role."""
    keys_by_role = _dims_of_each_role(graph, functions)
    return {name: keys[0] for name, keys in keys_by_role.items() if len(keys) == 1}


def _dims_of_each_role(graph: Graph, functions: Sequence[Graph]) -> dict[str, list[str]]:
    """Return the free dimensions by the name of their role, without dimensions of unknown role."""
    keys_by_role: dict[str, list[str]] = {}
    for key, role in axis_roles(graph, functions).items():
        keys_by_role.setdefault(role.name, []).append(key)
    keys_by_role.pop(UNKNOWN_ROLE.name, None)
    return keys_by_role


def _free_sides(
    inputs: Mapping[str, tuple[InputAxis, ...] | None], roles: Mapping[str, AxisRole]
) -> set[str]:
    """Return the keys of height and width of image inputs, for images where both are free.

    An image has 1 or 3 channels; a tensor with another number of channels is a feature map. Images
    with one fixed side (such as lines of text, which have a fixed height) are left out.
    """
    free_sides = set()
    for axes in inputs.values():
        unsized = [axis for axis in axes or () if axis.size is None]
        free_roles = [(axis, roles[axis.key]) for axis in unsized if axis.key in roles]
        sides = [axis for axis, role in free_roles if role.name in ("height", "width")]
        channels = {axis.size for axis in (axes or ())[-3:] if axis.size is not None}
        channels |= {role.size for _, role in free_roles if role.name == "channels"}
        if len(sides) == 2 and len(axes or ()) in (3, 4) and channels <= {1, 3}:
            free_sides |= {axis.key for axis in sides}
    return free_sides


def _detection_output(graph: Graph, roles: Mapping[str, AxisRole]) -> str:
    """Return the name of an output whose size depends on the image's size; ``""`` without one.

    Such an output is a map or a list of objects. It has three or more dimensions. One of
    them, but not the first, is free, and neither the length of a text nor a dimension of an input.
    Or its name contains boxes, masks or the like. The output of a classifier is [batch, classes],
    the output of an encoder [batch, sequence, features].
    """
    other_keys = {key for key, role in roles.items() if role.name not in ("height", "width")}
    for value in graph.output_values:
        axes = axes_of(value) or ()
        grows = len(axes) >= 3 and any(
            axis.size is None
            and axis.symbol not in other_keys
            and not _lower_case_words(axis.symbol) & _SEQUENCE_WORDS
            for axis in axes[1:]
        )
        if grows or _lower_case_words(value.name) & _DETECTION_WORDS:
            return value.name
    return ""


def total_lengths(
    inputs: Mapping[str, tuple[InputAxis, ...] | None], roles: Mapping[str, AxisRole]
) -> dict[str, tuple[str, str]]:
    """Return the free dimensions that are the sum of a past and a new length.

    They are dimensions with total in their names, and lengths of masks. The result has the
    `InputAxis.key` of each, with the keys of both summands.
    """
    past_key = next((key for key, role in roles.items() if role.name == "past"), None)
    new_keys = [
        axis.key
        for name, axes in inputs.items()
        for axis in axes or ()
        if axis.size is None and axis.position == 1 and axis.rank >= 2
        if roles.get(axis.key, UNKNOWN_ROLE).name == "sequence" and not _is_mask(name)
    ]
    if past_key is None or not new_keys:
        return {}
    totals = {key for key in roles if _lower_case_words(key) & _TOTAL_WORDS}
    totals |= {
        axes[-1].key
        for name, axes in inputs.items()
        if axes and len(axes) == 2 and _is_mask(name) and "encoder" not in name.lower()
        if axes[-1].size is None and axes[-1].key in roles and axes[-1].key not in new_keys
    }
    return {key: (past_key, new_keys[0]) for key in totals if key not in (past_key, new_keys[0])}


UNKNOWN_ROLE = AxisRole("size", SEQUENCE_LENGTH, "its role is not known")
_MAX_EXAMPLE_KEYS = 4


def _is_mask(name: str) -> bool:
    return "mask" in name.lower()


def _lower_case_words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def _ranked_axis_role(
    axis: InputAxis,
    axes: Sequence[InputAxis],
    value: ValueInfoProto,
    is_batch: bool,
    evidence: AxisRole | None,
) -> tuple[int, AxisRole]:
    """Return the role of one axis, and the rank of the evidence: the lowest is best."""
    if evidence is not None and evidence.is_required:
        return 0, evidence
    symbol_role = _role_of_symbol(axis, axes)
    if symbol_role is not None and symbol_role.name == "sequence" and evidence is not None:
        # Samples of a sound are often called a sequence.
        symbol_role = evidence if evidence.name == "samples" else symbol_role
    if symbol_role is not None:
        return 1, symbol_role
    if is_batch:
        return 2, AxisRole("batch", 1, f"axis {axis.position} of {axis.rank}")
    if evidence is not None:
        if evidence.name in ("height", "width"):
            evidence = evidence._replace(size=_usual_axis_size(evidence.name, axes))
        return 3, evidence
    return 4, _role_of_position(axis, axes, value)


def _role_of_symbol(axis: InputAxis, axes: Sequence[InputAxis]) -> AxisRole | None:
    """Return the role that the symbol of a free dimension names; None if it names none."""
    words = _lower_case_words(axis.symbol)
    reason = f"called {axis.symbol!r}"
    name = ""
    if words & _BATCH_WORDS:
        name = "batch"
    elif words & _PAST_WORDS:
        name = "past"
    elif words & _SAMPLES_WORDS:
        name = "samples"
    elif words & _SEQUENCE_WORDS:
        name = "sequence"
    elif words & _CHANNELS_WORDS:
        name = "channels"
    elif words & _HEIGHT_WORDS:
        name = "height"
    elif words & _WIDTH_WORDS:
        name = "width"
    elif len(axis.symbol) == 1:
        letter = axis.symbol.lower()
        name = _IMAGE_LETTERS.get(letter, "") if len(axes) >= 3 else ""
        if letter in ("b", "n"):
            name = "batch" if axis.position == 0 and len(axes) > 1 else ""
        name = name or (_ROLE_BY_LETTER[letter] if letter in ("t", "l", "s") else "")
    return AxisRole(name, _usual_axis_size(name, axes), reason) if name else None


def _role_of_position(
    axis: InputAxis, axes: Sequence[InputAxis], value: ValueInfoProto
) -> AxisRole:
    """Return the role that the rank, type and name of an input and the position of an axis
    suggest."""
    position, rank = axis.position, axis.rank
    words = _lower_case_words(value.name)
    tensor = tensor_type(value.type)
    is_integer = tensor is not None and tensor.elem_type in INTEGERS
    where = f"axis {position} of {rank}"
    if rank == 4 and words & {"past", "key", "value", "cache"} and position == 2:
        return AxisRole("past", SEQUENCE_LENGTH, f"{where} of a key or value cache")
    if rank == 4 and not is_integer:
        is_channels_last = axes[3].size in (1, 3, 4) and axes[1].size not in (1, 3, 4)
        image = ("height", "width", "channels") if is_channels_last else _CHANNELS_FIRST
        name = image[position - 1]
        return AxisRole(name, _usual_axis_size(name, axes), f"{where}, taken for an image")
    if rank == 5 and not is_integer:
        if position >= 3:
            name = ("height", "width")[position - 3]
            return AxisRole(name, _usual_axis_size(name, axes), f"{where}, taken for a video")
        name = "frames" if axes[3 - position].size in (1, 3) else "channels"
        size = VIDEO_FRAMES if name == "frames" else 3
        return AxisRole(name, size, f"{where}, taken for a video")
    if rank <= 2 and words & _SAMPLES_WORDS:
        return AxisRole(
            "samples", AUDIO_SAMPLES, f"input {value.name!r}: a second of sound at 16 kHz"
        )
    if is_integer and rank == 2:
        return AxisRole("sequence", SEQUENCE_LENGTH, f"{where} of integers")
    if rank == 3 and position == 1 and axes[2].size is not None:
        return AxisRole("sequence", SEQUENCE_LENGTH, f"{where}, features last")
    if rank == 3 and position == 2 and axes[1].size is not None:
        return AxisRole("sequence", SEQUENCE_LENGTH, f"{where}, features first")
    if rank == 3 and words & {"mel", "mels"}:
        return AxisRole("features", MEL_FEATURES, f"input {value.name!r}")
    return UNKNOWN_ROLE


_CHANNELS_FIRST = ("channels", "height", "width")


def _usual_axis_size(name: str, axes: Sequence[InputAxis]) -> int:
    if name == "batch":
        return 1
    if name == "samples":
        return AUDIO_SAMPLES
    if name == "channels":
        return 3 if len(axes) >= 4 else 1
    if name in ("height", "width"):
        # Images are square, unless a side is fixed to less than what is usual (lines of text).
        sides = [axis.size for axis in axes[1:] if axis.size is not None and axis.size > 4]
        return max([IMAGE_SIDE, *sides])
    return SEQUENCE_LENGTH


def _operator_roles(scope: Scope, name: str, rank: int) -> dict[int, AxisRole]:
    """Return the roles of the axes of input `name`, by position, as far as operators imply them."""
    roles: dict[int, AxisRole] = {}
    # Values to follow, each with its layout, as in `_output_axis_layout`.
    pending: list[tuple[Scope, str, tuple[int | None, ...]]] = [(scope, name, tuple(range(rank)))]
    visited = {(scope, name)}
    steps = 0
    while pending and steps < MAX_FOLLOWED_USES:
        current_scope, value, layout = pending.pop()
        for use in current_scope.uses(value):
            steps += 1
            if steps >= MAX_FOLLOWED_USES:
                break
            for position, role in _roles_from_operator(use, layout):
                input_axis = layout[position] if 0 <= position < len(layout) else None
                if input_axis is not None and (
                    input_axis not in roles or role.is_required > roles[input_axis].is_required
                ):
                    roles[input_axis] = role
            output_layout = _output_axis_layout(use, layout)
            if output_layout is not None:
                output = (use.scope, use.node.output[0])
                if output not in visited:
                    visited.add(output)
                    pending.append((*output, output_layout))
    return roles


def _output_axis_layout(use: Use, layout: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    """Return the layout of a node's output if its axes are axes of the node's input; else None.

    A layout has for each axis of a value the axis of the model's input that it is, or None.
    """
    node = use.node
    if use.input_index and node.op_type not in ("Add", "Mul"):
        return None
    if node.op_type in _ELEMENTWISE_OPERATORS:
        return layout if _keeps_rank(use, len(layout)) else None
    if node.op_type in _SAME_LAYOUT_OPERATORS:
        return layout
    if node.op_type == "Transpose":
        order = integers_attribute(node, "perm") or tuple(range(len(layout)))[::-1]
        is_permutation = sorted(order) == [*range(len(layout))]
        return tuple(layout[axis] for axis in order) if is_permutation else None
    if node.op_type == "Unsqueeze":
        axes = integers_attribute(node, "axes")
        if not axes and len(node.input) > 1:
            axes = tuple(small_integers(use.scope, node.input[1]) or ())
        if not axes:
            return None
        rank = len(layout) + len(axes)
        added_axes = {axis % rank for axis in axes}
        remaining = iter(layout)
        return tuple(None if axis in added_axes else next(remaining, None) for axis in range(rank))
    return None


def _keeps_rank(use: Use, rank: int) -> bool:
    """Return whether the other operand of a binary operator is a constant that adds no axes."""
    operand = use.node.input[1 - use.input_index] if len(use.node.input) == 2 else ""
    defining_scope = use.scope.defining_scope(operand)
    tensor = defining_scope.graph.tensors.get(operand) if defining_scope is not None else None
    return tensor is not None and len(tensor.dims) <= rank


def _roles_from_operator(use: Use, layout: Sequence[int | None]) -> Iterator[tuple[int, AxisRole]]:
    """Yield the roles that an operator implies for the axes of the value that it reads."""
    node, rank = use.node, len(layout)
    if use.input_index:
        is_lookup = node.op_type in ("Gather", "EmbedLayerNormalization")
        if is_lookup and use.input_index == 1 and rank == 2:
            yield 1, AxisRole("sequence", SEQUENCE_LENGTH, f"indices of {_quoted_node_label(node)}")
        return
    weight = _weight_shape(use)
    if node.op_type == "STFT":
        yield (
            1,
            AxisRole(
                "samples",
                AUDIO_SAMPLES,
                f"read by {_quoted_node_label(node)}: a second of sound at 16 kHz",
            ),
        )
    if weight is None:
        return
    if node.op_type in _ROLE_CONVOLUTIONS and len(weight) == rank >= 3:
        channels = weight[1] * integer_attribute(node, "group", 1)
        yield (
            1,
            AxisRole(
                "channels",
                channels,
                f"the channels of {_quoted_node_label(node)}",
                is_required=True,
            ),
        )
        if rank == 3:
            is_sound = channels == 1
            name, size = ("samples", AUDIO_SAMPLES) if is_sound else ("sequence", SEQUENCE_LENGTH)
            yield 2, AxisRole(name, size, f"the axis along which {_quoted_node_label(node)} moves")
        elif rank == 4:
            for position, name in ((2, "height"), (3, "width")):
                yield (
                    position,
                    AxisRole(name, IMAGE_SIDE, f"the {name} of {_quoted_node_label(node)}"),
                )
    elif node.op_type in ("MatMul", "MatMulInteger") and len(weight) == 2:
        yield (
            rank - 1,
            AxisRole(
                "features", weight[0], f"the rows of {_quoted_node_label(node)}", is_required=True
            ),
        )
    elif node.op_type == "Gemm" and len(weight) == 2 and not integer_attribute(node, "transA", 0):
        rows = weight[1] if integer_attribute(node, "transB", 0) else weight[0]
        yield (
            1,
            AxisRole("features", rows, f"the rows of {_quoted_node_label(node)}", is_required=True),
        )
    elif node.op_type in _RECURRENT_OPERATORS and len(weight) == 3 and rank == 3:
        is_batch_first = integer_attribute(node, "layout", 0)
        yield (
            2,
            AxisRole(
                "features", weight[2], f"the input of {_quoted_node_label(node)}", is_required=True
            ),
        )
        yield (
            1 if is_batch_first else 0,
            AxisRole("sequence", SEQUENCE_LENGTH, f"the steps of {_quoted_node_label(node)}"),
        )


def _weight_shape(use: Use) -> tuple[int, ...] | None:
    """Return the shape of the weight by which a node multiplies its first input; None without
    one."""
    node = use.node
    weight_index = 3 if node.op_type in ("QLinearConv",) else 1
    if node.op_type not in (
        *_ROLE_CONVOLUTIONS,
        *_RECURRENT_OPERATORS,
        "MatMul",
        "MatMulInteger",
        "Gemm",
    ):
        return None
    if len(node.input) <= weight_index or not node.input[weight_index]:
        return None
    weight = node.input[weight_index]
    defining_scope = use.scope.defining_scope(weight)
    tensor = defining_scope.graph.tensors.get(weight) if defining_scope is not None else None
    return tuple(tensor.dims) if tensor is not None else None


def _quoted_node_label(node: Node) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
