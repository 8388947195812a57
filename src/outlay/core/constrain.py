"""What a step says of its values, its sums and its batch, never of a mesh; the mode of a program gives it a meaning.

`constrain` and `name` speak of values inside a step, `gradient_of_sums` of sums over its batch, `whole_batch` of all
samples where a device has only some. Outside a program none of them changes anything.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from outlay.core.context_values import within

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


Resolver = Callable[["str | PartitionSpec", Any, bool], Any]
"""`resolver(where, tree, optional)` gives `constrain` its meaning in a program."""

current_resolver: ContextVar[Resolver | None] = ContextVar("outlay_constrain", default=None)
"""What `constrain` calls while a step is traced; None outside of a program."""

current_specs: ContextVar[Mapping[str, PartitionSpec]] = ContextVar("outlay_ruled_specs", default=MappingProxyType({}))
"""The specs that rules give to named values, by name."""


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
    resolver = current_resolver.get()
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
    """Return the spec that rules give to values of a name in the program being traced; None without a rule."""
    spec = current_specs.get().get(of)
    return None if spec is None else without_own_axes(spec)


def without_own_axes(spec: PartitionSpec) -> PartitionSpec:
    """Return a spec without the axes over which values are each device's own where it is traced, as in `shard_map`."""
    import jax

    own = jax.sharding.get_abstract_mesh().manual_axes
    if not own:
        return spec
    dims = ((entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec)
    left = (tuple(axis for axis in axes if axis not in own) for axes in dims)
    return jax.sharding.PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in left))


@contextlib.contextmanager
def use_resolver(resolver: Resolver, specs: Mapping[str, PartitionSpec] | None = None) -> Iterator[None]:
    """Have `constrain` call a resolver while a step is traced.

    Args:
        resolver: what it calls.
        specs: the specs that rules give to named values, by name.
    """
    with within(current_resolver, resolver), within(current_specs, specs or {}):
        yield


Sums = Callable[..., tuple[Any, Any]]
"""`sums(params, samples, carried) -> (sums, carried)`: sums over samples, and what the next microbatch starts from."""

Combined = Literal["sum", "max", "sample"]
"""How the gradients of several devices become one: added, the largest of each entry, or one after the other."""


