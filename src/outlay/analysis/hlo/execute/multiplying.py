"""What matrix products, convolutions and attention compute, also in calls of cuBLAS and cuDNN.

Units for products round float32 before they multiply: NVIDIA's to 10 bits of mantissa (TF32), a TPU's to bfloat16.
Whether they do here is what `Operation.rounds` says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.execute.operation import Meanings, Operation
from outlay.analysis.hlo.execute.reducing import read_window

_MANTISSA_BITS = {"tf32": 10, "bfloat16": 7}
_PRECISE = re.compile(r"high", re.IGNORECASE)


def _dot(operation: Operation) -> Any:
    contracted = operation.numbers("lhs_contracting_dims"), operation.numbers("rhs_contracting_dims")
    batched = operation.numbers("lhs_batch_dims"), operation.numbers("rhs_batch_dims")
    left, right = _rounded(operation, operation.operands[:2], _asked_precision(operation))
    return _product(left, right, contracted, batched, operation.dtype)


def _product(left: Any, right: Any, contracted: Any, batched: Any, dtype: Any) -> Any:
    left, right = _alike(left, right, dtype)
    exact = jax.lax.Precision.HIGHEST
    result = lax.dot_general(
        left, right, (contracted, batched), precision=exact, preferred_element_type=_sums_in(dtype)
    )
    return result.astype(dtype)


def _sums_in(dtype: Any) -> Any:
    """Return what sums of products are kept in: no unit for products adds in fewer than 32 bits."""
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4 else dtype


def _alike(left: Any, right: Any, dtype: Any) -> tuple[Any, Any]:
    """Return operands of one type, and wide enough for the CPU to multiply."""
    common = (
        jnp.promote_types(left.dtype, right.dtype) if left.dtype.itemsize > 1 and right.dtype.itemsize > 1 else dtype
    )
    if jnp.issubdtype(common, jnp.floating) and jnp.dtype(common).itemsize < 4:
        common = jnp.float32
    return left.astype(common), right.astype(common)


def _rounded(operation: Operation, operands: Sequence[Any], asked: str) -> list[Any]:
    bits = _MANTISSA_BITS.get(operation.products)
    if bits is None or _PRECISE.search(asked):
        return list(operands)
    return [
        jnp.where(operation.rounds, lax.reduce_precision(one, 8, bits), one) if one.dtype == jnp.float32 else one
        for one in operands
    ]


def _asked_precision(operation: Operation) -> str:
    return operation.instruction.attributes.get("operand_precision", "")


def _convolution(operation: Operation) -> Any:
    image, kernel = _rounded(operation, operation.operands[:2], _asked_precision(operation))
    return _convolved(operation, image, kernel, operation.dtype)


def _convolved(operation: Operation, image: Any, kernel: Any, dtype: Any) -> Any:
    image_labels, kernel_labels, out_labels = re.split(r"_|->", operation.instruction.attributes["dim_labels"])
    spatial = sorted(label for label in kernel_labels if label.isdigit())
    window = read_window(operation.instruction.attributes.get("window", ""))
    image, kernel = _alike(image, kernel, dtype)
    image = lax.transpose(image, [image_labels.index(label) for label in ("b", "f", *spatial)])
    kernel = lax.transpose(kernel, [kernel_labels.index(label) for label in ("o", "i", *spatial)])
    kernel = lax.rev(kernel, [2 + at for at, is_reversed in enumerate(window["rhs_reversal"]) if is_reversed])
    if not spatial:  # a matrix product, which JAX calls no convolution
        image, kernel = image[..., None], kernel[..., None]
        window = read_window("{size=1}")
    result = lax.conv_general_dilated(
        image,
        kernel,
        window["stride"],
        window["pad"],
        lhs_dilation=window["lhs_dilate"],
        rhs_dilation=window["rhs_dilate"],
        feature_group_count=operation.number("feature_group_count", 1),
        batch_group_count=operation.number("batch_group_count", 1),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=_sums_in(dtype),
    )
    if not spatial:
        result = result[..., 0]
    labels = ("b", "f", *spatial)
    return lax.transpose(result, [labels.index(label) for label in out_labels]).astype(dtype)


def _configuration(operation: Operation) -> Mapping[str, Any]:
    try:
        config = json.loads(operation.instruction.attributes.get("backend_config", "{}"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _gelu(value: Any) -> Any:
    return jax.nn.gelu(value, approximate=True)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"RELU": jax.nn.relu, "GELU": _gelu, "SILU": jax.nn.silu}
_WORKSPACE = ("s8", "u8")


def _cublas(operation: Operation) -> Any:
    """Compute alpha A B + beta C, a bias and an activation, as cuBLASLt's matmul does in one call."""
    config = _configuration(operation).get("gemm_backend_config", {})
    dims = config["dot_dimension_numbers"]
    named = {name: tuple(map(int, dims.get(name, ()))) for name in _DOT_DIMS}
    left, right, *others = operation.operands
    precision = json.dumps(config.get("precision_config", {}))
    is_narrow = operation.instruction.attributes["custom_call_target"].endswith('f8"')
    beta = float(config.get("beta", 0))
    dtype = operation.dtype
    left, right = _rounded(operation, (left, right), precision)
    contracted = named["lhs_contracting_dimensions"], named["rhs_contracting_dimensions"]
    batched = named["lhs_batch_dimensions"], named["rhs_batch_dimensions"]
    result = _product(left, right, contracted, batched, _sums_in(dtype)) * _alpha(config, dtype)
    added = others.pop(0) if beta else None
    if is_narrow:
        result = result * (others.pop(0) * others.pop(0)).astype(result.dtype)
    if added is not None:
        result = result + beta * added.astype(result.dtype)
    result, aux = _epilogue(str(config.get("epilogue", "DEFAULT")), result, others)
    return _with_workspace(operation, [result.astype(dtype), *(value.astype(dtype) for value in aux)])


