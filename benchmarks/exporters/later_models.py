"""Export architectures of other kinds than `torch_models`: ``python later_models.py FOLDER NAME…``.

It runs under the interpreter that `benchmarks.exported_models` makes. The weights are random, with
a seed. Graph networks, a recogniser and decoders with loops are built here as their papers describe
them; the others come from torchvision and transformers. Free dimensions are the batch, and nodes,
edges, tokens, samples or sides.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as quantization
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

LAYERS = {"num_hidden_layers": 3}
Axes = list[dict[int, str]]
Export = tuple[nn.Module, tuple[Tensor, ...], Axes]


class Outputs(nn.Module):  # type: ignore[misc] # torch is not installed here
    """A model as a function of its inputs by position, which returns its first output."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> Any:
        output = (
            self.model(**dict(zip(self.names, given, strict=True)))
            if self.names
            else self.model(*given)
        )
        return output if isinstance(output, Tensor) else next(iter(output.values()))


class GraphConvolution(nn.Module):  # type: ignore[misc]
    """Kipf and Welling's graph convolution with symmetric normalization."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        ones = torch.ones_like(receivers, dtype=x.dtype)
        degree = torch.ones(x.shape[0]).index_add(0, receivers, ones)
        scale = degree.rsqrt()
        weight = (scale[senders] * scale[receivers])[:, None]
        for layer in self.layers:
            h = layer(x)
            x = torch.relu((h / degree[:, None]).index_add(0, receivers, weight * h[senders]))
        return x


class Isomorphism(nn.Module):  # type: ignore[misc]
    """A graph isomorphism network whose sums are products with one-hot matrices."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        nodes = torch.arange(x.shape[0])
        hot = (receivers[:, None] == nodes[None]).to(x.dtype)
        for layer in self.layers:
            x = layer(1.1 * x + hot.T @ x[senders])
        return x


class Equivariant(nn.Module):  # type: ignore[misc]
    """An equivariant network over all pairs of points (EGNN)."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.edges = nn.ModuleList(nn.Linear(2 * width + 1, width) for _ in range(layers))
        self.moves = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))
        self.nodes = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, h: Tensor, points: Tensor) -> Tensor:
        count = h.shape[1]
        apart = (1 - torch.eye(count))[None, :, :, None]
        for edge, move, node in zip(self.edges, self.moves, self.nodes, strict=True):
            difference = points[:, :, None] - points[:, None]
            pairs = (
                h[:, :, None].expand(-1, -1, count, -1),
                h[:, None].expand(-1, count, -1, -1),
                (difference**2).sum(-1, keepdim=True),
            )
            message = functional.silu(edge(torch.cat(pairs, -1))) * apart
            points = points + (difference * move(message)).sum(2) / (count - 1)
            h = h + functional.silu(node(torch.cat((h, message.sum(2)), -1)))
        return torch.cat((h, points), -1)


class ContinuousFilters(nn.Module):  # type: ignore[misc]
    """Interactions with filters of the distance within a cutoff (SchNet), over pairs found in the
    mask of distances."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.filters = nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width))
        self.dense = nn.Linear(width, width)

    def forward(self, numbers: Tensor, points: Tensor) -> Tensor:
        x = self.embedding(numbers)
        distance = ((points[:, None] - points[None]) ** 2).sum(-1).add(1e-9).sqrt()
        pairs = (distance < 1.5).nonzero()
        near = distance[pairs[:, 0], pairs[:, 1]]
        basis = torch.exp(-10 * (near[:, None] - torch.linspace(0, 5, 50)[None]) ** 2)
        for _ in range(2):
            message = self.dense(x)[pairs[:, 1]] * self.filters(basis)
            x = x + torch.zeros_like(x).index_add(0, pairs[:, 0], message)
        return x


