"""Moving arrays between meshes: the values, where they land, and the bytes that travel."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay

SHAPE = (16, 8, 4)


def sharding(devices: slice, spec: P, **axes: int) -> NamedSharding:
    return NamedSharding(outlay.mesh(**axes, devices=jax.devices()[devices]), spec)


ALL, LEFT, RIGHT, MIDDLE = slice(None), slice(4), slice(4, 8), slice(2, 6)
PAIRS = {
    "other dims": (sharding(ALL, P("x"), x=8), sharding(ALL, P(None, "x"), x=8)),
    "the same": (sharding(ALL, P("x"), x=8), sharding(ALL, P("x"), x=8)),
    "to whole copies": (sharding(ALL, P("x"), x=8), sharding(ALL, P(), x=8)),
    "from whole copies": (sharding(ALL, P(), x=8), sharding(ALL, P("x"), x=8)),
    "another mesh of the same devices": (sharding(ALL, P("x", "y"), x=2, y=4), sharding(ALL, P(("y", "x")), x=4, y=2)),
    "to other devices": (sharding(LEFT, P("x"), x=4), sharding(RIGHT, P("x"), x=4)),
    "to other devices, other dims": (sharding(LEFT, P("x"), x=4), sharding(RIGHT, P(None, None, "x"), x=4)),
    "to more devices": (sharding(LEFT, P("x"), x=4), sharding(ALL, P("x"), x=8)),
    "to fewer devices": (sharding(ALL, P("x"), x=8), sharding(MIDDLE, P(None, "x"), x=4)),
    "stages to FSDP": (sharding(ALL, P("stage"), stage=4, data=2), sharding(ALL, P(None, "data"), data=8)),
}


def least_bytes(shape: tuple[int, ...], old: NamedSharding, new: NamedSharding, itemsize: int = 4) -> int:
    """What devices need and do not hold, counted value by value."""
    held, needed = old.devices_indices_map(shape), new.devices_indices_map(shape)
    total = 0
    for device, index in needed.items():
        lacks = np.zeros(shape, bool)
        lacks[index] = True
        if device in held:
            lacks[held[device]] = False
        total += int(lacks.sum()) * itemsize
    return total


@pytest.mark.some_cases(5, newest=2)
@pytest.mark.newest  # whose guard is told of what CPUs fetch
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_values_arrive_where_they_should_without_the_host_and_no_more_bytes_travel_than_needed(pair):
    old, new = pair
    values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    array = jax.device_put(values, old)
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        moved = outlay.arrays.move({"w": array}, new)["w"]
    assert moved.sharding.is_equivalent_to(new, len(SHAPE))
    for shard in moved.addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index])
    np.testing.assert_array_equal(array, values)
    assert outlay.arrays.plan_move({"w": array}, new).bytes_moved == least_bytes(SHAPE, old, new)


SPECS = st.permutations(["x", "y", None]).map(lambda entries: P(*entries))
DEVICES = st.sampled_from([ALL, LEFT, RIGHT, MIDDLE])


@given(SPECS, SPECS, DEVICES, DEVICES, st.sampled_from([(1, 4), (2, 2)]))
def test_every_plan_moves_what_is_lacking(old_spec, new_spec, old_devices, new_devices, sizes):
    def place(devices: slice, spec: P) -> NamedSharding:
        x, y = sizes if devices != ALL else (2, 4)
        return sharding(devices, spec, x=x, y=y)

    old, new = place(old_devices, old_spec), place(new_devices, new_spec)
    planned = outlay.arrays.plan_move(jax.ShapeDtypeStruct(SHAPE, "float32", sharding=old), new)
    assert planned.bytes_moved == least_bytes(SHAPE, old, new)
    # Every value of every new shard comes from one place, which holds it.
    for device, index in new.devices_indices_map(SHAPE).items():
        times = np.zeros(SHAPE, int)
        for piece in planned.pieces:
            if piece.device == device:
                bounds = tuple(slice(*one) for one in piece.bounds)
                times[bounds] += 1
                holds = np.zeros(SHAPE, bool)
                holds[old.devices_indices_map(SHAPE)[piece.source]] = True
                assert holds[bounds].all()
        expected = np.zeros(SHAPE, int)
        expected[index] = 1
        np.testing.assert_array_equal(times, expected)


def test_holders_of_copies_share_the_work():
    copies, others = sharding(LEFT, P(), x=4), sharding(RIGHT, P("x"), x=4)
    planned = outlay.arrays.plan_move(jax.ShapeDtypeStruct((16,), "float32", sharding=copies), others)
    assert sorted(piece.source.id for piece in planned.pieces) == [0, 1, 2, 3]


def test_a_large_piece_travels_in_slabs(monkeypatch):
    monkeypatch.setattr("outlay.arrays.moving.MOST_BYTES", 40)
    old, new = PAIRS["to other devices, other dims"]
    values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(outlay.arrays.move(jax.device_put(values, old), new), values)


def test_a_training_state_goes_to_the_devices_of_a_sampler_and_keeps_keys_and_scalars():
    state = {"w": np.ones((8, 4), np.float32), "step": np.int32(7), "empty": np.zeros((0, 4), np.float32)}
    trainer, sampler = (outlay.mesh(data=4, devices=jax.devices()[some]) for some in (LEFT, RIGHT))
    state["key"] = jax.random.split(jax.random.key(3), 4)
    there = outlay.arrays.put(state, (outlay.fsdp(min_size=1) + outlay.replicate()).plan(state, trainer), trainer)
    plan = outlay.Layout([outlay.replicate()]).plan(state, sampler)
    moved = outlay.arrays.move(there, plan, sampler)
    assert {device for leaf in jax.tree.leaves(moved) for device in leaf.devices()} == set(sampler.devices.flat)
    np.testing.assert_array_equal(jax.random.key_data(moved.pop("key")), jax.random.key_data(state.pop("key")))
    jax.tree.map(np.testing.assert_array_equal, moved, state)


def test_reshard_to_other_devices_goes_the_same_way():
    old, new = PAIRS["to other devices, other dims"]
    array = jax.device_put(np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE), old)
    np.testing.assert_array_equal(outlay.arrays.reshard(array, new), array)


def test_what_has_no_place_cannot_be_moved_and_is_named():
    with pytest.raises(
        outlay.errors.PlaceError,
        match=r"(?s)1 leaf cannot be moved.*a ShapeDtypeStruct lives on no device.*arrays\.put",
    ):
        outlay.arrays.plan_move({"a": jax.ShapeDtypeStruct((8,), "float32")}, PAIRS["the same"][1])


@needs_gpu_compiler
def test_time_on_hardware_that_is_absent_is_that_of_the_busiest_device_over_its_links():
    target = outlay.devices.Target.parse("h100:2x4")
    mesh = outlay.mesh(host=2, x=4, over={"host": "hosts"}, target=target)
    rows, swapped, whole = (NamedSharding(mesh, spec) for spec in (P("x"), P("host"), P()))
    leaf = jax.ShapeDtypeStruct((2**20,), "float32", sharding=rows)  # a megabyte a device, on both hosts
    inside = outlay.arrays.plan_move(leaf, swapped)
    assert inside.bytes_across_hosts == 0
    # On the second host one device each holds the third and the fourth quarter, and three others need them.
    assert inside.seconds(target.hardware) == pytest.approx(3 * 2**20 / target.hardware.intra_host_link_bandwidth)
    one_host = jax.ShapeDtypeStruct((2**20,), "float32", sharding=NamedSharding(mesh, P("host")))
    across = outlay.arrays.plan_move(one_host, whole)
    assert across.bytes_across_hosts == across.bytes_moved == 8 * 2**21
    assert across.seconds(target.hardware) == pytest.approx(2**21 / target.hardware.scale_out_bandwidth)


def test_the_report_names_leaves_and_bytes():
    old, new = PAIRS["to other devices"]
    planned = outlay.arrays.plan_move({"w": jax.ShapeDtypeStruct(SHAPE, "float32", sharding=old)}, new)
    assert "2.0 KiB move from device to device" in str(planned)
    assert planned.to_dict()["between"] == [[0, 4, 512], [1, 5, 512], [2, 6, 512], [3, 7, 512]]
