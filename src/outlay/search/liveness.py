"""The memory of the values of a traced step: the most at one time, and the residuals of a loop over layers."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Jaxpr, Var, jaxprs_in_params

from outlay.core.array_leaves import num_bytes
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, CUSTOM_RULES, SCAN, operations, scan_operands
from outlay.core.primitives import EACH_ENTRY, KINDS


@dataclass(frozen=True)
class Bytes:
    """Bytes of activations on all devices together, by whether tensor parallelism splits them.

    Attributes:
        between: of values that have the features of what goes from layer to layer, which it leaves whole.
        within: of all others, such as heads and hidden features.
    """

    between: int = 0
    within: int = 0

    def on(self, between: float, within: float) -> float:
        """Return the bytes of a device, where these are split over so many."""
        return self.between / between + self.within / within


@dataclass(frozen=True)
class Between:
    """The shapes of what goes between layers, and all others with the same samples in front and the same features last.

    Such are the tokens that experts get and return: what splits hidden features does not split them.

    Attributes:
        shapes: the shapes of what goes between layers.

    >>> (8, 64, 2, 512) in Between(frozenset({(8, 64, 512)})), (8, 64, 2048) in Between(frozenset({(8, 64, 512)}))
    (True, False)
    """

    shapes: frozenset[tuple[int, ...]]

    def __contains__(self, shape: object) -> bool:
        return isinstance(shape, tuple) and any(
            len(shape) >= len(one) and (shape[0], shape[-1]) == (one[0], one[-1]) for one in self.shapes
        )


@dataclass(frozen=True)
class LayerMemory:
    """The memory of the loop over layers with the most residuals, in bytes on all devices together.

    Attributes:
        num_layers: its turns.
        shapes: the shapes of what goes from layer to layer.
        residuals: what the forward pass keeps for the backward pass.
        carried: what goes from layer to layer.
        inside: the most at one time within one layer.
        outside: the most at one time outside of such loops.
    """

    num_layers: int = 1
    shapes: frozenset[tuple[int, ...]] = frozenset()
    residuals: Bytes = Bytes()
    carried: int = 0
    inside: Bytes = Bytes()
    outside: Bytes = Bytes()


def layer_memory(jaxpr: Any, whole: Container[tuple[int, ...]], layers: Container[int]) -> LayerMemory:
    """Return the memory of the loop over layers with the most residuals.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)`.
        whole: as for `live_bytes`.
        layers: the numbers of layers that parameters are stacked of.

    >>> def loss(kernels, x):
    ...     return jax.lax.scan(lambda x, kernel: (jnp.sin(x @ kernel), None), x, kernels)[0].sum()
    >>> of = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 4, 4)), jnp.ones((2, 4)))
    >>> memory = layer_memory(of, {(3, 4, 4), (4, 4)}, {3})
    >>> memory.carried, memory.residuals.between == 3 * 2 * memory.carried  # each layer's input, and a cosine
    (32, True)
    """
    most = LayerMemory()
    for eqn in operations(jaxpr, SCAN):
        if eqn.params["length"] not in layers:
            continue
        num_consts, num_carried = scan_operands(eqn.params)
        carried = [atom.aval for atom in eqn.invars[num_consts:][:num_carried]]
        sizes = [(atom.aval, _bytes(atom.aval, whole)) for atom in eqn.invars[num_consts + num_carried :]]
        if sum(size for _, size in sizes) >= sum((most.residuals.between, most.residuals.within)):
            shapes = frozenset(tuple(aval.shape) for aval in carried if getattr(aval, "ndim", 0) > 1)
            between = sum(size for aval, size in sizes if tuple(aval.shape[1:]) in Between(shapes))
            most = LayerMemory(
                eqn.params["length"],
                shapes,
                Bytes(between, sum(size for _, size in sizes) - between),
                sum(_bytes(aval, whole) for aval in carried),
                _most_of(eqn.params["jaxpr"], whole, (), shapes),
            )
    return replace(most, outside=_most_of(jaxpr, whole, layers, most.shapes))


def _most_of(
    jaxpr: Any, whole: Container[tuple[int, ...]], layers: Container[int], shapes: frozenset[tuple[int, ...]]
) -> Bytes:
    """Return the most bytes at one time, as far as a compiler writes them, by whether they go between layers."""
    both = live_bytes(jaxpr, whole, layers, fuses=True)
    within = live_bytes(jaxpr, _Either(whole, Between(shapes)), layers, fuses=True)
    return Bytes(both - within, within)


@dataclass(frozen=True)
class _Either:
    one: Container[tuple[int, ...]]
    other: Container[tuple[int, ...]]

    def __contains__(self, shape: Any) -> bool:
        return shape in self.one or shape in self.other


def live_bytes(
    jaxpr: Any, whole: Container[tuple[int, ...]] = (), layers: Container[int] = (), *, fuses: bool = False
) -> int:
    """Return the most bytes of computed values at one time, if operations run in the order of the trace.

    Every value is freed after its last use. Arguments are not counted.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)`.
        whole: shapes that are not counted, such as those of parameters and their gradients.
        layers: lengths of loops of which only what they carry is counted.
        fuses: whether what is computed entry by entry, and only read so, is taken to exist nowhere.

    >>> live_bytes(jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)) + x)(jnp.ones(8)))
    64
    """
    inner = _jaxpr(jaxpr)
    last_use = _last_uses(inner)
    nowhere = fused(inner) if fuses else set()
    sizes: dict[Var, int] = {}
    held = most = 0
    for position, eqn in enumerate(inner.eqns):
        made = {var: 0 if var in nowhere else _bytes(var.aval, whole) for var in eqn.outvars}
        inside = [] if fuses and is_fusible(eqn) else list(jaxprs_in_params(eqn.params))
        if eqn.primitive.name == SCAN and eqn.params["length"] in layers:
            made.update(dict.fromkeys(eqn.outvars[eqn.params["num_carry"] :], 0))
            inside = []
        within = max((live_bytes(each, whole, layers, fuses=fuses) for each in inside), default=0)
        # What an inner program returns is counted as part of it.
        most = max(most, held + max(within, sum(made.values())))
        sizes |= made
        held += sum(made.values())
        used = {var for var in (*eqn.invars, *eqn.outvars) if isinstance(var, Var)}
        held -= sum(sizes.pop(var, 0) for var in used if last_use.get(var, position) == position)
    return most


def _last_uses(jaxpr: Jaxpr) -> dict[Var, int]:
    """Return the position of the last operation that reads each value; returned values are never freed."""
    last = {var: i for i, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if isinstance(var, Var)}
    return last | {var: len(jaxpr.eqns) for var in jaxpr.outvars if isinstance(var, Var)}


_FUSIBLE = EACH_ENTRY | KINDS["reduces"] | {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "iota"}
_HELD = (*CALLS, *CHECKPOINTS, *CUSTOM_RULES)


def is_fusible(eqn: Any) -> bool:
    """Return whether a compiler computes an operation within its readers, or within its operand."""
    name = eqn.primitive.name
    if name in _HELD:
        return all(is_fusible(one) for inner in jaxprs_in_params(eqn.params) for one in _jaxpr(inner).eqns)
    return name in _FUSIBLE


def fused(jaxpr: Jaxpr) -> set[Var]:
    """Return the results of fusible operations without any other reader."""
    made = {var for eqn in jaxpr.eqns if is_fusible(eqn) for var in eqn.outvars}
    read = {atom for eqn in jaxpr.eqns if not is_fusible(eqn) for atom in eqn.invars if isinstance(atom, Var)}
    return made - read - {atom for atom in jaxpr.outvars if isinstance(atom, Var)}


def _jaxpr(one: Any) -> Jaxpr:
    return getattr(one, "jaxpr", one)  # a closed jaxpr holds the jaxpr


def _bytes(aval: Any, whole: Container[tuple[int, ...]]) -> int:
    if not hasattr(aval, "shape") or tuple(aval.shape) in whole:
        return 0
    return num_bytes(aval.shape, aval.dtype)
