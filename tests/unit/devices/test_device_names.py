"""Devices of several processes by name; in one process they keep their plain ids."""

from __future__ import annotations

import copy
import json
import pickle

import jax
import pytest

from outlay.devices.device_names import format_devices, format_ids
from outlay.devices.mesh_info import DeviceId, MeshInfo, device_id


def devices(*places: tuple[int, int]) -> list[int]:
    return [DeviceId.at(2048 * process + index, process=process, index=index) for process, index in places]


def test_in_one_process_an_id_is_a_number() -> None:
    assert type(device_id(jax.devices()[3])) is int


def test_it_is_compared_and_saved_as_a_number_and_written_by_place() -> None:
    [device] = devices((1, 2))
    assert device == 2050
    assert json.loads(json.dumps({"id": device})) == {"id": 2050}
    assert f"{device}" == "1:2"
    assert str(copy.deepcopy(device)) == str(pickle.loads(pickle.dumps(device))) == "1:2"


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([(1, 0)], "1:0"),
        ([(0, 0), (0, 1)], "0:0-1"),
        ([(p, i) for p in range(2) for i in range(4)], "0-1:0-3"),
        ([(0, 0), (1, 1)], "0:0,1:1"),
        ([(p, i) for p in (0, 2) for i in (0, 1, 3)], "0:0-1,0:3,2:0-1,2:3"),
        ([(p, 2 * i) for p in range(3) for i in range(5)], "0-2:0,0-2:2,..,0-2:8 (15)"),
    ],
)
def test_ranges_of_places(places: list[tuple[int, int]], text: str) -> None:
    assert format_ids(devices(*places)) == text


def test_with_their_noun() -> None:
    assert format_devices(devices((1, 0))) == "device 1:0"


@pytest.mark.parametrize(
    ("places", "hosts", "text"),
    [
        ([(0, 0), (0, 1), (1, 0), (1, 1)], (0, 0, 0, 0), "in 2 processes"),  # on one machine
        ([(0, 0), (0, 1), (1, 0), (1, 1)], (0, 0, 1, 1), "in 2 processes"),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], (0, 0, 1, 1), "in 4 processes on 2 hosts"),
    ],
)
def test_a_mesh_says_how_many_processes_drive_it(places, hosts, text) -> None:
    mesh = MeshInfo((("x", 4),), tuple(devices(*places)), hosts, "simulated")
    assert str(mesh) == f"mesh x=4 (4 simulated devices {text})"
