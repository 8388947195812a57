"""Global arrays over two real processes of four devices each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.multiprocess.run_workers import run_workers

WORKER = Path(__file__).parent / "global_arrays_worker.py"
# One run of all experiments, on a busy machine.
pytestmark = [pytest.mark.newest, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`seen(name)`: what both processes saw in that experiment."""
    folder = tmp_path_factory.mktemp("workers")
    np.save(folder / "small.npy", np.arange(16, dtype=np.float32))
    large = np.lib.format.open_memmap(folder / "large.npy", mode="w+", dtype=np.float32, shape=(64, 2**19))
    large[:, 0] = np.arange(64)
    large.flush()
    np.save(folder / "beyond.npy", np.arange(8) + (np.arange(8) == 6) * 2**40)  # in a slice of the second process
    np.save(folder / "text.npy", np.array(["a"] * 8))
    write_zarr(folder / "x.zarr")
    workers = run_workers(WORKER, folder, num_processes=2, devices_per_process=4)
    return lambda name: [one[name] for one in workers]


def write_zarr(path: Path) -> None:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    store = tensorstore.open(spec, create=True, dtype=tensorstore.int32, shape=[4, 8]).result()
    store.write(np.arange(32, dtype=np.int32).reshape(4, 8)).result()


def test_shard_shapes_of_three_meshes(seen: Any) -> None:
    assert seen("shard_shapes") == 2 * [[2 * [[2048, 2048]], 2 * [[4096, 1024]], 2 * [[1024, 4096]]]]


def test_devices_in_all_and_local_are_shown_once(seen: Any) -> None:
    first, second = seen("devices_shown")
    assert first["local"] == second["local"] == 4
    assert first["text"] == second["text"]
    assert first["text"].count("8 simulated devices in 2 processes") == 1


def test_an_array_of_one_process_is_shown_as_its_own(seen: Any) -> None:
    for process, text in enumerate(seen("local_array")):
        assert f"whole, on device {process}:0" in text
        assert f"local to process {process}" in text
        assert "2048" not in text


def test_numpy_is_put_without_comparing(seen: Any) -> None:
    for process, one in enumerate(seen("put_without_comparing")):
        assert one["mine"] == 4 * [process]  # each keeps its own; jax.device_put compares, and refuses them
        assert "device_put" in one["device_put"]


def test_what_processes_put_is_compared_on_request(seen: Any) -> None:
    first, second = (one["checked"] for one in seen("put_without_comparing"))
    assert first == second
    assert re.search(r"PlaceError: 1 of 2 arrays are not the same in all 2 processes\n  differs: w\n", first)
    assert "process 1 has other values, shape or dtype than process 0" in first
    assert all(one["equal"] == [8] for one in seen("put_without_comparing"))


def test_a_plan_puts_numbers_and_keys_too(seen: Any) -> None:
    assert seen("put_a_plan") == 2 * [{"w": list(range(16)), "b": 3.0, "key": True}]


def test_an_array_does_not_see_what_is_written_to_the_numpy_array_later(seen: Any) -> None:
    assert seen("written_later") == [0.0, 0.0]


def test_global_array_from_local_pieces(seen: Any) -> None:
    first, second = seen("pieces")
    assert np.shape(first["first"]) == (4, 2)
    assert np.ravel(first["first"])[:4].tolist() == [0, 1, 8, 9]
    assert np.ravel(second["first"])[:4].tolist() == [32, 33, 40, 41]
    assert first["whole"]
    assert second["whole"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("short", r"process 0\n    shape \(4, 2\) float32, which implies the global shape \(8, 2\)\n"),
        ("short", r"process 1\n    shape \(3, 2\) float32.*\n    fix: give a piece of shape \(4, 2\)"),
        ("dtype", r"shape \(4,\) float32[^$]*shape \(4,\) int32"),
        ("shape", r"shape \(4,\) float64, asked for a global shape \(16,\)\n    fix: give a piece of shape \(8,\)"),
        ("apart", r"process 0 holds 4 separate blocks under P\('x'\)"),
    ],
)
def test_pieces_that_do_not_fit_are_the_same_error_everywhere(seen: Any, case: str, message: str) -> None:
    first, second = (one[case] for one in seen("pieces_of_wrong_shapes"))
    assert first == second
    assert re.search(message, first), first


