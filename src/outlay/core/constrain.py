"""Say where a value inside a step should live, by a name that the layout knows or by a spec; never by a mesh."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


Resolver = Callable[["str | PartitionSpec", Any, bool], Any]
"""`resolver(where, tree, optional)` gives `constrain` its meaning in a program."""

_resolver: ContextVar[Resolver | None] = ContextVar("outlay_constrain", default=None)
_specs: ContextVar[Mapping[str, PartitionSpec]] = ContextVar("outlay_ruled_specs", default=MappingProxyType({}))


def constrain(tree: Any, where: str | PartitionSpec, *, optional: bool = False) -> Any:
    """Constrain where intermediate values live: by a name that rules match, such as `hidden`, or by a spec.

    Inside `jax.vmap` values are one sample's, and so are the dims of a spec or rule, as everywhere in JAX: `P("data")`
    splits features there, `P()` splits nothing, and the compiler chooses how samples are split. To choose it yourself,
    constrain what vmap returns, or use `jax.vmap(..., spmd_axis_name="data")`.

    The values never change. Outside a program, on one device, and inside a step written by hand (mode manual), this
    does nothing.

    Args:
        tree: arrays, in any pytree.
        where: the first part of their paths in rules, such as `hidden`; or the spec of every array.
        optional: allow layouts without a rule for the name; the compiler then chooses.

    Raises:
        ProgramError: when the program is made: no rule matches a name that is not optional, or the mesh lacks an axis
            of the spec.

    Example:
        >>> def step(state, batch):
        ...     hidden = outlay.constrain(batch @ state, "hidden")
        ...     return state, {"mean": hidden.mean()}
        >>> layout = outlay.Layout([("hidden", P("data", "model"))]) + outlay.data_parallel()
        >>> program = outlay.program(
        ...     step, lambda key: jnp.ones((4, 6)), np.ones((8, 4)), layout=layout, mesh=outlay.mesh(data=4, model=2))
        >>> program.plan["hidden"].local_shape
        (2, 3)
    """
    resolver = _resolver.get()
    return tree if resolver is None else resolver(where, tree, optional)


def name(tree: Any, of: str) -> Any:
    """Name intermediate values, so that rules can match them; a layout need not have a rule for the name.

    A rule can say where they live, as for `outlay.constrain`, and whether they are kept for the backward pass,
    recomputed there, or stored in the memory of the host.

    Args:
        tree: arrays, in any pytree.
        of: the first part, or parts, of their paths in rules, such as `layer_input` or `layers.0.up`.

    Example:
        >>> import optax
        >>> def loss(params, batch, keys):
        ...     def layer(x, kernel):
        ...         return jnp.tanh(outlay.name(x, "layer_input") @ kernel), None
        ...     x, _ = jax.lax.scan(layer, batch, params["layers"])
        ...     return (x**2).mean(axis=-1), {}
        >>> optimizer = optax.sgd(0.1)
        >>> layout = outlay.Layout([("layer_input", outlay.layout.on_host())]) + outlay.data_parallel()
        >>> program = outlay.program(
        ...     outlay.train_step(loss, optimizer),
        ...     outlay.init_state(lambda key: {"layers": jnp.ones((6, 4, 4))}, optimizer),
        ...     np.ones((8, 4), np.float32), layout=layout, mesh=outlay.mesh(data=8))
        >>> program.plan["layer_input"].stored
        'host'
    """
    return constrain(tree, of, optional=True)


def ruled_spec(of: str) -> PartitionSpec | None:
    """Return the spec that rules give to values of a name in the program being traced; None without such a rule."""
    return _specs.get().get(of)


@contextlib.contextmanager
def resolving(resolver: Resolver, specs: Mapping[str, PartitionSpec] | None = None) -> Iterator[None]:
    """Have `constrain` call a resolver while a step is traced.

    Args:
        resolver: what it calls.
        specs: the specs that rules give to named values, by name.
    """
    token, own = _resolver.set(resolver), _specs.set(specs or {})
    try:
        yield
    finally:
        _resolver.reset(token)
        _specs.reset(own)


Sums = Callable[..., tuple[Any, Any]]
"""`sums(params, samples, carried) -> (sums, carried)`: sums over samples, and what the next microbatch starts from."""

Gradient = Callable[[Sums, Any, Any], tuple[Any, Any, Any]]
"""`gradient(sums, params, samples) -> (gradients, sums, carried)`: how one device computes them."""

Runner = Callable[[Gradient, Sums, Any, Any], tuple[Any, Any, Any]]

_runner: ContextVar[Runner | None] = ContextVar("outlay_batch_sum", default=None)


def gradient_of_sums(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of sums over a batch, the sums, and the last carry, in the way of the program's mode.

    Args:
        gradient: computes them on one device, from all samples.
        sums: what is differentiated: the first of its results.
        params: what it is differentiated with respect to, a tree that the plan knows as `params`.
        samples: a tree of arrays with one entry per sample, of which `samples["batch"]` is the step's batch.
    """
    runner = _runner.get()
    return gradient(sums, params, samples) if runner is None else runner(gradient, sums, params, samples)


@contextlib.contextmanager
def summing(runner: Runner | None) -> Iterator[None]:
    """Have `gradient_of_sums` use a runner while a step is traced."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)


_marker: ContextVar[Callable[[Any], Any] | None] = ContextVar("outlay_per_device", default=None)


def per_device(tree: Any) -> Any:
    """Mark constants that a loop will fill with each device's own sums, such as the zeros of an accumulator.

    `jax.shard_map` with `check_vma=True` gives a constant the type "same on every device", and a loop whose carry
    starts as such a constant and ends as a device's own sum does not have one type.
    """
    marker = _marker.get()
    return tree if marker is None else marker(tree)


@contextlib.contextmanager
def marking(marker: Callable[[Any], Any]) -> Iterator[None]:
    """Have `per_device` mark values while a hand-written region is traced."""
    token = _marker.set(marker)
    try:
        yield
    finally:
        _marker.reset(token)
