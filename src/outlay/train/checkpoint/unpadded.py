"""States without the rows that fill them up: what a checkpoint holds, so that any number of devices can take it."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.execute.program import Program
from outlay.place.shardings import shardings


def unpadded_state(program: Program) -> Any:
    """The state as one device has it, as shapes, each with where it is to be read to.

    A leaf whose rows the devices do not divide is read whole to each device that has some of it: it cannot be split.
    """
    shapes = jax.eval_shape(program.crop, program.state_shapes)

    def placed(shape: Any, padded: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        if shape.shape != padded.shape:
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    places = shardings(program.plan, program.state_shapes, program.mesh)
    return jax.tree.map(placed, shapes, program.state_shapes, places)


def padded_state(program: Program, state: Any) -> Any:
    """A state that was read as `unpadded_state` says, as the program takes it.

    Args:
        program: the program.
        state: the state.
    """
    places = shardings(program.plan, program.state_shapes, program.mesh)
    padded = program.pad(state)
    return jax.tree.map(
        lambda before, leaf, place: leaf if leaf is before else jax.device_put(leaf, place), state, padded, places
    )