def test_a_process_reads_and_holds_only_its_part_of_a_file(seen: Any) -> None:
    for process, one in enumerate(seen("file_by_slices")):
        assert one["first"] == [32 * process + 8 * i for i in range(4)]
        assert one["grown"] < 0.9 * one["bytes"]  # its half of the array, and one slice on the way


def test_zarr_is_read_by_slices(seen: Any) -> None:
    whole = np.arange(32).reshape(4, 8)
    for process, blocks in enumerate(seen("zarr_by_slices")):
        rows = whole[2 * process : 2 * process + 2]
        assert blocks == [rows[:, 2 * i : 2 * i + 2].tolist() for i in range(4)]


def test_a_file_that_one_process_lacks_is_an_error_in_all(seen: Any) -> None:
    for text in seen("file_missing_in_one"):
        assert "cannot be read by 1 of 2 processes\n  cannot read: process 1\n    there is no such file" in text


def test_one_global_array_the_same_picture_everywhere(seen: Any) -> None:
    first, second = seen("pieces")
    assert first["line"] == second["line"] == list(range(8))
    assert first["picture"] == second["picture"]
    assert re.search(r"0:0 +│ +0:1 +│ +0:2 +│ +0:3 +│ +1:0 +│ +1:1 +│ +1:2 +│ +1:3", first["picture"])


def test_fetching_says_what_to_do(seen: Any) -> None:
    for one in seen("fetching"):
        assert one["asarray"].startswith("RuntimeError")  # JAX's own
        assert "np.asarray fails there, outlay.arrays.gather(x) in every process fetches the whole" in one["show"]


def test_gather_everywhere(seen: Any) -> None:
    assert [one["ones"] for one in seen("gathered")] == 2 * [8 * [1.0]]


def test_gather_to_one_process(seen: Any) -> None:
    assert [one["to one"] for one in seen("gathered")] == [None, 8 * [1.0]]
    for one in seen("gathered"):
        assert "there are 2 processes, numbers 0 to 1" in one["nobody"]


def test_gather_keeps_every_bit_by_slabs_and_on_explicit_meshes(seen: Any) -> None:
    first, second = seen("gathered")
    assert first["slabs to one"] is True
    assert second["slabs to one"] is None
    for one in (first, second):
        assert one["bits"]
        assert one["explicit"]
        assert one["slabs"] == [True, True, True]


def test_pencils_and_their_transpose(seen: Any) -> None:
    for one in seen("pencils"):
        devices = np.array([0, 1, 2, 3, 2048, 2049, 2050, 2051])
        assert np.squeeze(one["ab"]).tolist() == devices.reshape(4, 2).tolist()
        assert np.squeeze(one["ba"]).tolist() == devices.reshape(4, 2).T.tolist()
        assert "2048" not in one["text"]


def test_redistribution_keeps_the_values(seen: Any) -> None:
    for one in seen("pencils"):
        assert one["own"] == 4 * [True]
        assert one["same"]


# Of 8 x 16 values of 4 bytes: what the new devices need and do not hold, counted by hand.
MOVED = {
    "trainer to sampler": 512,  # everything, once
    "to whole copies": 4 * 512,  # to each of four devices
    "to more devices": 7 * 64,  # a row to each of eight, but for the last, which holds it
    "to the middle": 512 - 4 * 16,  # each of four holds 2 x 2 of its 2 x 16 values
    "within a process": 512 - 4 * 32,  # each of four holds 2 x 4 of its 8 x 4 values
}


