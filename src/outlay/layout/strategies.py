"""Strategies: named layouts, made of rules and composed with `+`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.public_names import called_as
from outlay.layout.layout import Layout
from outlay.layout.placement import on
from outlay.layout.policies import LargestDim, OneDim, SplitRows
from outlay.layout.rule import Otherwise, Rule

Axes = str | tuple[str, ...]
"""A mesh axis, or several together, outermost first."""

MIN_SIZE = 2**18
"""The number of elements below which splitting a leaf costs more in collectives than it saves in memory."""


@called_as('outlay.data_parallel("data")')
def data_parallel(axis: str = "data") -> Layout:
    """Split the batch's first dim over an axis, and replicate all state that no other rule splits.

    Args:
        axis: the mesh axis that the batch is split over.

    Example:
        >>> plan = outlay.data_parallel().plan({"w": jnp.ones((8, 4))}, outlay.mesh(data=8), batch=jnp.ones((16, 4)))
        >>> plan["w"].num_copies, plan["batch"].local_shape
        (8, (2, 4))
    """
    _check("data_parallel", axis)
    return _of("data_parallel", [Rule("batch.**", OneDim(axis, 0)), Rule("**", P(), optional=True)])


@called_as('outlay.fsdp("data")')
def fsdp(
    axis: Axes = "data", *, min_size: int = MIN_SIZE, pattern: str = "**", otherwise: Otherwise = "error"
) -> Layout:
    """Split parameters and optimizer state, each leaf along its largest divisible free dim (ZeRO stage 3).

    The compiler gathers a parameter where it is used and scatters its gradient. Combine with `data_parallel` for the
    batch. Source: Rajbhandari et al., ZeRO (arXiv:1910.02054); Zhao et al., PyTorch FSDP (arXiv:2304.11277).

    Args:
        axis: the mesh axis, or several together, outermost first: `("data", "context")` where both split the batch.
        min_size: leaves with fewer elements stay whole.
        pattern: which state leaves.
        otherwise: what to do with a leaf without a divisible dim: `error`, or `replicate` to keep it whole.

    Example:
        >>> state = {"params": {"w": jnp.ones((784, 512)), "b": jnp.ones(512)}}
        >>> plan = outlay.fsdp(min_size=2**4).plan(state, outlay.mesh(data=8))
        >>> plan["params.w"].spec, plan["params.b"].spec
        (P('data', None), P('data',))
    """
    _check("fsdp", axis, min_size)
    return _of("fsdp", [Rule(pattern, LargestDim(axis, min_size), otherwise)])


@called_as('outlay.zero1("data")')
def zero1(
    axis: Axes = "data", *, min_size: int = MIN_SIZE, pattern: str = "opt_state.**", otherwise: Otherwise = "error"
) -> Layout:
    """Split the optimizer state only; parameters are replicated (ZeRO stage 1). Combine with `data_parallel`.

    Source: Rajbhandari et al., ZeRO (arXiv:1910.02054), section 5.1.

    Args:
        axis: the mesh axis, or several together, outermost first: `("data", "context")` where both split the batch.
        min_size: leaves with fewer elements stay whole.
        pattern: the optimizer state's leaves.
        otherwise: what to do with a leaf without a divisible dim: `error`, or `replicate` to keep it whole.

    Example:
        >>> print(outlay.zero1(min_size=16))
        1. opt_state.**  largest dim over 'data' (min_size 16)
    """
    _check("zero1", axis, min_size)
    return _of("zero1", [Rule(pattern, LargestDim(axis, min_size), otherwise)])


@called_as('outlay.zero2("data")')
def zero2(
    axis: Axes = "data", *, min_size: int = MIN_SIZE, pattern: str = "opt_state.**", otherwise: Otherwise = "error"
) -> Layout:
    """Split the optimizer state and the gradients; parameters are replicated (ZeRO stage 2).

    The step must name its gradients: `grads = outlay.constrain(grads, "grads", optional=True)`, as `outlay.train_step`
    does.
    Source: Rajbhandari et al., ZeRO (arXiv:1910.02054), section 5.2.

    Args:
        axis: the mesh axis, or several together, outermost first: `("data", "context")` where both split the batch.
        min_size: leaves with fewer elements stay whole.
        pattern: the optimizer state's leaves.
        otherwise: what to do with a leaf without a divisible dim: `error`, or `replicate` to keep it whole.

    Example:
        >>> print(outlay.zero2(min_size=16))
        1. opt_state.**  largest dim over 'data' (min_size 16)
        2. grads.**      largest dim over 'data' (min_size 16)
    """
    _check("zero2", axis, min_size)
    return _of("zero2", [Rule(each, LargestDim(axis, min_size), otherwise) for each in (pattern, "grads.**")])


@called_as('outlay.tensor_parallel("model")')
def tensor_parallel(
    axis: str = "model",
    *,
    columns: Sequence[str] = ("**",),
    rows: Sequence[str] = (),
    outputs: int = -1,
    otherwise: Otherwise = "error",
) -> Layout:
    """Split layers over an axis: `columns` by their outputs, `rows` by their inputs.

    Alternating columns and rows needs one all-reduce per pair of layers; columns alone are always correct.
    Source: Shoeybi et al., Megatron-LM (arXiv:1909.08053), section 3.

    Args:
        axis: the mesh axis.
        columns: patterns of layers split by outputs, kernels and biases.
        rows: patterns of kernels split by inputs; their biases stay whole.
        outputs: the dim that holds the outputs: -1 for kernels `(inputs, outputs)` as in Flax, 0 for weights
            `(outputs, inputs)` as in Equinox and PyTorch.
        otherwise: what to do if that dim is not divisible: `error`, `replicate` it, or split `another_dim`.

    Raises:
        LayoutError: `outputs` is neither -1 nor 0.

    Example:
        >>> layout = outlay.tensor_parallel(columns=["**.up.*"], rows=["**.down.kernel"])
        >>> state = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}, "down": {"kernel": jnp.ones((8, 4))}}
        >>> [leaf.spec for leaf in layout.plan(state, outlay.mesh(data=4, model=2))]
        [P('model', None), P('model',), P(None, 'model')]
    """
    _check("tensor_parallel", axis)
    if type(outputs) is not int or outputs not in (-1, 0):
        raise LayoutError("tensor_parallel cannot be used as asked:", [_outputs_problem(outputs)])
    inputs = -2 if outputs == -1 else 1
    by_inputs = [Rule(pattern, OneDim(axis, inputs, min_dims=2), otherwise) for pattern in rows]
    by_outputs = [Rule(pattern, OneDim(axis, outputs), otherwise) for pattern in columns]
    return _of("tensor_parallel", [*by_inputs, *by_outputs])


@called_as('outlay.by_module({"encoder": 0, "decoder": 1})')
def by_module(devices: Mapping[str, int | Sequence[int]]) -> Layout:
    """Place whole modules on their own devices, together with what others read of them.

    In mode placed the parts of a graph run where they are placed. A part on several devices is split by its rows.

    Args:
        devices: module path to the position, or positions, of its devices in the mesh.

    Example:
        >>> plan = outlay.by_module({"a": 2, "b": 5}).plan({"a": {"w": 1.0}, "b": {"w": 2.0}}, outlay.mesh(x=8))
        >>> [leaf.device_ids for leaf in plan]
        [(2,), (5,)]
    """
    modules = [Rule(f"{module}.**", on(where)) for module, where in devices.items()]
    from outlay.graph.step_graph import CACHE

    read = [Rule(f"{CACHE}.{module}.**", on(where), optional=True) for module, where in devices.items()]
    return _of("by_module", [*modules, *read])


def by_rows(axis: str = "rows") -> Layout:
    """Split the rows of a graph's parts over an axis; parts without rows run on every device.

    For a `GraphLoop` in mode manual. Each device computes the same number of rows of every part, and a part's outputs
    are gathered. Where a part's rows are not divisible by the devices, it is padded with rows that do nothing.

    Args:
        axis: the mesh axis.

    Example:
        >>> print(outlay.layout.by_rows())
        1. **        by rows over 'rows'
        2. batch.**  P() (optional)
    """
    return _of("by_rows", [Rule("**", SplitRows(axis)), Rule("batch.**", P(), optional=True)])


def _of(strategy: str, rules: Sequence[Rule]) -> Layout:
    """Make a layout whose rules name the strategy that wrote them, for messages."""
    return Layout([dataclasses.replace(rule, source=strategy) for rule in rules])


def _check(strategy: str, axis: object, min_size: object = 0) -> None:
    """Raise if what is given is no name of an axis, or no number of elements."""
    if isinstance(axis, tuple) and axis and strategy in ("fsdp", "zero1", "zero2"):
        is_named = all(isinstance(one, str) for one in axis)
    else:
        is_named = isinstance(axis, str)
    if not is_named:
        example = "model" if strategy == "tensor_parallel" else "data"
        raise LayoutError(
            f"outlay.{strategy} takes the name of an axis of the mesh, and this is a {type(axis).__name__}"
            f"\n  fix: outlay.{strategy}('{example}')"
        )
    if not isinstance(min_size, int):
        raise LayoutError(
            f"min_size={min_size!r}: it is a number of elements, from which a leaf is split\n  fix: min_size=2**20"
        )


def _outputs_problem(outputs: object) -> Problem:
    what = f"outputs={outputs!r}; it is the dim that holds a layer's outputs, in kernels and in biases: -1 or 0"
    if outputs == 1:
        what += ". Dim 1 of a kernel (inputs, outputs) is its last, but a bias has no dim 1 and would stay whole"
    fix = "outputs=-1 for kernels (inputs, outputs), as in Flax; outputs=0 for weights (outputs, inputs), as in Equinox"
    fix += '\nor write rules for dims of your own: ("params.up.kernel", P(None, "model"))'
    return Problem("not an outputs dim", "outputs", what, fix)
