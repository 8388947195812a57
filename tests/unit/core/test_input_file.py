"""Only regular files are read: a pipe that nobody writes to would be waited for without end."""

import json
import os
import socket

import jax
import numpy as np
import pytest
import tensorstore

import outlay
from outlay.arrays.from_slices import Unreadable, _npy
from outlay.core.error_types import (
    CheckpointError,
    DataError,
    ExplainError,
    LaunchError,
    LayoutError,
    PlaceError,
    ProgramError,
)
from outlay.core.input_file import check_folder, check_input, open_input, read_text
from outlay.layout.read_layout import read_layout
from outlay.program.compiler_options import _of_file
from outlay.report.explain.explain_diff import read_report
from outlay.slurm.slurm_script import _read
from outlay.train.checkpoint.weight_files import open_weights
from outlay.train.metrics_file import MetricsFile
from outlay.train.recording import open_array


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
@pytest.mark.timeout(120)
def test_every_reader_refuses_a_pipe(name, read, error, pipe):
    with pytest.raises(error, match=name):
        read(pipe(name))


@pytest.mark.timeout(120)
def test_a_pipe_beside_files_of_a_model_or_as_a_plan_is_refused(pipe, tmp_path):
    index = {"weight_map": {"w": "part.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    pipe("part.safetensors")
    with pytest.raises(CheckpointError, match=r"part\.safetensors"):
        open_weights(tmp_path)


def _array_with_a_pipe_as_chunk(folder, driver):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}, "dtype": "float32"}
    array = tensorstore.open(spec, shape=[8], create=True).result()
    array.write(np.ones(8, np.float32)).result()
    chunk = folder / ("c/0" if driver == "zarr3" else "0")
    chunk.unlink()
    os.mkfifo(chunk)
    return folder


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.timeout(120)
def test_an_array_of_which_a_chunk_is_a_pipe_is_refused(driver, tmp_path):
    folder = _array_with_a_pipe_as_chunk(tmp_path / "x", driver)
    where = jax.NamedSharding(outlay.mesh(x=8), jax.P("x"))
    with pytest.raises(PlaceError, match=r"0 in it is a pipe, not a regular file"):
        outlay.arrays.from_file(folder, where)
    with pytest.raises(OSError, match=r"0 in it is a pipe"):
        open_array(folder)


@pytest.mark.timeout(120)
def test_a_checkpoint_of_orbax_with_a_pipe_in_it_is_refused(tmp_path):
    (tmp_path / "_METADATA").write_text("{}")
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "0123")
    with pytest.raises(CheckpointError, match=r"d/0123 in it is a pipe"):
        open_weights(tmp_path)


def test_links_in_a_folder_are_followed_and_all_that_is_odd_is_counted(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "file").touch()
    (inside / "link").symlink_to(outside / "file")
    (inside / "folder").symlink_to(outside)
    (outside / "back").symlink_to(inside)
    (inside / "nothing").symlink_to("missing")
    check_folder(inside)
    os.mkfifo(outside / "pipe")
    (inside / "again").symlink_to(outside / "pipe")
    with pytest.raises(OSError, match="again in it is a pipe, not a regular file, as are 1 more"):
        check_folder(inside)
