"""Kernels written in Pallas, which is experimental: what Outlay takes of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.interpreters import mlir

from outlay.core.jax_tracing import operations


@dataclass(frozen=True)
class PallasKernel:
    """A Pallas kernel in a traced program, which the compiler of its hardware makes machine code of.

    Attributes:
        name: its name, as the compiled program says it too.
        operands: its arguments as shapes.
        results: what it returns, as shapes.
    """

    name: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    _call: Callable[..., list[jax.Array]]

    @functools.cached_property
    def hlo(self) -> str:
        """The kernel as a program of plain operations, made by Pallas's own interpreter: all that it computes."""
        lowered = jax.jit(self._call).trace(*self.operands).lower(lowering_platforms=("cpu",))
        return str(lowered.as_text(dialect="hlo"))


@contextlib.contextmanager
def interpreted_on_cpus() -> Iterator[None]:
    """Let programs for CPUs hold Pallas kernels, which run by Pallas's own interpreter; JAX refuses to lower them."""
    from jax.experimental import pallas

    call: Any = pallas.pallas_call(_copy, out_shape=_NUMBER)
    (eqn,) = operations(jax.make_jaxpr(call)(0.0), "pallas_call")
    original: Any = mlir._lowerings[eqn.primitive].rule

    def interpreted(ctx: Any, *operands: Any, interpret: Any, **params: Any) -> Any:
        return original(ctx, *operands, interpret=interpret or True, **params)

    mlir.register_lowering(eqn.primitive, interpreted, platform="cpu")
    try:
        yield
    finally:
        del mlir._platform_specific_lowerings["cpu"][eqn.primitive]


_NUMBER = jax.ShapeDtypeStruct((), "float32")


def _copy(operand: Any, result: Any) -> None:
    result[...] = operand[...]


def kernels_in(jaxpr: Any) -> tuple[PallasKernel, ...]:
    """Return the Pallas kernels of a traced program.

    Args:
        jaxpr: the program, traced for the hardware that the kernels are for.
    """
    return tuple(_kernel(eqn) for eqn in operations(jaxpr, "pallas_call"))


def _kernel(eqn: Any) -> PallasKernel:
    params = {**eqn.params, "interpret": True}

    def call(*operands: jax.Array) -> list[jax.Array]:
        results: list[jax.Array] = eqn.primitive.bind(*operands, **params)
        return results

    operands, results = (
        tuple(jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype) for one in values)
        for values in (eqn.invars, eqn.outvars)
    )
    return PallasKernel(params["name"] or "", operands, results, call)


def takes_each_sample(of_all: Any, of_own: Any) -> bool:
    """Return whether a Pallas kernel runs once for each sample, as `jax.vmap` makes it.

    Args:
        of_all: its call for all samples, as an operation of a trace.
        of_own: its call for some of them.
    """
    grids = [eqn.params["grid_mapping"] for eqn in (of_all, of_own)]
    sizes = [tuple(grid.grid) for grid in grids]
    if len(sizes[0]) != len(sizes[1]):
        return False
    differ = {number for number, (one, other) in enumerate(zip(*sizes, strict=True)) if one != other}
    return len(differ) == 1 and all(differ <= set(grid.vmapped_dims) for grid in grids)
