"""The optimizers that write another form of a model.

This file also runs by its path under other interpreters, which need not have memdiag: it imports
only the standard library at its top, and the packages of an optimizer when that is used.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ORIGINAL_MODEL = "original"
"""The name of the unchanged model."""


_FEW_BITS_OPERATORS = frozenset({"GatherBlockQuantized", "MatMulNBits"})


class Optimizer(NamedTuple):
    """One optimizer.

    Attributes:
        packages: the packages that it needs; the version of the first one is the version of the
            optimizer.
        optimize: reads the model at the first path and writes the result to the second one, with
            weights in a file next to it if the flag `large` is set. Returns None, or the reason why
            nothing was written.
        changes_values: whether the result computes other values, as one with fewer bits does.
        fits_one_machine: whether the result needs this release of onnxruntime and the instruction
            set of this machine.
    """

    packages: tuple[str, ...]
    optimize: Callable[[str, str, bool], str | None]
    changes_values: bool = False
    fits_one_machine: bool = False


def _onnxruntime_at_level(level: str) -> Callable[[str, str, bool], None]:
    def optimize(source: str, target: str, large: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = target
        if large:
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name",
                f"{Path(target).name}.data",
            )
        # It warns that the model is for this machine only; it is measured on this machine.
        options.log_severity_level = 3
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return optimize


def _run_onnxoptimizer(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxoptimizer

    _save_model_file(onnxoptimizer.optimize(onnx.load(source)), target, large)


def _run_onnxsim(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxsim

    model, is_equal = onnxsim.simplify(onnx.load(source))
    if not is_equal:
        raise RuntimeError("by its own check the simplified model computes something else")
    _save_model_file(model, target, large)


def _run_onnxslim(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxslim

    _save_model_file(onnxslim.slim(onnx.load(source)), target, large)


def _run_onnxscript(source: str, target: str, large: bool) -> None:
    """Run the optimizer that PyTorch's exporter runs."""
    import onnx
    from onnxscript import optimizer

    _save_model_file(optimizer.optimize(onnx.load(source)), target, large)


def _quantized_weights(bits: int, block_size: int) -> Callable[[str, str, bool], str | None]:
    """Return the optimizer that stores weights in `bits`, each block of them with a scale.

    Kernels compute the products from these weights. At accuracy level 4 they quantize the other
    operand to 8 bits, too, which is the fastest
    (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulnbits).
    """

    def optimize(source: str, target: str, large: bool) -> str | None:
        import onnx
        from onnxruntime.quantization import matmul_nbits_quantizer as quantizer

        config = quantizer.DefaultWeightOnlyQuantConfig(
            block_size=block_size, is_symmetric=True, accuracy_level=4, bits=bits
        )
        weight_quantizer = quantizer.MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        weight_quantizer.process()
        model = weight_quantizer.model.model
        if not any(node.op_type in _FEW_BITS_OPERATORS for node in model.graph.node):
            return "no matrix product and no Gather has a weight that can be stored in fewer bits"
        _save_model_file(model, target, large)
        return None

    return optimize


def _memdiag_fix(source: str, target: str, large: bool) -> str | None:
    # Imported by name, like the packages of other optimizers: this layer imports no layer above it.
    fix = import_module("memdiag").fix(source, target)
    return None if fix.output else "nothing was worth changing"


def _save_model_file(model: Any, target: str, large: bool) -> None:
    import onnx

    location = f"{Path(target).name}.data"
    onnx.save(model, target, save_as_external_data=large, location=location)


OPTIMIZERS: dict[str, Optimizer] = {
    "onnxruntime-basic": Optimizer(("onnxruntime",), _onnxruntime_at_level("ORT_ENABLE_BASIC")),
    "onnxruntime-extended": Optimizer(
        ("onnxruntime",), _onnxruntime_at_level("ORT_ENABLE_EXTENDED"), fits_one_machine=True
    ),
    "onnxruntime-all": Optimizer(
        ("onnxruntime",), _onnxruntime_at_level("ORT_ENABLE_ALL"), fits_one_machine=True
    ),
    "onnxoptimizer": Optimizer(("onnxoptimizer", "onnx"), _run_onnxoptimizer),
    "onnxsim": Optimizer(("onnxsim", "onnx"), _run_onnxsim),
    "onnxslim": Optimizer(("onnxslim", "onnx"), _run_onnxslim),
    "onnxscript": Optimizer(("onnxscript", "onnx"), _run_onnxscript),
    "quantize-int8": Optimizer(
        ("onnxruntime", "onnx", "onnx_ir"), _quantized_weights(8, 128), changes_values=True
    ),
    "quantize-int4": Optimizer(
        ("onnxruntime", "onnx", "onnx_ir"), _quantized_weights(4, 32), changes_values=True
    ),
    "memdiag-fix": Optimizer(("memdiag",), _memdiag_fix),
}
"""All optimizers by name, in the order of the columns of a comparison."""