def _alpha(config: Mapping[str, Any], dtype: Any) -> Any:
    real, imaginary = float(config.get("alpha_real", 1)), float(config.get("alpha_imag", 0))
    return complex(real, imaginary) if jnp.issubdtype(dtype, jnp.complexfloating) else real


def _epilogue(name: str, result: Any, others: list[Any]) -> tuple[Any, list[Any]]:
    words = name.split("_")
    if unknown := set(words) - {"DEFAULT", "BIAS", "AUX", *_ACTIVATIONS}:
        raise ValueError(f"cuBLAS epilogue {name}: {', '.join(sorted(unknown))} has no meaning here")
    if "BIAS" in words:
        bias = others.pop(0).astype(result.dtype)
        result = result + lax.broadcast_in_dim(bias, result.shape, (result.ndim - 1,))
    aux = [result] if "AUX" in words else []
    for word in words:
        result = _ACTIVATIONS[word](result) if word in _ACTIVATIONS else result
    return result, aux


def _with_workspace(operation: Operation, values: list[Any]) -> Any:
    """Return the results, and memory that the library works in for each array that is left of the shape."""
    spare = [jnp.zeros(shape.dims, dtype_of(shape.dtype)) for shape in operation.instruction.shapes[len(values) :]]
    if any(shape.dtype not in _WORKSPACE for shape in operation.instruction.shapes[len(values) :]):
        raise ValueError(f"{operation.instruction.name} returns arrays that have no meaning here")
    return (*values, *spare) if len(operation.instruction.shapes) > 1 else values[0]


_DOT_DIMS = (
    *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
    *("lhs_batch_dimensions", "rhs_batch_dimensions"),
)


def _cudnn_forward(operation: Operation) -> Any:
    config = _configuration(operation).get("cudnn_conv_backend_config", {})
    image, kernel, *others = operation.operands
    image, kernel = _rounded(operation, (image, kernel), "")
    result = _convolved(operation, image, kernel, operation.dtype)
    result = result * float(config.get("conv_result_scale", 1))
    if others:
        result = result + _along_features(operation, others[0])
    if len(others) > 1:
        result = result + float(config.get("side_input_scale", 0)) * others[1]
    return _with_workspace(operation, [_activated(config, result).astype(operation.dtype)])


def _activated(config: Mapping[str, Any], result: Any) -> Any:
    name = str(config.get("activation_mode", "kNone")).removeprefix("k").lower()
    if name in ("none", "0"):
        return result
    functions: dict[str, Callable[[Any], Any]] = {
        "relu": jax.nn.relu,
        "relu6": jax.nn.relu6,
        "elu": jax.nn.elu,
        "leakyrelu": lambda value: jax.nn.leaky_relu(value, float(config.get("leakyrelu_alpha", 0.01))),
    }
    if name not in functions:
        raise ValueError(f"cuDNN activation {name} has no meaning here")
    return functions[name](result)


def _along_features(operation: Operation, bias: Any) -> Any:
    out_labels = operation.instruction.attributes["dim_labels"].partition("->")[2]
    return lax.broadcast_in_dim(bias, operation.shape.dims, (out_labels.index("f"),))


