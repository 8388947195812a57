"""Only regular files are read: a pipe that nobody writes to would be waited for without end."""

import os

import numpy as np
import pytest
from tests.unit.core.test_input_file import _array_with_a_pipe_as_chunk

import outlay
from outlay.brain.files.read_brain import read_brain
from outlay.brain.initializers import KernelFile
from outlay.brain.module import BrainError
from outlay.brain.run.from_file import read_inputs


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("brain.toml", read_brain),
        ("brain.scfg", read_brain),
        ("graph.nir", lambda path: outlay.brain.read_nir(path)),
        ("kernel.npy", lambda path: KernelFile(str(path))(None, (1, 1), np.float32)),
        ("drive.npy", lambda path: read_inputs([f"drive={path}"])),
        ("drive.csv", lambda path: read_inputs([f"drive={path}"])),
    ],
)
@pytest.mark.timeout(120)
def test_every_reader_of_a_brain_refuses_a_pipe(name, read, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(BrainError, match=name):
        read(tmp_path / name)


@pytest.mark.timeout(120)
def test_an_input_of_which_a_chunk_is_a_pipe_is_refused(tmp_path):
    folder = _array_with_a_pipe_as_chunk(tmp_path / "x", "zarr3")
    with pytest.raises(BrainError, match=r"0 in it is a pipe"):
        read_inputs([f"drive={folder}"])
