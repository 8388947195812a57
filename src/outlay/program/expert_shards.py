"""Have each device order its own tokens, where a step takes tokens to experts without a limit (`outlay.experts`).

Left to itself, XLA would order the tokens of all devices together, and run every expert on every device.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.core.context_values import within
from outlay.models.experts.token_shards import TokenShards, current_shards
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.pipelines.pipelined_function import sample_axes


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that its experts know over which devices samples are split."""

    def shards() -> TokenShards:
        axes, mesh = sample_axes(planned), jax.sharding.get_abstract_mesh()
        mesh = mesh if mesh.shape and not mesh.empty else planned.mesh
        over = NamedSharding(mesh, PartitionSpec(axes))

        def split(tree: Any) -> Any:
            return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, over), tree)

        return TokenShards(math.prod(planned.mesh.shape[axis] for axis in axes), split)

    @functools.wraps(step, updated=())
    def run(state: Any, batch: Any) -> Any:
        with within(current_shards, shards):
            return step(state, batch)

    return run
