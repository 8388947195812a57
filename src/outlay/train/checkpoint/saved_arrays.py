"""The arrays of a checkpoint: written by every process its own pieces, read straight into any shardings."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as orbax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.shardings import shardings
from outlay.program.program import Program

# Small enough that a device which needs a few rows does not read much more, large enough that a file of them is read
# and written at the disk's speed.
_CHUNK_BYTES = 2**24


class ArrayFiles:
    """Reads and writes flat dictionaries of arrays with Orbax.

    Orbax's folder is layout-free: it holds global arrays, cut where it was convenient to write them. Floating-point
    parameters hardly compress, so nothing is compressed.
    """

    def __init__(self) -> None:
        self._log = logging.getLogger("absl")
        self._orbax = orbax.AsyncCheckpointer(orbax.PyTreeCheckpointHandler(use_compression=False))

    def start_writing(self, folder: Path, arrays: Mapping[str, jax.Array]) -> None:
        """Copy the arrays to the host, where later steps cannot change them, and write on in the background."""
        kept = {path: x for path, x in arrays.items() if x.size}  # Orbax takes no empty arrays
        chunks = {path: orbax.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for path in kept}
        if not kept:
            return
        self._log.addFilter(_not_of_orbax)
        self._orbax.save(folder, args=orbax.args.PyTreeSave(kept, save_args=chunks))

    def finish_writing(self) -> None:
        """Wait until all processes have written; raise what went wrong meanwhile."""
        try:
            self._orbax.wait_until_finished()
        finally:
            self._log.removeFilter(_not_of_orbax)

    def give_up(self) -> None:
        """Wait until nothing is being written any more, and forget what went wrong, which is not the next save's."""
        with contextlib.suppress(Exception):
            self._orbax.wait_until_finished()

    def read(self, folder: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """The arrays, each device's piece read by itself.

        Args:
            folder: what was written.
            wanted: shapes, dtypes and shardings by path, of all that was written or some; shapes and dtypes are those
                that were written.
        """
        there = {path: shape for path, shape in wanted.items() if shape.size}
        into = orbax.checkpoint_utils.construct_restore_args(there)
        args = orbax.args.PyTreeRestore(there, restore_args=into, partial_restore=True)
        found = self._orbax.restore(folder, args=args) if there else {}
        empty = {
            path: jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)
            for path, shape in wanted.items()
            if path not in there
        }
        return {**found, **empty}


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """Orbax logs a failure with a traceback from each of its threads, and raises it too: once is enough."""
    return "orbax" not in record.pathname


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
