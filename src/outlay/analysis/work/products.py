"""The FLOPs of one instruction of a compiled program: matrix products, convolutions, and custom calls.

A custom call may be a library's product, a kernel of fused attention, which is counted by its mask, or a kernel of
somebody's own: the compiler knows the operands of that, and what it computes only by its author's word.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outlay.analysis.hlo.hlo_module import Instruction
from outlay.analysis.hlo.hlo_shapes import Shape, dtype_bits

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

FORWARD, BACKWARD = 2, 5
"""Matrix products of fused attention: scores and mixed values; and backward the scores again, and four gradients."""


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


def valid_products(
    image: int,
    kernel: int,
    out: int,
    *,
    stride: int = 1,
    pad_low: int = 0,
    dilation: int = 1,
    kernel_dilation: int = 1,
) -> int:
    """The pairs of output and kernel position, along one dim, that meet an entry of the image.

    Args:
        image: size of the dim in the image.
        kernel: size in the kernel.
        out: size in the result.
        stride: step of the kernel from one output to the next.
        pad_low: padding before the image; negative crops it.
        dilation: distance of the image's entries, more than 1 in a transposed convolution.
        kernel_dilation: distance of the kernel's entries.

    >>> valid_products(4, 3, 2), valid_products(4, 3, 4, pad_low=1)
    (6, 10)
    """
    met = stride * np.arange(out)[:, None] + kernel_dilation * np.arange(kernel) - pad_low
    inside = (met >= 0) & (met <= (image - 1) * dilation)
    return int((inside & (met % dilation == 0)).sum())


def num_visible(num_queries: int, num_keys: int, *, causal: bool, window: int | None = None) -> int:
    """How many pairs of a query and a key see each other.

    >>> num_visible(4, 4, causal=False), num_visible(4, 4, causal=True), num_visible(4, 4, causal=True, window=2)
    (16, 10, 7)
    """
    if not causal:
        return num_queries * num_keys
    sides = (min(query + 1, num_keys, window or num_keys) for query in range(num_queries))
    return sum(sides)


def cudnn_attention_flops(target: str, config: Mapping[str, Any], operands: Sequence[Shape]) -> float | None:
    """The FLOPs of a call of cuDNN's attention, without what its mask hides; None where the call does not tell.

    Args:
        target: the name of what is called.
        config: its configuration.
        operands: the shapes of its operands, queries first.
    """
    found = config.get("cudnn_fmha_backend_config", {})
    scores = [int(dim) for dim in found.get("intermediate_tensor_shape", {}).get("dimensions", ())]
    if len(scores) != 4 or not operands:
        return None
    batch, heads, num_queries, num_keys = scores
    causal, window = "CAUSAL" in found.get("mask_type", ""), int(found.get("sliding_window_length", 0)) or None
    seen = num_visible(num_queries, num_keys, causal=causal or window is not None, window=window)
    products = BACKWARD if "Backward" in target else FORWARD
    return 2.0 * products * batch * heads * seen * operands[0].dims[-1]


def told_flops(instruction: Instruction) -> float | None:
    """The FLOPs that the author of a kernel told the compiler (`cost_estimate` of Pallas); None where there is no word.

    Args:
        instruction: a custom call.
    """
    try:
        config = json.loads(instruction.attributes.get("backend_config", ""))
        return float(config["custom_call_config"]["cost_estimate"]["flops"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
