"""Export architectures of Keras with tf2onnx: ``python keras_models.py FOLDER NAME…``.

It runs under the interpreter that `benchmarks.exported_models` makes. The weights are random, the
batch is a free dimension.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import tensorflow
import tf2onnx

STEPS, FEATURES = 20, 32
RECURRENT = {"keras_lstm": "LSTM", "keras_gru": "GRU"}
APPLICATIONS = {
    "keras_mobilenet": "MobileNet",
    "keras_densenet121": "DenseNet121",
    "keras_nasnet": "NASNetMobile",
    "keras_efficientnet_v2": "EfficientNetV2B0",
    "keras_xception": "Xception",
    "keras_convnext": "ConvNeXtTiny",
    "keras_resnet50_v2": "ResNet50V2",
    "keras_inception_v3": "InceptionV3",
    "keras_mobilenet_v3": "MobileNetV3Small",
}


def export(name: str, path: Path) -> None:
    """Write the model `name` with random weights to `path`."""
    model: Any
    if name == "keras_bidirectional":
        layers = [
            keras.layers.Bidirectional(keras.layers.LSTM(128, return_sequences=True)),
            keras.layers.Bidirectional(keras.layers.LSTM(128)),
            keras.layers.Dense(10),
        ]
        model = keras.Sequential([keras.Input((STEPS, FEATURES)), *layers])
    elif name in RECURRENT:
        layer = getattr(keras.layers, RECURRENT[name])
        layers = [layer(256, return_sequences=True), layer(256), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((STEPS, FEATURES)), *layers])
    else:
        model = getattr(keras.applications, APPLICATIONS[name])(weights=None)
    signature = (tensorflow.TensorSpec(model.input_shape, tensorflow.float32, name="x"),)
    function = tensorflow.function(lambda x: model(x, training=False), input_signature=signature)
    tf2onnx.convert.from_function(
        function, input_signature=signature, opset=17, output_path=str(path)
    )


def main() -> None:
    folder, *names = sys.argv[1:]
    keras.utils.set_random_seed(0)
    for name in names:
        try:
            export(name, Path(folder, f"{name}.onnx"))
        except Exception as error:  # the others are exported nevertheless
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
