"""Count the FLOPs of one instruction of a compiled program: products, convolutions, transforms, and custom calls.

A custom call may be a library's product, a kernel of fused attention, which is counted by its mask, or anybody's
kernel: of that the compiler knows the operands, and its FLOPs only if its author declares them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outlay.analysis.hlo.hlo_module import Instruction, Shape, dtype_bits
from outlay.core.factorization_flops import fft_flops, library_flops
from outlay.core.product_flops import attention_flops, convolution_flops

_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "c64": "float32",
    "c128": "float64",
}
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
    "cu_lu_pivots_to_permutation",
    *("xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "cub$DeviceRadixSort", "__cub$DeviceRadixSort"),
    *("ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone"),
)
PRODUCTS = frozenset(("dot", "convolution", "custom-call", "fft", "cholesky", "triangular-solve"))
"""Opcodes with FLOPs that are counted."""

_EXACT = ("fft", "cholesky", "triangular-solve")
NO_KERNELS = frozenset((*_CUBLAS, *_CUDNN, "__onednn$matmul", *_NO_PRODUCT))
"""Custom calls that are library functions; all others are somebody's kernels."""


def flops_of_product(instruction: Instruction, operands: Sequence[Shape]) -> float | None:
    """Return the FLOPs of a matrix product, convolution, transform or factorization; 0 for others, None if unknown."""
    if instruction.opcode == "dot":
        return _dot(instruction, operands)
    if instruction.opcode == "convolution":
        return _convolution(instruction, operands[0], operands[1], instruction.shapes[0])
    if instruction.opcode == "custom-call":
        return _custom_call(instruction, operands)
    if instruction.opcode == "fft":
        points = max(_size(instruction.shapes[0]), _size(operands[0]))
        return fft_flops(points, math.prod(numbers(instruction.attributes.get("fft_length", ""))))
    if instruction.opcode == "cholesky":
        *batch, n, _ = operands[0].dims
        return math.prod(batch) * n**3 / 3
    if instruction.opcode == "triangular-solve":
        return float(_size(operands[1]) * operands[0].dims[-1])
    return 0.0


def dtype_of_product(instruction: Instruction, operands: Sequence[Shape]) -> str:
    """Return what a product multiplies, as targets name it; `float32-highest` for float32 at highest precision.

    By default GPUs multiply float32 in tf32 and TPUs in bfloat16.
    """
    multiplied = operands[:2]
    if instruction.opcode == "custom-call" and custom_call_target(instruction) not in NO_KERNELS:
        # A kernel may take small tables first; what it multiplies is the large operand.
        multiplied = [max((shape for shape in operands if shape.dtype in _DTYPES), key=_size, default=operands[0])]
    widest = max(multiplied, key=lambda shape: dtype_bits(shape.dtype))
    name = _DTYPES.get(widest.dtype, "float8" if widest.dtype.startswith("f8") else f"int{widest.dtype[1:]}")
    precise = "highest" in instruction.attributes.get("operand_precision", "") or "HIGHEST" in str(
        _config(instruction).get("gemm_backend_config", {}).get("precision_config", "")
    )
    # Transforms and factorizations do not run on the units for matrix products.
    precise = precise or instruction.opcode in _EXACT
    if instruction.opcode == "custom-call":
        precise = precise or library_flops(custom_call_target(instruction), [(1, 1)] * 2)
    return "float32-highest" if name == "float32" and precise else name


def custom_call_target(instruction: Instruction) -> str:
    """Return the library function that a custom call runs."""
    return instruction.attributes.get("custom_call_target", "").strip('"')


def _size(shape: Shape) -> int:
    return math.prod(shape.dims)


def numbers(text: str) -> list[int]:
    """Return the numbers of an attribute such as `{0, 2}`.

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
        # The left operand may be transposed; either way, its entries per row of the result are what is contracted.
        result = instruction.shapes[0]
        return 2.0 * result.dims[-1] * _size(operands[0])
    if called.startswith("__cudnn$fmha"):
        return _cudnn_attention(called, _config(instruction), operands)
    if called in _NO_PRODUCT:
        return 0.0
    flops = library_flops(called, [shape.dims for shape in operands])
    return _estimated_by_author(instruction) if flops is None else flops


def _config(instruction: Instruction) -> Mapping[str, Any]:
    text = instruction.attributes.get("backend_config", "")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):  # protocol buffer text, or nothing
        return {}
    return config if isinstance(config, dict) else {}


def _convolution(instruction: Instruction, image: Shape, kernel: Shape, out: Shape) -> float:
    image_dims, kernel_dims, out_dims = re.split(r"_|->", instruction.attributes["dim_labels"])
    spatial = sorted(label for label in kernel_dims if label.isdigit())
    labelled = ((image, image_dims), (kernel, kernel_dims), (out, out_dims))
    return convolution_flops(
        [tuple(shape.dims[labels.index(label)] for shape, labels in labelled) for label in spatial],
        _window(instruction.attributes.get("window", ""), len(spatial)),
        out.dims[out_dims.index("b")] * out.dims[out_dims.index("f")],
        kernel.dims[kernel_dims.index("i")],
    )


def _window(text: str, num_dims: int) -> list[tuple[int, ...]]:
    """Parse a window: stride, low padding and two dilations by dim: `{size=3x3 pad=1_1x1_1 stride=2x2}`."""
    given = {name: value.split("x") for name, value in re.findall(r"(\w+)=([-\dx_]+)", text)}
    absent = {"stride": "1", "pad": "0", "lhs_dilate": "1", "rhs_dilate": "1"}
    columns = [given.get(name, [usual] * num_dims) for name, usual in absent.items()]
    return [tuple(int(value.split("_")[0]) for value in values) for values in zip(*columns, strict=True)]


def _cudnn_attention(target: str, config: Mapping[str, Any], operands: Sequence[Shape]) -> float | None:
    """Return the FLOPs of a call of cuDNN's attention, queries first; None if the call does not tell."""
    attention = config.get("cudnn_fmha_backend_config", {})
    scores = [int(dim) for dim in attention.get("intermediate_tensor_shape", {}).get("dimensions", ())]
    if len(scores) != 4 or not operands:
        return None
    batch, heads, num_queries, num_keys = scores
    return attention_flops(
        batch * heads,
        num_queries,
        num_keys,
        operands[0].dims[-1],
        backward="Backward" in target,
        causal="CAUSAL" in attention.get("mask_type", ""),
        window=int(attention.get("sliding_window_length", 0)) or None,
    )


def _estimated_by_author(instruction: Instruction) -> float | None:
    """Return the FLOPs that a kernel's author declares in `cost_estimate` (Pallas); None without one."""
    try:
        return float(_config(instruction)["custom_call_config"]["cost_estimate"]["flops"])
    except (KeyError, TypeError, ValueError):
        return None
