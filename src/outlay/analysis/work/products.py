"""The FLOPs of one instruction of a compiled program: matrix products, convolutions, and libraries' calls for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outlay.analysis.hlo.dtypes import dtype_bits
from outlay.analysis.hlo.hlo_module import Instruction, Shape
from outlay.analysis.work.convolution import valid_products
from outlay.analysis.work.kernels import cudnn_attention_flops, told_flops

_DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_CUBLAS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
# Which operand is the image, which the kernel and which the result; "r" stands for the call's own result.
_CUDNN = {
    "__cudnn$convForward": (0, 1, "r"),
    "__cudnn$convForwardGraph": (0, 1, "r"),
    "__cudnn$convBiasActivationForward": (0, 1, "r"),
    "__cudnn$convBackwardInput": ("r", 1, 0),
    "__cudnn$convBackwardFilter": (0, "r", 1),
}
_NO_PRODUCT = (
    *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost", "MoveToDevice", "AllocateBuffer"),
    *("annotate_device_placement", "AssumeGatherIndicesInBound", "TopK", "__gpu$TopK", "SliceToDynamic", "PadToStatic"),
    *("xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "cub$DeviceRadixSort", "__cub$DeviceRadixSort"),
    *("ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone"),
)
NO_KERNELS = frozenset((*_CUBLAS, *_CUDNN, "__onednn$matmul", *_NO_PRODUCT))
"""Custom calls that are products of a library, or none; all others are kernels of their own."""


def flops_of_product(instruction: Instruction, operands: Sequence[Shape]) -> float | None:
    """The FLOPs of an instruction that multiplies matrices or convolves; 0 for any other, None where nobody knows.

    Args:
        instruction: the instruction.
        operands: the shapes of its operands.
    """
    if instruction.opcode == "dot":
        return _dot(instruction, operands)
    if instruction.opcode == "convolution":
        return _convolution(instruction, operands[0], operands[1], instruction.shapes[0])
    if instruction.opcode == "custom-call":
        return _custom_call(instruction, operands)
    return 0.0


def dtype_of_product(instruction: Instruction, operands: Sequence[Shape]) -> str:
    """What a product multiplies, as targets name it; of float32 asked for in full, `float32-highest`.

    By default GPUs multiply float32 in tf32 and TPUs in bfloat16.
    """
    multiplied = operands[:2]
    if instruction.opcode == "custom-call" and custom_call_target(instruction) not in NO_KERNELS:
        # A kernel may take tables of its own first; what it multiplies is what is large.
        multiplied = [max((shape for shape in operands if shape.dtype in _DTYPES), key=_size, default=operands[0])]
    widest = max(multiplied, key=lambda shape: dtype_bits(shape.dtype))
    name = _DTYPES.get(widest.dtype, "float8" if widest.dtype.startswith("f8") else f"int{widest.dtype[1:]}")
    precise = "highest" in instruction.attributes.get("operand_precision", "") or "HIGHEST" in str(
        _config(instruction).get("gemm_backend_config", {}).get("precision_config", "")
    )
    return "float32-highest" if name == "float32" and precise else name


def custom_call_target(instruction: Instruction) -> str:
    """The library function that a custom call runs."""
    return instruction.attributes.get("custom_call_target", "").strip('"')


def _size(shape: Shape) -> int:
    return math.prod(shape.dims)


def numbers(text: str) -> list[int]:
    """The numbers of an attribute such as `{0, 2}`.

    >>> numbers("{0, 2}")
    [0, 2]
    """
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _dot(instruction: Instruction, operands: Sequence[Shape]) -> float:
    contracted = numbers(instruction.attributes.get("lhs_contracting_dims", ""))
    return _products(instruction.shapes[0], operands[0], contracted)


def _products(result: Shape, left: Shape, contracted: Sequence[int]) -> float:
    per_product = 8 if result.dtype.startswith("c") else 2
    return float(per_product * _size(result) * math.prod(left.dims[dim] for dim in contracted))


def _custom_call(instruction: Instruction, operands: Sequence[Shape]) -> float | None:
    called = custom_call_target(instruction)
    if called in _CUBLAS:
        dims = _config(instruction).get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
        contracted = [int(dim) for dim in dims.get("lhs_contracting_dimensions", ())]
        return _products(instruction.shapes[0], operands[0], contracted) if contracted else None
    if called in _CUDNN:
        roles = (instruction.shapes[0] if role == "r" else operands[int(role)] for role in _CUDNN[called])
        return _convolution(instruction, *roles)
    if called == "__onednn$matmul":
        # The left operand may be transposed; its entries over the result's rows are what is contracted, either way.
        result = instruction.shapes[0]
        return 2.0 * result.dims[-1] * _size(operands[0])
    if called.startswith("__cudnn$fmha"):
        return cudnn_attention_flops(called, _config(instruction), operands)
    return 0.0 if called in _NO_PRODUCT else told_flops(instruction)


def _config(instruction: Instruction) -> Mapping[str, Any]:
    text = instruction.attributes.get("backend_config", "")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # protocol text, or what is no longer there
        return {}
    return found if isinstance(found, dict) else {}


def _convolution(instruction: Instruction, image: Shape, kernel: Shape, out: Shape) -> float:
    image_dims, kernel_dims, out_dims = re.split(r"_|->", instruction.attributes["dim_labels"])
    window = _window(instruction.attributes.get("window", ""))
    spatial = sorted(label for label in kernel_dims if label.isdigit())
    products = [
        valid_products(
            image.dims[image_dims.index(label)],
            kernel.dims[kernel_dims.index(label)],
            out.dims[out_dims.index(label)],
            stride=window["stride"][i],
            pad_low=window["pad"][i],
            dilation=window["lhs_dilate"][i],
            kernel_dilation=window["rhs_dilate"][i],
        )
        for i, label in enumerate(spatial)
    ]
    samples_and_features = out.dims[out_dims.index("b")] * out.dims[out_dims.index("f")]
    return 2.0 * samples_and_features * kernel.dims[kernel_dims.index("i")] * math.prod(products)


def _window(text: str) -> dict[str, list[int]]:
    """A window's numbers by dim: `{size=3x3 pad=1_1x1_1 stride=2x2}`; of the padding the low side."""
    found = dict(re.findall(r"(\w+)=([-\dx_]+)", text))
    num_dims = len(found.get("size", "").split("x"))
    ones = "x".join(["1"] * num_dims)
    lows = [part.split("_")[0] for part in found.get("pad", "x".join(["0"] * num_dims)).split("x")]
    read = {key: [int(n) for n in found.get(key, ones).split("x")] for key in ("stride", "lhs_dilate", "rhs_dilate")}
    return {**read, "pad": [int(low) for low in lows]}
