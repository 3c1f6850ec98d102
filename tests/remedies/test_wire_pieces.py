from onnx import ModelProto, TensorProto

from memdiag.remedies.draft import tensors
from memdiag.remedies.wire_pieces import data_length, length, pieces
from tests.remedies.weights_everywhere import BIG, everywhere, external


def test_a_model_without_external_data_is_one_piece() -> None:
    model = everywhere()
    assert pieces(model) == [model.SerializeToString()]


def test_pieces_are_the_model_with_its_data_inside() -> None:
    model = everywhere()
    whole = ModelProto()
    whole.CopyFrom(model)
    data = {}
    for number, (tensor, inside) in enumerate(zip(tensors(model), tensors(whole), strict=True)):
        if tensor.data_type == TensorProto.FLOAT and tuple(tensor.dims) == BIG.shape:
            tensor.doc_string = inside.doc_string = f"tensor {number}"
            data[tensor.doc_string] = (BIG * number).tobytes()
            external(tensor, "somewhere", number, None if number % 2 else BIG.nbytes)
            inside.ClearField("float_data")
            inside.raw_data = data[tensor.doc_string]
    assert len(data) == 5
    parts = pieces(model)
    serialized = b"".join(
        part if isinstance(part, bytes) else data[part.doc_string] for part in parts
    )
    assert ModelProto.FromString(serialized) == whole
    assert length(parts) == len(serialized)


def test_a_length_that_is_not_said_follows_from_the_shape() -> None:
    tensor = TensorProto(data_type=TensorProto.INT4, dims=[3, 3])
    assert data_length(tensor) == 5
    tensor.external_data.add(key="length", value="7")
    assert data_length(tensor) == 7
