"""Convert files of Brains from one format to another."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.files.nir_read import NirBrain, read_nir
from outlay.brain.files.nir_write import check_sayable, write_nir
from outlay.brain.files.read_brain import read_brain
from outlay.brain.files.toml_write import write_toml
from outlay.brain.initializers import KernelFile
from outlay.brain.module import BrainError, Shape, State
from outlay.brain.neuron import Neuron
from outlay.errors import OutputError
from outlay.kit import check_writable, whole_file, write_output

NIR = ".nir"
WRITTEN = (".toml", NIR)


def convert_brain(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    inputs: Mapping[str, Shape] | None = None,
    seed: int = 0,
    dt: float = 1.0,
    force: bool = False,
) -> list[Path]:
    """Write the Brain of a file to another file, in the format that its ending says.

    Args:
        source: a `.toml`, a `.scfg` of Spark, or a `.nir`.
        target: a `.toml` or a `.nir`.
        inputs: shapes of inputs that a `.scfg` does not say.
        seed: from which the kernels of a `.nir` are drawn.
        dt: the time of one step in ms, which a `.nir` does not say.
        force: replace files that are there.

    Returns:
        What was written: the target, and beside it the kernels that a `.nir` held.

    Raises:
        BrainError: the source cannot be read, or holds something that the target cannot say; everything is listed.
    """
    source, target = Path(source), Path(target)
    if target.suffix not in WRITTEN:
        raise BrainError(f"{target} ends in {target.suffix!r}\n  fix: a name that ends in {' or '.join(WRITTEN)}")
    check_writable(target, force=force)
    if source.suffix == NIR:
        return _from_nir(read_nir(source, dt=dt), target, force=force)
    brain = read_brain(source, inputs=inputs)
    if target.suffix == NIR:
        check_sayable(brain)  # before kernels are drawn, which takes longer
        _write_nir(brain, brain.init(jax.random.key(seed)), target)
    else:
        write_brain(brain, target, force=force)
    return [target]


def _from_nir(nir_brain: NirBrain, target: Path, *, force: bool) -> list[Path]:
    if target.suffix == NIR:
        _write_nir(nir_brain.brain, nir_brain.init(jax.random.key(0)), target)
        return [target]
    modules, files = dict(nir_brain.brain.modules), []
    for name in nir_brain.kernels:  # all of them before the first is written
        check_writable(_kernel_file(target, name), force=force)
    for name, kernel in nir_brain.kernels.items():
        file = _kernel_file(target, name)
        content = io.BytesIO()
        np.save(content, kernel)
        write_output(file, content.getvalue(), force=force)
        files.append(file)
        neurons = modules[name]
        assert isinstance(neurons, Neuron)  # nothing else has a kernel
        synapses = dataclasses.replace(neurons.synapses, kernel=KernelFile(str(file)))
        modules[name] = dataclasses.replace(neurons, synapses=synapses)
    write_brain(dataclasses.replace(nir_brain.brain, modules=modules), target, force=force)
    return [target, *files]


def _kernel_file(target: Path, name: str) -> Path:
    return target.with_name(f"{target.stem}.{name}.npy")


def _write_nir(brain: Brain, state: State, target: Path) -> None:
    try:
        with whole_file(target) as unfinished:
            write_nir(brain, state, unfinished)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}\n  fix: another folder") from error


def write_brain(brain: Brain, path: str | os.PathLike, *, force: bool = False) -> None:
    """Write a Brain as TOML, for people to read and change; `read_brain` reads back an equal one.

    What several modules have in common becomes a template, and units stand in comments.

    Args:
        brain: the Brain.
        path: the file.
        force: replace a file that is there; it may have been changed by hand since.

    Raises:
        BrainError: it has modules or components that have no name in files; all are listed.
        OutputError: there is such a file, or it cannot be written.
    """
    file = Path(path)
    write_output(file, write_toml(brain, folder=file.parent), force=force)