def _cudnn_backward(operation: Operation, *, of_image: bool) -> Any:
    """Compute a gradient of the convolution whose labels and window the call has."""
    first, second = _rounded(operation, operation.operands[:2], "")
    other = jnp.zeros(operation.shape.dims, first.dtype)

    def forward(value: Any) -> Any:
        image, kernel = (value, second) if of_image else (first, value)
        return _convolved(operation, image, kernel, first.dtype)

    # The gradient of the result is the first operand for images, the second for kernels.
    (gradient,) = jax.linear_transpose(forward, other)(first if of_image else second)
    config = _configuration(operation).get("cudnn_conv_backend_config", {})
    gradient = gradient * float(config.get("conv_result_scale", 1))
    return _with_workspace(operation, [gradient.astype(operation.dtype)])


_MASKS = ("NO_MASK", "CAUSAL")


def _attention_configuration(operation: Operation) -> Mapping[str, Any]:
    config = json.loads(operation.instruction.attributes["backend_config"])["cudnn_fmha_backend_config"]
    odd = {
        "a mask by lengths": config.get("mask_type", "NO_MASK") not in _MASKS,
        "dropout": float(config.get("dropout_rate", 0)) > 0,
        "packed segments": int(config.get("max_seg_per_batch", 1)) > 1,
        "pages": bool(config.get("is_paged_attention")),
    }
    if named := [name for name, is_there in odd.items() if is_there]:
        raise ValueError(f"cuDNN's attention with {', '.join(named)} has no meaning here")
    return config


def _attend(config: Mapping[str, Any], query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Return mixed values (B, heads, T, dim) and the logarithm of each softmax's sum (B, heads, T).

    Queries are (B, T, heads, dim); keys and values have S rows and may have fewer heads, each for several of queries.
    """
    num_shared = query.shape[2] // key.shape[2]
    query, key, value = (jnp.swapaxes(x.astype(_sums_in(x.dtype)), 1, 2) for x in (query, key, value))
    key, value = (jnp.repeat(x, num_shared, axis=1) for x in (key, value))
    scores = jnp.einsum("bntd,bnsd->bnts", query, key) * float(config["fmha_scale"])
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, dim) for dim in (2, 3))
    hidden = jnp.zeros(scores.shape, bool)
    window = int(config.get("sliding_window_length", 0))
    if config.get("mask_type") == "CAUSAL" or window:
        hidden |= columns > rows
    if window:
        hidden |= columns <= rows - window
    scores = jnp.where(hidden, -jnp.inf, scores)
    sums = jax.nn.logsumexp(scores, axis=-1)
    return jnp.einsum("bnts,bnsd->bntd", jnp.exp(scores - sums[..., None]), value), sums


def _attention(operation: Operation) -> Any:
    return _as_shapes(operation, _attend(_attention_configuration(operation), *operation.operands[:3]))


def _attention_backward(operation: Operation) -> Any:
    """Return the gradients of queries, keys and values, from these and the gradient of the mixed values."""
    config = _attention_configuration(operation)
    query, key, value, _, gradient = operation.operands[:5]
    mixed = functools.partial(_attend, config)
    _, pull_back = jax.vjp(
        lambda *arrays: mixed(*arrays)[0], *(x.astype(_sums_in(x.dtype)) for x in (query, key, value))
    )
    gradients = pull_back(jnp.swapaxes(gradient.astype(_sums_in(gradient.dtype)), 1, 2))
    return _as_shapes(operation, [jnp.swapaxes(one, 1, 2) for one in gradients])


def _as_shapes(operation: Operation, values: Any) -> Any:
    """Return the values in the types of the results, and the memory that the library works in as zeros."""
    shapes = operation.instruction.shapes
    results = [value.astype(dtype_of(shape.dtype)) for value, shape in zip(values, shapes, strict=False)][: len(shapes)]
    spare = [jnp.zeros(shape.dims, dtype_of(shape.dtype)) for shape in shapes[len(results) :]]
    # Without a gradient to come, the sums are left out of the results.
    if len(shapes) > 1 and shapes[1].dtype == "u8":
        results, spare = results[:1], [jnp.zeros(shapes[1].dims, jnp.uint8)]
    return (*results, *spare)


MULTIPLYING: Meanings = {"convolution": _convolution, "dot": _dot}

PRODUCT_CALLS: Meanings = {
    "__cublas$gemm": _cublas,
    "__cublas$lt$matmul": _cublas,
    "__cublas$lt$matmul$f8": _cublas,
    "__cudnn$convForward": _cudnn_forward,
    "__cudnn$fmhaSoftmax": _attention,
    "__cudnn$fmhaSoftmaxBackward": _attention_backward,
    "__cudnn$convBiasActivationForward": _cudnn_forward,
    "__cudnn$convBackwardInput": lambda operation: _cudnn_backward(operation, of_image=True),
    "__cudnn$convBackwardFilter": lambda operation: _cudnn_backward(operation, of_image=False),
}
