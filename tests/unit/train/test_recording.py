import sys

import numpy as np
import pytest

from outlay.core.error_types import DataError, OutputError
from outlay.train.recording import MemoryRecorder, Recording, ZarrRecorder

ROWS = {
    "A:out_spikes": ((3,), np.dtype("int8")),
    "A.soma.potential": ((2, 2), np.dtype("float32")),
    "x:y": ((), np.dtype("float16")),
}


def filled(recorder):
    for start, count in ((0, 4), (4, 0), (10, 3)):
        steps = np.arange(start, start + count)
        rows = {
            name: (np.ones((count, *shape)) * (steps + i).reshape(-1, *[1] * len(shape))).astype(dtype)
            for i, (name, (shape, dtype)) in enumerate(ROWS.items())
        }
        recorder.append(steps, rows)
    return recorder.recording()


@pytest.fixture(params=["memory", "disk"])
def recording(request, tmp_path):
    kind = request.param
    return filled(MemoryRecorder(ROWS, 0.5) if kind == "memory" else ZarrRecorder(tmp_path / "r.zarr", ROWS, 0.5))


def test_rows_come_back_with_their_steps(recording):
    assert recording.steps.tolist() == [0, 1, 2, 3, 10, 11, 12]
    assert recording.times.tolist() == [0, 0.5, 1, 1.5, 5, 5.5, 6]
    assert list(recording) == list(ROWS)
    for i, (name, (shape, dtype)) in enumerate(ROWS.items()):
        assert recording[name].dtype == dtype
        assert recording[name].shape == (7, *shape)
        assert recording[name].reshape(7, -1)[:, 0].tolist() == [i, 1 + i, 2 + i, 3 + i, 10 + i, 11 + i, 12 + i]


def test_an_address_that_was_not_recorded(recording):
    with pytest.raises(KeyError, match="A:out_spike was not recorded: did you mean 'A:out_spikes'"):
        recording["A:out_spike"]


def test_what_is_on_disk_can_be_read_while_the_run_goes_on(tmp_path):
    recorder = ZarrRecorder(tmp_path / "r.zarr", {"A:x": ((2,), np.dtype("float32"))}, 1.0)
    for start in (0, 5):
        recorder.append(np.arange(start, start + 5), {"A:x": np.full((5, 2), start, np.float32)})
        assert len(Recording.read(tmp_path / "r.zarr")["A:x"]) == start + 5


def test_a_recording_is_never_replaced(tmp_path):
    with pytest.raises(OutputError, match="exists, and a recording would replace it"):
        ZarrRecorder(tmp_path, ROWS, 1.0)


def test_other_folders_are_no_recordings(tmp_path):
    with pytest.raises(DataError, match=r"is not a recording of a run\n  fix: the folder recording\.zarr"):
        Recording.read(tmp_path)


def test_without_tensorstore_a_recording_is_still_one(tmp_path, monkeypatch):
    filled(ZarrRecorder(tmp_path / "r.zarr", ROWS, 1.0))
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(DataError, match=r"Zarr needs TensorStore, which is not installed\n  fix: pip install"):
        Recording.read(tmp_path / "r.zarr")
