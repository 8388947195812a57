"""Experts split over devices: the rules for their parameters, for samples, and for the tokens on their way."""

from __future__ import annotations

import dataclasses

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError
from outlay.core.public_names import called_as
from outlay.layout.layout import Layout
from outlay.layout.rule import Rule

AT_TOKENS, AT_EXPERTS = ("sent", "returned"), ("received", "computed")
"""What `outlay.experts` names of tokens (groups, experts, capacity, features), by where it is wanted."""


@called_as('outlay.layout.expert_parallel("expert")')
def expert_parallel(
    axis: str = "expert", *, pattern: str = "params.**.experts.**", dim: int = 0, data: str = "data"
) -> Layout:
    """Split experts over an axis, and samples over this axis too: tokens change devices on their way to an expert.

    For models that call `outlay.experts` with a capacity; its groups, such as samples, divide by both axes. Each device
    computes some samples, sends their tokens to the devices of the experts that they chose, and gets the results back:
    two all-to-alls forward and two backward, of as many bytes as the capacity has. Everything but the experts is
    computed as with data parallelism over both axes, and in place of `outlay.data_parallel`; state that no other rule
    splits is replicated. Compose with `outlay.fsdp(data)`, and with specs over other axes, before it, for what an
    expert is made of. Source: Lepikhin et al., GShard (arXiv:2006.16668), section 3.

    Args:
        axis: the mesh axis of the experts.
        pattern: the stacks of the experts' parameters.
        dim: the dim of these stacks that counts experts: 1 if they are stacked by layer too.
        data: the axis that splits samples beside it.

    Raises:
        LayoutError: the axes are no names, or the same; when a plan is made: the mesh lacks an axis, or experts or
            samples do not divide by it.

    Example:
        >>> plan = outlay.layout.expert_parallel("expert").plan(
        ...     {"params": {"experts": {"up": jnp.ones((8, 4, 16))}}}, outlay.mesh(data=2, expert=4),
        ...     batch=jnp.ones((16, 5)))
        >>> plan["params.experts.up"].local_shape, plan["batch"].local_shape
        ((2, 4, 16), (2, 5))
    """
    for name, given in (("axis", axis), ("data", data)):
        if not isinstance(given, str) or not given:
            raise LayoutError(
                f"outlay.layout.expert_parallel takes the names of two axes of the mesh, and {name} is {given!r}"
                f'\n  fix: outlay.layout.expert_parallel("expert", data="data")'
            )
    if axis == data:
        raise LayoutError(
            f"outlay.layout.expert_parallel splits samples over two axes, and both are {axis!r}"
            '\n  fix: outlay.layout.expert_parallel("expert", data="data"), on a mesh such as data=1,expert=8'
        )
    both, apart = P((data, axis)), P(data, axis)
    rules = [
        Rule(pattern, P(*[None] * dim, axis)),
        *(Rule(f"expert_tokens.{name}", both, optional=True) for name in AT_TOKENS),
        *(Rule(f"expert_tokens.{name}", apart, optional=True) for name in AT_EXPERTS),
        Rule("batch.**", both, optional=True),
        Rule("**", P(), optional=True),
    ]
    return Layout([dataclasses.replace(rule, source="expert_parallel") for rule in rules])
