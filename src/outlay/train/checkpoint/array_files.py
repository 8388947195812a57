"""Read and write the arrays of a checkpoint with Orbax: writing is asynchronous, reading takes any shardings."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.shardings import shardings
from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import CheckpointError
from outlay.core.runtime_flags import versions
from outlay.devices.mesh_info import MeshInfo
from outlay.program.program import Program
from outlay.train.checkpoint.integrity import SavedLeaf

# Small enough that a device which needs a few rows reads little else, large enough to use the full speed of the disk.
_CHUNK_BYTES = 2**24


class ArrayFiles:
    """Read and write flat dictionaries of arrays with Orbax.

    Orbax's folder does not depend on the layout: it has global arrays, chunked as was convenient for writing. Nothing
    is compressed, since floating-point parameters hardly compress.
    """

    def __init__(self) -> None:
        import orbax.checkpoint as orbax  # which takes a second, and only who saves or restores needs it

        self._log = logging.getLogger("absl")
        self._orbax = orbax
        self._files = orbax.AsyncCheckpointer(orbax.PyTreeCheckpointHandler(use_compression=False))

    def start_writing(self, folder: Path, arrays: Mapping[str, jax.Array]) -> None:
        """Copy the arrays to the host, where later steps cannot change them, and write them in the background."""
        saved = {path: _stored(x) for path, x in arrays.items() if x.size}  # Orbax takes no empty arrays
        chunks = {path: self._orbax.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for path in saved}
        if not saved:
            return
        self._log.addFilter(_not_of_orbax)
        self._files.save(folder, args=self._orbax.args.PyTreeSave(saved, save_args=chunks))

    def finish_writing(self) -> None:
        """Wait until all processes have written, and raise any error from the background."""
        try:
            self._files.wait_until_finished()
        finally:
            self._log.removeFilter(_not_of_orbax)

    def give_up(self) -> None:
        """Wait for the background write, and drop its error, so that the next save does not raise it."""
        with contextlib.suppress(Exception):
            self._files.wait_until_finished()

    def read(self, folder: Path, types: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Read arrays; each device reads its own shards.

        Args:
            folder: the folder that was written.
            types: shapes, dtypes and shardings by path, for all or some of the arrays; shapes and dtypes must be those
                that were written.
        """
        of_some_size = {path: _stored(shape) for path, shape in types.items() if shape.size}
        into = self._orbax.checkpoint_utils.construct_restore_args(of_some_size)
        args = self._orbax.args.PyTreeRestore(of_some_size, restore_args=into, partial_restore=True)
        arrays = self._files.restore(folder, args=args) if of_some_size else {}
        empty = {
            path: jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)
            for path, shape in types.items()
            if path not in of_some_size
        }
        packed = {path: x.astype(types[path].dtype) for path, x in arrays.items() if x.dtype != types[path].dtype}
        return {**arrays, **packed, **empty}


_STORED_AS = {"int1": "int8", **dict.fromkeys(("uint1", "uint2", "uint4"), "uint8"), "float8_e4m3": "float16"}
"""For dtypes that TensorStore does not write, by name: one that holds their numbers exactly."""


def _stored(x: Any) -> Any:
    """Return an array, or its shape, in the dtype in which it is stored."""
    dtype = _STORED_AS.get(str(x.dtype))
    if dtype is None:
        return x
    return x.astype(dtype) if isinstance(x, jax.Array) else x.update(dtype=jnp.dtype(dtype))


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """Filter Orbax's log: it logs a failure with a traceback from each of its threads, and raises it as well."""
    return "orbax" not in record.pathname


def unpadded_state(program: Program) -> Any:
    """Return the unpadded shapes of a program's state, with the shardings to read them into.

    A leaf whose rows do not divide by the devices is read whole to each device that has some of it, because JAX cannot
    shard it unevenly.
    """
    shapes = jax.eval_shape(program.crop, program.state_shapes)

    def placed(shape: Any, padded: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        if shape.shape != padded.shape:
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    state_shardings = shardings(program.plan, program.state_shapes, program.mesh)
    return jax.tree.map(placed, shapes, program.state_shapes, state_shardings)


def padded_state(program: Program, state: Any) -> Any:
    """Pad a state that was read with the shapes of `unpadded_state`, as the program needs it."""
    state_shardings = shardings(program.plan, program.state_shapes, program.mesh)
    padded = program.pad(state)
    return jax.tree.map(
        lambda before, leaf, sharding: leaf if leaf is before else jax.device_put(leaf, sharding),
        state,
        padded,
        state_shardings,
    )


class InBackground:
    """Run a function in a thread; `finish` waits for it and raises its error.

    Args:
        call: the function.
        failed: the beginning of the error message, before the reason.
    """

    def __init__(self, call: Callable[[], None], failed: str) -> None:
        self._call = call
        self._failed = failed
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="outlay checkpoint")  # no daemon: Python waits for it
        atexit.register(self._complain)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return self._error is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread, whether it fails or not."""
        self._thread.join()

    def finish(self) -> None:
        """Wait for the thread.

        Raises:
            CheckpointError: the function failed.
        """
        self._thread.join()
        atexit.unregister(self._complain)
        if self._error is not None:
            raise CheckpointError(self._message()) from self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def _complain(self) -> None:
        """Report a failure at exit if the program did not wait; Python then starts no threads, so most saves fail."""
        if self._error is not None:
            print(f"error: {self._message()}\n  fix: wait for it before the program ends", file=sys.stderr)

    def _message(self) -> str:
        return f"{self._failed}: {summary_of(self._error)}"


def summary_of(error: BaseException | None) -> str:
    """Summarize an error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def saved_leaves(arrays: Mapping[str, jax.Array]) -> tuple[SavedLeaf, ...]:
    """Describe the arrays for the manifest."""
    return tuple(SavedLeaf(path, x.shape, str(x.dtype), num_bytes(x.shape, x.dtype)) for path, x in arrays.items())


def written_by(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """Describe who writes a checkpoint: versions, host, time and devices."""
    meshes = [x.sharding.mesh for x in arrays.values() if isinstance(x.sharding, NamedSharding)]
    widest = max(meshes, key=lambda mesh: mesh.size, default=None)
    installed = versions(("outlay", "jax", "orbax-checkpoint"))
    return {
        **{name: version or "from its source" for name, version in installed.items()},
        "host": socket.gethostname(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "devices": str(MeshInfo.of(widest)) if widest is not None else "1 device",
        "processes": str(jax.process_count()),
    }
