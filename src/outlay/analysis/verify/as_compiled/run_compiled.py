"""Compute a compiled program over simulated devices, in a process of its own: what crashes there ends no proof.

The parent writes a `Job` into a file and starts a Python whose `main` is the one below; the process writes its
`ProgramResults` beside the file. Both files are pickles in a temporary folder of the parent's.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outlay.analysis.hlo.execute.operation import Products

_JOB, _ANSWER = "job.pickle", "answer.pickle"


@dataclass(frozen=True)
class Job:
    """A program and what it is to compute.

    Attributes:
        text: the compiled program.
        axes: name and size of each axis of its mesh, the slowest first.
        in_specs: for each parameter, the mesh axes of each of its dims.
        out_specs: for each result, likewise.
        calls: for each call, the program's parameters as whole arrays.
        products: how the target multiplies float32 at default precision.
        kernels: what the calls of kernels compute, as text, by the name of the instruction.
        device_ids: JAX's numbers of the devices that it was compiled for; needed for several slices only.
        is_wide: whether to compute it with its floats in float64, from such numbers.
    """

    text: str
    axes: tuple[tuple[str, int], ...]
    in_specs: tuple[tuple[Any, ...], ...]
    out_specs: tuple[tuple[Any, ...], ...]
    calls: tuple[list[np.ndarray], ...]
    products: Products
    kernels: dict[str, str] = field(default_factory=dict)
    device_ids: tuple[int, ...] = ()
    is_wide: bool = False


@dataclass(frozen=True)
class ProgramResults:
    """What a program computed.

    Attributes:
        exact: for each call, its results, with float32 multiplied as it is.
        rounded: the results of the first call, with float32 multiplied as the target does it.
        differing: results, by number, of which devices that should hold the same hold different numbers.
    """

    exact: tuple[list[np.ndarray], ...]
    rounded: list[np.ndarray]
    differing: frozenset[int]


class JudgeStoppedError(Exception):
    """The process that computes a program ended without an answer; the text is its last line."""


def run_apart(job: Job) -> ProgramResults:
    """Compute a program in another process.

    Raises:
        JudgeStoppedError: the process ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="outlay-proof-") as folder:
        path = Path(folder, _JOB)
        path.write_bytes(pickle.dumps(job))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": ""}
        environment["JAX_TRACEBACK_FILTERING"] = "off"  # or the last line would be about that
        # -P: a file numpy.py in the current folder is not imported.
        command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
        answer = path.with_name(_ANSWER)
        if done.returncode or not answer.exists():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            why = lines[-1] if lines else "it said nothing"
            raise JudgeStoppedError(f"exit code {done.returncode}: {why[:300]}")
        return pickle.loads(answer.read_bytes())


def compute(job: Job) -> ProgramResults:
    """Compute a program over as many devices of this process."""
    import jax
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from outlay.analysis.hlo.execute.as_function import as_function
    from outlay.analysis.hlo.parse import parse_hlo

    parsed = {text: parse_hlo(text) for text in {job.text, *job.kernels.values()}}
    if job.is_wide:
        from outlay.analysis.hlo.execute.widen_floats import widen_floats

        parsed = {text: widen_floats(module) for text, module in parsed.items()}
    kernels = {name: parsed[text] for name, text in job.kernels.items()}
    names, sizes = (tuple(column) for column in zip(*job.axes, strict=True))
    num_devices = int(np.prod(sizes))
    devices = np.array(jax.devices()[:num_devices]).reshape(sizes)
    mesh = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    in_specs, out_specs = (tuple(PartitionSpec(*spec) for spec in specs) for specs in (job.in_specs, job.out_specs))
    function = jax.jit(
        jax.shard_map(
            as_function(parsed[job.text], names, device_ids=job.device_ids, products=job.products, kernels=kernels),
            mesh=mesh,
            in_specs=(PartitionSpec(), *in_specs),
            out_specs=out_specs,
            check_vma=False,
        )
    )
    exact: list[list[np.ndarray]] = []
    rounded: list[np.ndarray] = []
    differing: set[int] = set()
    for number, arrays in enumerate(job.calls):
        placed = [
            jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, in_specs, strict=True)
        ]
        results = function(np.bool_(False), *placed)
        differing.update(at for at, result in enumerate(results) if _copies_differ(result))
        exact.append([np.asarray(result) for result in results])
        if number == 0:
            rounded = [np.asarray(result) for result in function(np.bool_(True), *placed)]
    return ProgramResults(tuple(exact), rounded, frozenset(differing))


def _copies_differ(array: Any) -> bool:
    """Return whether devices that hold the same part of an array hold different numbers."""
    held: dict[str, bytes] = {}
    return any(
        held.setdefault(str(shard.index), data) != data
        for shard in array.addressable_shards
        for data in (np.asarray(shard.data).tobytes(),)
    )


def main() -> None:
    """Compute the job in the file that the command line names."""
    path = Path(sys.argv[1])
    job: Job = pickle.loads(path.read_bytes())
    from outlay.devices.simulated import simulate

    simulate(int(np.prod([size for _, size in job.axes])))
    path.with_name(_ANSWER).write_bytes(pickle.dumps(compute(job)))