class Recogniser(nn.Module):  # type: ignore[misc]
    """A recogniser of text lines of 32 rows: convolutions, then a bidirectional LSTM (CRNN)."""

    def __init__(self, classes: int = 5000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for width, pool in ((64, (2, 2)), (128, (2, 2)), (256, (2, 1)), (512, (2, 1))):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            layers.append(nn.MaxPool2d(pool))
            before = width
        self.convolutions = nn.Sequential(*layers, nn.Conv2d(before, 512, (2, 1)), nn.ReLU())
        self.steps = nn.LSTM(512, 256, num_layers=2, bidirectional=True)
        self.classes = nn.Linear(512, classes)

    def forward(self, image: Tensor) -> Tensor:
        columns = self.convolutions(image).squeeze(2).permute(2, 0, 1)
        return torch.log_softmax(self.classes(self.steps(columns)[0]), -1)


def _attend(memory: Tensor, cell: Tensor, key: Tensor) -> Tensor:
    state = memory[:, 0]
    rows: list[Tensor] = []
    for _ in range(memory.shape[1]):
        scores = torch.softmax((memory @ (state @ key)[:, :, None])[:, :, 0], -1)
        context = (scores[:, :, None] * memory).sum(1)
        state = torch.tanh(torch.cat((state, context), 1) @ cell)
        rows.append(state)
    return torch.stack(rows, 1)


class AttentiveDecoder(nn.Module):  # type: ignore[misc]
    """A recurrent decoder that attends to its memory in a loop, and puts a row out in each step."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.cell = nn.Parameter(torch.randn(2 * width, width) / width)
        self.key = nn.Parameter(torch.randn(width, width) / width)
        self.attend = torch.jit.script(_attend)

    def forward(self, memory: Tensor) -> Any:
        return self.attend(memory, self.cell, self.key)


def _accumulate(features: Tensor, query: Tensor) -> Tensor:
    past = features[:, :1]
    for step in range(1, features.shape[1]):
        row = features[:, step : step + 1]
        weights = torch.softmax((row @ query) @ past.transpose(1, 2), -1)
        past = torch.cat((past, row + weights @ past), 1)
    return past


class CausalMemory(nn.Module):  # type: ignore[misc]
    """Attention of each row to the results of all rows before it, kept in a list that grows."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width, width) / width)
        self.accumulate = torch.jit.script(_accumulate)

    def forward(self, features: Tensor) -> Any:
        return self.accumulate(features, self.query)


def _graph(model: nn.Module, width: int) -> Export:
    nodes, edges = 40, 120
    indices = (torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,)))
    axes = [{0: "nodes"}, {0: "edges"}, {0: "edges"}]
    return model, (torch.randn(nodes, width), *indices), axes


def _tokens(prefix: str, **sizes: Any) -> Export:
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    model = getattr(transformers, f"{prefix}Model")(config)
    ids = torch.randint(3, config.vocab_size, (2, 32))
    return Outputs(model, "input_ids"), (ids,), [{0: "batch", 1: "tokens"}]


def _samples(prefix: str, **sizes: Any) -> Export:
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    model = getattr(transformers, f"{prefix}Model")(config)
    return Outputs(model, "input_values"), (torch.randn(2, 16_000),), [{0: "batch", 1: "samples"}]


def _pixels(model: nn.Module, *names: str, side: int = 224) -> Export:
    return Outputs(model, *names), (torch.randn(2, 3, side, side),), [{0: "batch"}]