@dataclass(frozen=True)
class Gradient:
    """How one device computes gradients, and how several devices' are combined.

    Attributes:
        compute: `compute(sums, params, samples) -> (gradients, sums, carried)`.
        combined: how the gradient of a parameter is combined, by its path in `params`; with `sample` it has one entry
            per sample in front of the dims of the parameter.
        num_microbatches: in how many parts the samples are taken, one after the other.
    """

    compute: Callable[[Sums, Any, Any], tuple[Any, Any, Any]]
    combined: Callable[[str], Combined] = lambda path: "sum"
    num_microbatches: int = 1

    def __call__(self, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        """Compute the gradients of one device's samples."""
        return self.compute(sums, params, samples)


Runner = Callable[[Any, Sums, Any, Any], tuple[Any, Any, Any]]
"""`runner(gradient, sums, params, samples)` calls a `Gradient` in the way of a mode."""

current_runner: ContextVar[Runner | None] = ContextVar("outlay_batch_sum", default=None)
"""What runs `gradient_of_sums` where a step is traced; None outside of a program that changes it."""


def gradient_of_sums(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of sums over a batch, the sums, and the last carry, in the way of the program's mode.

    Args:
        gradient: computes them on one device, from all samples.
        sums: what is differentiated: the first of its results.
        params: what it is differentiated with respect to, a tree that the plan knows as `params`.
        samples: a tree of arrays with one entry per sample, of which `samples["batch"]` is the step's batch.
    """
    runner = current_runner.get()
    return gradient(sums, params, samples) if runner is None else runner(gradient, sums, params, samples)


def with_runner(step: Callable[..., Any], runner: Runner) -> Callable[..., Any]:
    """Wrap a step so that a runner takes the gradients of its sums."""

    @functools.wraps(step, updated=())
    def run(*args: Any) -> Any:
        with within(current_runner, runner):
            return step(*args)

    return run


@dataclass
class History:
    """What a step keeps from call to call of how its gradients were taken; the layout says what that is.

    Attributes:
        values: what it has kept so far.
    """

    values: Any


class KeepsHistory:
    """A node of a state that has room for a `History`, in its field `scaling`; its parameters are in `params`."""

    params: Any
    scaling: Any


current_history: ContextVar[History | None] = ContextVar("outlay_history", default=None)
"""The history of the step that is being traced, which what takes gradients reads and writes; None if it has none."""

current_marker: ContextVar[Callable[[Any], Any] | None] = ContextVar("outlay_per_device", default=None)
"""What marks values as each device's own in `per_device`, while a hand-written region is traced."""


def per_device(tree: Any) -> Any:
    """Mark constants that a loop will fill with each device's own sums, such as the zeros of an accumulator.

    `jax.shard_map` with `check_vma=True` gives a constant the type "same on every device", and a loop whose carry
    starts as such a constant and ends as a device's own sum does not have one type.
    """
    marker = current_marker.get()
    return tree if marker is None else marker(tree)


class Spread(Protocol):
    """How a batch is split over devices, while a step is traced for one device's samples.

    Attributes:
        num_devices: the number of devices it is split over.
    """

    num_devices: int

    def is_needed(self, function_is_global: bool) -> bool:
        """Return whether a loss must be computed over the whole batch, because it mixes samples."""
        ...

    def global_result(self, function: Callable[[Any, Any], Any], whole: Any, samples: Any) -> Any:
        """Compute `function(whole, samples)` as one device would from all samples; per-sample results stay split."""
        ...

    def mean(self, tree: Any) -> Any:
        """Return the mean over devices of float arrays; other leaves are equal on all devices already."""
        ...

    def gather(self, tree: Any) -> Any:
        """Return the samples of all devices, in order."""
        ...


Gather = Callable[[Any], Any]

_gather: ContextVar[Gather | None] = ContextVar("outlay_whole_batch", default=None)
_spread: ContextVar[Spread | None] = ContextVar("outlay_spread", default=None)


def whole_batch(tree: Any) -> Any:
    """Return all samples of the batch, inside the loss of a `train_step`, as a contrastive loss needs them.

    In mode manual a loss is given one device's samples. This gathers values computed from them, in the order of the
    batch, and the gradient of each sample goes back to its device. In other modes the loss already sees the whole
    batch, and this does nothing. With `accumulate` or `groups`, "the batch" is the microbatch or the group.

    Args:
        tree: arrays with one entry per sample.

    Example:
        >>> import optax
        >>> def loss(params, batch, keys):
        ...     image, text = batch["image"] @ params["image"], batch["text"] @ params["text"]
        ...     scores = image @ outlay.whole_batch(text).T
        ...     return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(image))), {}
        >>> optimizer = optax.sgd(0.1)
        >>> init = outlay.init_state(lambda key: {"image": jnp.eye(4), "text": jnp.eye(4)}, optimizer)
        >>> batch = {"image": np.eye(16, 4, dtype=np.float32), "text": np.eye(16, 4, dtype=np.float32)}
        >>> step, mesh = outlay.train_step(loss, optimizer), outlay.mesh(data=8)
        >>> layout = outlay.data_parallel()
        >>> program = outlay.program(step, init, batch, layout=layout, mesh=mesh, mode="manual")
        >>> outlay.verify(program, batches=[batch] * 2, steps=2).ok
        True
    """
    gather = _gather.get()
    return tree if gather is None else gather(tree)


def current_spread() -> Spread | None:
    """Return how the batch is split over devices; None if it is not."""
    return _spread.get()


@contextlib.contextmanager
def use_spread(spread: Spread | None) -> Iterator[None]:
    """Set how the batch is split, while a region of mode manual is traced."""
    with within(_spread, spread), use_gather(None if spread is None else spread.gather):
        yield


def use_gather(gather: Gather | None) -> AbstractContextManager[None]:
    """Have `whole_batch` call a function; with None it does nothing."""
    return within(_gather, gather)
