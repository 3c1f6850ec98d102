"""Parts of a model that `onnx_ir` cannot hold, taken out before it is read and put back after."""

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TypeProto

_MARK = "\x00memdiag:unheld:"
_SPARSE = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)
_ALSO_HELD = ("tensor_type", "sparse_tensor_type")


class Unheld:
    """What was taken out of `model`, which is changed: sparse initializers and sparse attributes.

    Types of maps are taken out as well. `names` are those of the sparse initializers. Graphs are
    told apart by marks in their metadata.
    """

    def __init__(self, model: ModelProto) -> None:
        self.names: set[str] = set()
        self._graphs: list[GraphProto] = []
        self._attributes: list[AttributeProto] = []
        self._model = ModelProto()
        self._model.training_info.extend(model.training_info)
        for graph in _graphs(model):
            self._take(graph)
        for attribute in _attributes(model):
            if attribute.type in _SPARSE and not attribute.ref_attr_name:
                kept = AttributeProto()
                kept.CopyFrom(attribute)
                mark = f"{_MARK}{len(self._attributes)}".encode()
                self._attributes.append(kept)
                attribute.Clear()
                attribute.name, attribute.type, attribute.s = kept.name, AttributeProto.STRING, mark

    def restore(self, model: ModelProto) -> None:
        """Put back into `model`, which was written after rewriting, what is still wanted there."""
        model.training_info.extend(self._model.training_info)
        for number, graph in enumerate(_graphs(model)):
            self._put_back(graph, main=not number)
        for attribute in _attributes(model):
            if attribute.s.startswith(_MARK.encode()):
                number = int(attribute.s[len(_MARK) :])
                attribute.CopyFrom(self._attributes[number])

    def _take(self, graph: GraphProto) -> None:
        kept = GraphProto()
        kept.sparse_initializer.extend(graph.sparse_initializer)
        kept.input.extend(graph.input)
        kept.output.extend(graph.output)
        kept.value_info.extend(graph.value_info)
        graph.metadata_props.add(key=_MARK, value=str(len(self._graphs)))
        self._graphs.append(kept)
        self.names.update(sparse.values.name for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
        for values in (graph.input, graph.output, graph.value_info):
            for value in values:
                if not _is_held(value.type):
                    value.ClearField("type")

    def _put_back(self, graph: GraphProto, *, main: bool) -> None:
        marks = [entry.value for entry in graph.metadata_props if entry.key == _MARK]
        others = [entry for entry in graph.metadata_props if entry.key != _MARK]
        del graph.metadata_props[:]
        graph.metadata_props.extend(others)
        if not marks:
            return
        kept = self._graphs[int(marks[0])]
        graph.sparse_initializer.extend(kept.sparse_initializer)
        for now, before, seen in (
            (graph.input, kept.input, main),
            (graph.output, kept.output, main),
            (graph.value_info, kept.value_info, False),
        ):
            known = {value.name: value for value in before}
            for value in now:
                was = known.get(value.name)
                # What a program sees of the model stays as it was to the letter.
                if was is not None and (seen or not _is_held(was.type)):
                    value.CopyFrom(was)
        told = {value.name for value in kept.value_info}
        weights = {tensor.name for tensor in graph.initializer} - told
        # Weights say their types themselves; the library says it again.
        others_told = [value for value in graph.value_info if value.name not in weights]
        del graph.value_info[:]
        graph.value_info.extend(others_told)


def _is_held(kind: TypeProto) -> bool:
    """Return whether the library knows such a type: it does not know maps and opaque types."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _is_held(getattr(kind, which).elem_type) and _says(getattr(kind, which).elem_type)
    return which is None or which in _ALSO_HELD


def _says(kind: TypeProto) -> bool:
    which = kind.WhichOneof("value")
    return which is not None and (which not in _ALSO_HELD or bool(getattr(kind, which).elem_type))


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield all graphs but those for training."""
    yield model.graph
    pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while pending:
        body = pending.pop()
        for node in body.node:
            for attribute in node.attribute:
                inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
                yield from inner
                pending += inner


def _attributes(model: ModelProto) -> Iterator[AttributeProto]:
    for body in (*_graphs(model), *model.functions):
        for node in body.node:
            yield from node.attribute
