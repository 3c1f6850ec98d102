"""Public architectures with random weights: ``python -m benchmarks.exported_models [NAME…]``.

Exporters write them, each in a cached environment of its own (`benchmarks.environments`; that of
torch takes 5.4 GB of disk). The models go to ``.cache/exported_models``, or to the folder in
``MEMDIAG_CACHE``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import environment
from memdiag.errors import MemdiagError

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"
_SCRIPTS = Path(__file__).parent / "exporters"
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Exporter:
    """A script that exports models.

    Attributes:
        script: its name, which is also that of its environment.
        packages: the packages of its environment.
        models: the names of the models that it can export.
        apart: the names of models that only the benchmarks export that name them: decoders with
            past, and those in `UNSEEN`.
    """

    script: str
    packages: tuple[str, ...]
    models: tuple[str, ...]
    apart: tuple[str, ...] = ()


UNSEEN = {
    "images": (
        *("densenet169", "vgg16", "efficientnet_b2", "mnasnet1_3", "vit_b_32", "levit"),
        *("poolformer", "deeplabv3_resnet50", "alexnet", "resnet101", "mobilenet_v1", "pvt"),
        "vit_msn",
    ),
    "text": ("ernie", "layoutlm", "megatron_bert", "codegen", "splinter", "data2vec_text"),
    "speech": ("wavlm", "unispeech", "data2vec_audio"),
    "8 bits": ("mpnet_int8", "resnet34_int8"),
}
"""Models at which nobody looked while what is judged with them was written, by kind."""

EXPORTERS = (
    Exporter(
        "torch_models",
        (
            "torch==2.15.0",
            "torchvision==0.29.2",
            "transformers==5.23.0",
            "onnx==1.23.2",
            "onnxscript==0.7.2",
        ),
        (
            "mobilenet_v2",
            "mobilenet_v3_small",
            "mobilenet_v3_large",
            "efficientnet_b0",
            "regnet_y_400mf",
            "mnasnet0_5",
            "shufflenet_v2_x1_0",
            "squeezenet1_1",
            "resnet18",
            "convnext_tiny",
            "swin_t",
            "lraspp_mobilenet_v3_large",
            "deeplabv3_mobilenet_v3_large",
            "vit",
            "deit",
            "dinov2",
            "bert",
            "distilbert",
            "roberta",
            "albert",
            "electra",
            "mobilebert",
            "squeezebert",
            "mpnet",
            "xlm_roberta",
            "convbert",
            "resnet50",
            "resnext50_32x4d",
            "wide_resnet50_2",
            "googlenet",
            "inception_v3",
            "vgg11_bn",
            "efficientnet_v2_s",
            "regnet_x_800mf",
            "maxvit_t",
            "swin_v2_t",
            "fcn_resnet50",
            "beit",
            "mobilevit",
            "segformer",
            "convnextv2",
            "gpt2",
            "opt",
            "deberta_v2",
            "nystromformer",
            "modernbert",
            "roformer",
            "wav2vec2",
            "whisper_encoder",
        ),
        (
            *("gpt2_with_past", "llama_with_past"),
            *(name for kind in ("images", "text", "speech") for name in UNSEEN[kind]),
        ),
    ),
    Exporter(
        "later_models",
        (
            "torch==2.15.0",
            "torchvision==0.29.2",
            "transformers==5.23.0",
            "onnx==1.23.2",
            "onnxscript==0.7.2",
            "onnxruntime==1.32.0",
        ),
        (
            "graph_convolution",
            "graph_isomorphism",
            "equivariant_graph",
            "continuous_filters",
            "crnn",
            "trocr_encoder",
            "hubert",
            "sew",
            "vits",
            "retinanet",
            "ssd300",
            "yolos",
            "resnet18_fp16",
            "electra_fp16",
            "electra_int8",
            "mobilenet_v2_int8",
            "attentive_decoder",
            "causal_memory",
            "fnet",
            "funnel",
            "xlnet",
            "bloom",
            "cvt",
        ),
        UNSEEN["8 bits"],
    ),
    Exporter(
        "keras_models",
        ("tensorflow-cpu==2.21.0", "keras==3.15.1", "tf2onnx==1.17.0", "onnx==1.23.2"),
        (
            "keras_lstm",
            "keras_gru",
            "keras_mobilenet",
            "keras_densenet121",
            "keras_nasnet",
            "keras_efficientnet_v2",
            "keras_xception",
            "keras_convnext",
            "keras_resnet50_v2",
            "keras_inception_v3",
            "keras_mobilenet_v3",
            "keras_bidirectional",
        ),
    ),
    Exporter(
        "sklearn_models",
        ("scikit-learn==1.9.1", "skl2onnx==1.20.0", "onnx==1.23.2"),
        (
            "sklearn_forest",
            "sklearn_boosting",
            "sklearn_mlp",
            "sklearn_svm",
            "sklearn_kmeans",
            "sklearn_words",
            "sklearn_extra_trees",
            "sklearn_neighbors",
        ),
    ),
)


class ExportError(MemdiagError):
    """A model that was not exported."""


def exported_models(names: Sequence[str] = (), cache: Path | None = None) -> dict[str, Path]:
    """Return the paths of models by name, exported where missing.

    Without `names` all models are exported, except for those apart.

    Raises:
        ExportError: no exporter has a model of that name, or one failed.
        ProvisionError: the packages of an exporter cannot be installed.
    """
    folder = (cache or Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE)) / "exported_models"
    folder.mkdir(parents=True, exist_ok=True)
    known = [name for exporter in EXPORTERS for name in exporter.models]
    apart = [name for exporter in EXPORTERS for name in exporter.apart]
    unknown = sorted({*names} - {*known, *apart})
    if unknown:
        raise ExportError(f"{unknown[0]}: there is no such model; see benchmarks/exporters.")
    found = {name: folder / f"{name}.onnx" for name in names or known}
    for exporter in EXPORTERS:
        own = (*exporter.models, *exporter.apart)
        missing = [name for name in own if name in found and not found[name].exists()]
        if missing:
            _export(exporter, missing, folder)
    return found


def _export(exporter: Exporter, names: Sequence[str], folder: Path) -> None:
    python = environment(f"environments/{exporter.script}", exporter.packages)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        script = str(_SCRIPTS / f"{exporter.script}.py")
        command = [str(python), "-W", "ignore", script, scratch, *names]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        for exported in Path(scratch).glob("*.onnx"):
            exported.replace(folder / exported.name)
    for name in names:
        if not (folder / f"{name}.onnx").exists():
            lines = [line for line in done.stderr.splitlines() if line.startswith(f"{name}: ")]
            raise ExportError(lines[0] if lines else f"{name}: not exported: {done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    try:
        models = exported_models(parser.parse_args().names)
    except MemdiagError as error:
        print(f"exported_models: {error}", file=sys.stderr)
        return 2
    for name, path in models.items():
        print(f"{name:32}{path.stat().st_size / 1e6:8.2f} MB  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
