"""Only regular files are read: a pipe that nobody writes to would be waited for without end."""

import json
import os
import socket

import numpy as np
import pytest

import outlay
from outlay.arrays.from_slices import Unreadable, _npy
from outlay.brain.files.read_brain import read_brain
from outlay.brain.initializers import KernelFile
from outlay.brain.module import BrainError
from outlay.brain.run.from_file import read_inputs
from outlay.core.error_types import CheckpointError, DataError, ExplainError, LaunchError, LayoutError, ProgramError
from outlay.core.input_file import check_input, open_input, read_text
from outlay.jobs.slurm_script import _read
from outlay.layout.read_layout import read_layout
from outlay.program.compiler_options import _of_file
from outlay.report.explain.explain_diff import read_report
from outlay.train.checkpoint.weight_files import open_weights
from outlay.train.metrics_file import MetricsFile


@pytest.fixture
def pipe(tmp_path):
    def make(name):
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


def test_a_pipe_a_device_a_socket_and_a_folder_are_refused_and_a_link_is_followed(pipe, tmp_path):
    (tmp_path / "file").write_text("é\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "null").symlink_to("/dev/zero")
    assert read_text(tmp_path / "link") == "é\n"
    with pytest.raises(OSError, match="it is a pipe, not a regular file"):
        open_input(pipe("pipe"))
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        check_input(tmp_path / "null")
    with pytest.raises(IsADirectoryError):
        check_input(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device or address"):
            check_input(tmp_path / "socket")


@pytest.mark.parametrize(
    ("name", "read", "error"),
    [
        ("mine.toml", read_layout, LayoutError),
        ("brain.toml", read_brain, BrainError),
        ("brain.scfg", read_brain, BrainError),
        ("graph.nir", lambda path: outlay.brain.read_nir(path), BrainError),
        ("kernel.npy", lambda path: KernelFile(str(path))(None, (1, 1), np.float32), BrainError),
        ("drive.npy", lambda path: read_inputs([f"drive={path}"]), BrainError),
        ("drive.csv", lambda path: read_inputs([f"drive={path}"]), BrainError),
        ("model.safetensors.index.json", open_weights, CheckpointError),
        ("weights.npz", open_weights, CheckpointError),
        ("weights.safetensors", open_weights, CheckpointError),
        ("slices.npy", _npy, Unreadable),
        ("report.json", read_report, ExplainError),
        ("program.hlo", lambda path: outlay.explain(path), ExplainError),
        ("options.txt", _of_file, ProgramError),
        ("slurm.sh.j2", _read, LaunchError),
        ("tokens.bin", lambda path: outlay.datasets.tokens(path, 4), DataError),
        ("arrays.npz", lambda path: outlay.datasets.arrays(path), DataError),
        ("metrics.jsonl", lambda path: MetricsFile(path, after=1), CheckpointError),
    ],
)
@pytest.mark.timeout(20)
def test_every_reader_refuses_a_pipe(name, read, error, pipe):
    with pytest.raises(error, match=name):
        read(pipe(name))


@pytest.mark.timeout(20)
def test_a_pipe_beside_files_of_a_model_or_as_a_plan_is_refused(pipe, tmp_path):
    index = {"weight_map": {"w": "part.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    pipe("part.safetensors")
    with pytest.raises(CheckpointError, match=r"part\.safetensors"):
        open_weights(tmp_path)
