"""What the Pallas kernels of a compiled program compute: their own source, run by Pallas's interpreter.

The compiler's text holds a kernel as machine code that only its hardware can run. The traced program still holds its
source, and Pallas turns that into plain operations, which the reader of compiled programs computes like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape
from outlay.core.jax_pallas import PallasKernel

_TARGETS = ("tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2")
"""The custom calls that Pallas makes."""


def has_kernels(module: HloModule) -> bool:
    """Return whether a compiled program calls Pallas kernels."""
    return any(_is_kernel(one) for _, one in module.instructions())


def kernel_texts(module: HloModule, kernels: Sequence[PallasKernel]) -> dict[str, str]:
    """Return what calls of kernels compute, as text of HLO, by the name of the instruction.

    A call is that of the kernel with its shapes, and of its name if there are several such. Where kernels are left that
    compute different things, nobody can tell which one it is, and the call has no entry.

    Args:
        module: the compiled program.
        kernels: the kernels of the traced program.
    """
    of_calls: dict[str, str] = {}
    for computation, one in module.instructions():
        if not _is_kernel(one):
            continue
        alike = [each for each in kernels if _has_shapes(computation, one, each)]
        named = [each for each in alike if each.name in one.op_name.split("/")]
        candidates = named or alike
        # What they compute is compared, not their text: two may differ in the order of their blocks alone.
        texts = {each.hlo for each in candidates}
        if len(texts) == 1:
            of_calls[one.name] = texts.pop()
    return of_calls


def _is_kernel(one: Instruction) -> bool:
    return one.opcode == "custom-call" and one.attributes.get("custom_call_target", "").strip('"') in _TARGETS


def _has_shapes(computation: Computation, one: Instruction, kernel: PallasKernel) -> bool:
    operands = [computation.instructions[name].shapes for name in one.operands]
    flat = [shape for shapes in operands for shape in shapes]
    return _are(flat, kernel.operands) and _are(one.shapes, kernel.results)


def _are(shapes: Sequence[Shape], traced: Sequence[Any]) -> bool:
    return [(shape.dims, dtype_of(shape.dtype)) for shape in shapes] == [(one.shape, one.dtype) for one in traced]