class Detections(nn.Module):  # type: ignore[misc]
    """A detector of torchvision for one image: boxes and scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        (found,) = self.model([image])
        if isinstance(found, list):
            found = found[0]
        return found["boxes"], found["scores"]


def _detector(name: str) -> Export:
    create = getattr(torchvision.models.detection, name)
    model = create(weights=None, weights_backbone=None, num_classes=20)
    return Detections(model), (torch.rand(3, 320, 320),), [{1: "height", 2: "width"}]


def _vits() -> Export:
    config = transformers.VitsConfig(
        num_hidden_layers=3, upsample_initial_channel=256, vocab_size=60
    )
    model = transformers.VitsModel(config)
    return Outputs(model, "input_ids"), (torch.randint(1, 60, (1, 40)),), [{1: "tokens"}]


def _half(export: Export) -> Export:
    model, given, axes = export
    return model.half(), tuple(x.half() if x.is_floating_point() else x for x in given), axes


MODELS: dict[str, Callable[[], Export]] = {
    "graph_convolution": lambda: _graph(GraphConvolution(), 128),
    "graph_isomorphism": lambda: _graph(Isomorphism(), 64),
    "equivariant_graph": lambda: (
        Equivariant(),
        (torch.randn(2, 30, 32), torch.randn(2, 30, 3)),
        [{0: "batch", 1: "points"}] * 2,
    ),
    "continuous_filters": lambda: (
        ContinuousFilters(),
        (torch.randint(0, 99, (40,)), torch.randn(40, 3)),
        [{0: "atoms"}] * 2,
    ),
    "crnn": lambda: (
        Recogniser(),
        (torch.randn(2, 1, 32, 160),),
        [{0: "batch", 3: "width"}],
    ),
    "trocr_encoder": lambda: _pixels(
        transformers.DeiTModel(transformers.DeiTConfig(image_size=384, **LAYERS)),
        "pixel_values",
        side=384,
    ),
    "hubert": lambda: _samples("Hubert", **LAYERS),
    "sew": lambda: _samples("SEW", **LAYERS),
    "vits": _vits,
    "retinanet": lambda: _detector("retinanet_resnet50_fpn"),
    "ssd300": lambda: _detector("ssd300_vgg16"),
    "yolos": lambda: _pixels(
        transformers.YolosModel(
            transformers.YolosConfig(image_size=[320, 320], num_detection_tokens=50, **LAYERS)
        ),
        "pixel_values",
        side=320,
    ),
    "resnet18_fp16": lambda: _half(_pixels(torchvision.models.resnet18(weights=None))),
    "electra_fp16": lambda: _half(_tokens("Electra", **LAYERS)),
    "attentive_decoder": lambda: (
        AttentiveDecoder(),
        (torch.randn(2, 20, 256),),
        [{0: "batch", 1: "tokens"}],
    ),
    "causal_memory": lambda: (
        CausalMemory(),
        (torch.randn(2, 20, 512),),
        [{0: "batch", 1: "tokens"}],
    ),
    "fnet": lambda: _tokens("FNet", **LAYERS),
    "funnel": lambda: _tokens("Funnel", block_sizes=[2, 2, 2], d_model=384, n_head=6),
    "xlnet": lambda: _tokens("XLNet", n_layer=3, d_model=512, n_head=8, d_inner=2048),
    "bloom": lambda: _tokens("Bloom", n_layer=3, hidden_size=512, n_head=8, vocab_size=30_000),
    "cvt": lambda: _pixels(transformers.CvtModel(transformers.CvtConfig()), "pixel_values"),
}
"""The models with their examples, and the names of free axes of each input."""

QUANTIZED: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "electra_int8": lambda: _tokens("Electra", **LAYERS),
    "mpnet_int8": lambda: _tokens("MPNet", **LAYERS),
    "mobilenet_v2_int8": lambda: _pixels(torchvision.models.mobilenet_v2(weights=None)),
    "resnet34_int8": lambda: _pixels(torchvision.models.resnet34(weights=None)),
}
"""Models in 8 bits: those of text with dynamic quantization, those of images with calibrated
ranges."""

TRACED = frozenset(
    {"attentive_decoder", "causal_memory", "vits", "retinanet", "ssd300", "continuous_filters"}
)
"""Models that the older exporter writes: loops of scripts, and sizes that depend on the data."""


def export(name: str, path: Path) -> None:
    """Write the model `name` to `path`."""
    model, given, axes = MODELS[name]()
    names = [f"input{index}" for index in range(len(given))]
    if name in TRACED:
        torch.onnx.export(
            model.eval(),
            given,
            path,
            dynamo=False,
            opset_version=17,
            input_names=names,
            dynamic_axes=dict(zip(names, axes, strict=True)),
        )
        return
    sizes = {
        each: torch.export.Dim(each, min=2, max=65_536) for axis in axes for each in axis.values()
    }
    shapes = tuple({at: sizes[each] for at, each in axis.items()} for axis in axes)
    torch.onnx.export(
        model.eval(),
        given,
        path,
        dynamo=True,
        external_data=False,
        input_names=names,
        dynamic_shapes=(shapes,) if isinstance(model, Outputs) else shapes,
        verbose=False,
    )


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Two random images."""

    def __init__(self, name: str) -> None:
        generator = np.random.default_rng(0)
        self._images = iter(
            [{name: generator.standard_normal((1, 3, 224, 224), np.float32)} for _ in range(2)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._images, None)


def quantize(name: str, path: Path) -> None:
    """Write the model `name` in 8 bits to `path`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.onnx")
        model, given, axes = QUANTIZED[name]()
        inputs = ["input0"]
        torch.onnx.export(
            model.eval(),
            given,
            source,
            dynamo=False,
            opset_version=17,
            input_names=inputs,
            dynamic_axes=dict(zip(inputs, axes, strict=True)),
        )
        if given[0].is_floating_point():
            quantization.quantize_static(source, path, Calibration("input0"))
        else:
            quantization.quantize_dynamic(source, path)


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names:
        torch.manual_seed(0)
        try:
            write = quantize if name in QUANTIZED else export
            write(name, Path(folder, f"{name}.onnx"))
            onnx.checker.check_model(Path(folder, f"{name}.onnx"))
        except Exception as error:  # the others are exported nevertheless
            Path(folder, f"{name}.onnx").unlink(missing_ok=True)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