@pytest.mark.parametrize("name", MOVED)
def test_a_state_moves_between_processes_with_no_byte_more_than_is_lacking(seen: Any, name: str) -> None:
    for one in seen("moved"):
        assert all(one[name]["own"] + one[name]["spec"])
        assert one[name]["bytes"] == MOVED[name]
    assert sum(len(one[name]["own"]) for one in seen("moved")) == 3 * {"to more devices": 8}.get(name, 4)


def test_random_keys_move_between_processes(seen: Any) -> None:
    assert [one["keys"]["own"] for one in seen("moved")] == 2 * [4 * [True]]


def test_arrays_of_each_process_are_no_global_array_to_move(seen: Any) -> None:
    first, second = seen("moved")
    assert first["error"] == second["error"]
    assert re.search(
        r"(?s)1 leaf would be moved otherwise.*w.*process 1 has another.*outlay.arrays.put", first["error"]
    )


def test_fft_by_pencils_equals_numpys(seen: Any) -> None:
    assert max(seen("fft")) < 1e-5


def test_pieces_and_slices(seen: Any) -> None:
    whole = np.arange(64).reshape(16, 4)
    for one in seen("sliced"):
        assert one["piece"] == [256, 64]
        assert one["3:9"] == whole[3:9].tolist()
        assert one["placed"] == "P(None, 'x')"
        assert one["explicit"] == [3, 4, 5, 6, 7, 8]


def test_scatter_and_broadcast_from_one_process(seen: Any) -> None:
    for process, one in enumerate(seen("from_one")):
        assert one["scattered"] == [[8 * process + 2 * i, 8 * process + 2 * i + 1] for i in range(4)]
        assert one["slabs"]
        assert one["broadcast"] == list(range(16))
        assert one["bits"] == np.array([-0.0, np.nan, 2**53 + 1.0]).view(np.int64).tolist()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nobody", "no such process: source=2\n    there are 2 processes, numbers 0 to 1"),
        ("nothing", "process 0 is the source\n  no array: process 0\n    passed None"),
        ("two sources", "the source of broadcast is not the same in all 2 processes"),
        ("does not divide", "dim 0 of (12,) has size 12, which is not divisible by x=8\n    fix: pad it to 16"),
    ],
)
def test_a_wrong_source_is_the_same_error_everywhere(seen: Any, case: str, message: str) -> None:
    first, second = (one[case] for one in seen("from_one"))
    assert first == second
    assert message in first


def test_dtypes_of_64_bits_come_in_by_every_way(seen: Any) -> None:
    for one in seen("values_that_come_in"):
        assert one["pieces"] == ["int32", [0, 1, 2, 3, 0, 1, 2, 3]]
        assert one["put"] == one["scatter"] == ["int32", [*range(8)]]
        assert one["keys"] == [True, True, True]
        assert one["labels"] == one["expected labels"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("beyond", r"the piece of process 1\n    int64 1099511627776 at \[1\], which int32"),
        ("masked", r"process 0\n    8 of 8 values are masked"),
        ("file", r"beyond.npy\[6:7\]\n    int64 1099511627782 at \[0\]"),
        ("text", r"cannot be read by 2 of 2 processes\n.*process 0\n    text \(<U1\)"),
    ],
)
def test_a_value_that_is_refused_is_the_same_error_everywhere(seen: Any, case: str, message: str) -> None:
    first, second = (one[case] for one in seen("values_that_come_in"))
    assert first == second
    assert re.search(message, first), first


def test_halos_cross_from_process_to_process(seen: Any) -> None:
    expected = [[(2 * i - 1) % 16, 2 * i, 2 * i + 1, (2 * i + 2) % 16] for i in range(8)]
    assert seen("halos") == 2 * [expected]


def test_what_processes_say_may_be_long(seen: Any) -> None:
    assert seen("long_words") == 2 * [[10, 5010]]


def test_a_barrier_lets_nobody_go_before_all_have_come(seen: Any) -> None:
    times = seen("barrier")
    assert max(one["came"] for one in times) <= min(one["left"] for one in times)
