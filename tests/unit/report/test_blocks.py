import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of, put

from outlay.devices.mesh_info import MeshInfo
from outlay.layout.placement import dims_spec
from outlay.report.array_blocks import blocks_of_map, blocks_on_mesh
from outlay.report.show import show


def rows(blocks):
    """The holders as the documents write them: blocks apart by |, devices by commas."""
    if not isinstance(blocks[0], tuple):
        return ",".join(map(str, blocks))
    return ("|" if not isinstance(blocks[0][0], tuple) else "/").join(rows(block) for block in blocks)


def test_one_device_holds_one_block():
    array = jax.device_put(np.arange(32.0, dtype=np.float32).reshape(4, 8), jax.devices()[0])
    shown = show(array)
    assert shown.blocks.holders == ((0,),)
    assert shown.blocks.bounds == (((0, 4),), ((0, 8),))


def test_two_by_four():
    values = np.arange(32.0, dtype=np.float32).reshape(4, 8)
    array = jax.device_put(values, NamedSharding(mesh_of(x=2, y=4), P("x", "y")))
    shown = show(array)
    assert rows(shown.blocks.by_position) == "0|1|2|3/4|5|6|7"
    assert shown.leaves[0].local_shape == (2, 2)
    assert shown.blocks.slices_of(6) == ((2, 4), (4, 6))
    np.testing.assert_array_equal(array, values)


def test_every_array_of_a_computation_is_shown():
    array = put((4, 8), mesh_of(x=2, y=4), "x", "y")
    shown = show({"input": array, "sin": jax.jit(jax.numpy.sin)(array), "sum": jax.jit(lambda a: a.sum(0))(array)})
    assert [leaf.place for leaf in shown] == ["P('x', 'y')", "P('x', 'y')", "P('y')"]
    assert rows(shown["sum"].blocks.by_position) == "0,4|1,5|2,6|3,7"


def test_eight_blocks():
    assert rows(show(put((8,), mesh_of(i=8), "i")).blocks.by_position) == "0|1|2|3|4|5|6|7"


def test_mesh_four_by_two():
    assert rows(show(put((4, 2), mesh_of(i=4, j=2), "i", "j")).blocks.by_position) == "0|1/2|3/4|5/6|7"


def test_operands():
    mesh = mesh_of(i=4, j=2)
    tree = {
        "x": put((192, 64), mesh, "i", None),
        "w": put((64, 128), mesh, None, "j"),
        "b": put((128,), mesh, "j"),
    }
    shown = show(tree)
    assert rows(shown["x"].blocks.by_position) == "0,1/2,3/4,5/6,7"
    assert rows(shown["w"].blocks.by_position) == "0,2,4,6|1,3,5,7"
    assert rows(shown["b"].blocks.by_position) == "0,2,4,6|1,3,5,7"


def test_product():
    mesh = mesh_of(i=4, j=2)
    x, w, b = put((192, 64), mesh, "i", None), put((64, 128), mesh, None, "j"), put((128,), mesh, "j")
    shown = show(jax.jit(lambda x, w, b: x @ w + b[None])(x, w, b))
    assert rows(shown.blocks.by_position) == "0|1/2|3/4|5/6|7"
    assert shown.leaves[0].local_shape == (48, 64)


@st.composite
def placed(draw):
    """A mesh over eight devices, axes for each dim, and a shape that they divide."""
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (8, 1)]))
    axes = dict(zip("abc", sizes, strict=False))
    num_dims = draw(st.integers(0, 4))
    dims: list[list[str]] = [[] for _ in range(num_dims)]
    for axis in draw(st.permutations(list(axes))):
        target = draw(st.integers(0, num_dims))
        if target < num_dims:
            dims[target].append(axis)
    factors = [draw(st.integers(0 if not dim else 1, 3)) for dim in dims]
    shape = tuple(f * math.prod(axes[a] for a in dim) for f, dim in zip(factors, dims, strict=True))
    return axes, shape, tuple(map(tuple, dims))


@given(placed())
def test_blocks_are_those_of_jax(case):
    axes, shape, dims = case
    mesh = mesh_of(**axes)
    blocks = blocks_on_mesh(shape, dims, MeshInfo.of(mesh))
    sharding = NamedSharding(mesh, dims_spec(dims))
    slices = {device.id: index for device, index in sharding.devices_indices_map(shape).items()}
    for device, index in slices.items():
        expected = tuple(piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True))
        assert blocks.slices_of(device) == expected
    assert blocks == blocks_of_map(shape, slices)


def test_devices_in_another_order_than_their_ids():
    mesh = jax.sharding.Mesh(np.array(jax.devices())[::-1], ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    array = jax.device_put(np.arange(8), NamedSharding(mesh, P("x")))
    assert rows(show(array).blocks.by_position) == "7|6|5|4|3|2|1|0"
    assert {shard.device.id: shard.data[0].item() for shard in array.addressable_shards}[7] == 0


def test_blocks_of_a_sharding_without_mesh():
    index = SingleDeviceSharding(jax.devices()[3]).devices_indices_map((2, 3))
    blocks = blocks_of_map((2, 3), {device.id: slices for device, slices in index.items()})
    assert blocks.by_position == (((3,),),)


def test_slices_of_a_device_that_holds_nothing():
    with pytest.raises(KeyError, match="device 5 holds nothing"):
        show(put((4,), mesh_of(4, x=4), "x")).blocks.slices_of(5)
