"""How coarsely a compiled program may round: on GPUs as the step as it was written, on TPUs as the compiler chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.verify.as_compiled.closeness import coarsest_float
from outlay.core.jax_tracing import operations

_FLOAT32 = np.dtype(np.float32)


def coarsest_allowed(module: HloModule, traced: Callable[[], Any], platform: str) -> np.dtype:
    """Return the coarsest type of floats in which a program may compute.

    The compilers for GPUs round as the step says. What they round more coarsely by themselves is a fault, and no reason
    to allow for more. A TPU multiplies in bfloat16, and its compiler keeps what it likes in it.

    Args:
        module: the compiled program.
        traced: traces the step as it was written, where that is asked.
        platform: of the target.

    Examples:
        >>> import jax
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> module = parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4]) -> bf16[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = bf16[4]{0} convert(%x)
        ... }''')
        >>> traced = lambda: jax.make_jaxpr(lambda x: x * 2)(1.0)
        >>> str(coarsest_allowed(module, traced, "gpu")), str(coarsest_allowed(module, traced, "tpu"))
        ('float32', 'bfloat16')
    """
    in_text = coarsest_float(module)
    if platform == "tpu" or in_text.itemsize >= _FLOAT32.itemsize:
        return in_text
    step = traced()
    in_step = {value.aval.dtype for one in operations(step) for value in one.outvars if hasattr(value.aval, "dtype")}
    floats = [np.dtype(dtype) for dtype in in_step if jnp.issubdtype(dtype, jnp.floating)]
    # A product may be asked to be computed as some hardware does it.
    asked = any(_is_algorithm(one.params.get("precision")) for one in operations(step, "dot_general"))
    narrow = [dtype for dtype in floats if dtype.itemsize < _FLOAT32.itemsize]
    if asked or any(float(jnp.finfo(dtype).eps) >= float(jnp.finfo(in_text).eps) for dtype in narrow):
        return in_text
    return max(narrow, key=lambda dtype: float(jnp.finfo(dtype).eps), default=_FLOAT32)


def _is_algorithm(precision: Any) -> bool:
    return precision is not None and not isinstance(precision, tuple)
