"""Transfers of compiled programs: between slices of TPUs, ragged, and to callbacks, against NumPy and plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of

import outlay
from outlay.analysis.hlo.execute.as_function import num_left_out, unknown_operations
from outlay.analysis.hlo.execute.transferring import check_slices
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.run_compiled import Job, compute
from outlay.core.jax_compat import text_with_constants

pytestmark = pytest.mark.compiles
ROWS = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
SPLIT = P(("data", "model"))


def exchanges(x):
    """One exchange of each kind over `data`, whose second half is another slice."""
    return (
        lax.psum(x, "data") + lax.pmax(x, "data"),
        lax.all_gather(x, "data", tiled=True, axis=1),
        lax.psum_scatter(x, "data", tiled=True),
        lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3)]),
        lax.all_to_all(x, "data", 1, 0, tiled=True),
        x + 10 * lax.axis_index("data") + lax.axis_index("model"),
    )


def mapped(mesh):
    return jax.jit(jax.shard_map(exchanges, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False))


def compiled_for(target, function, *shapes):
    mesh = outlay.mesh(data=4, model=2, target=target)
    shapes = [jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, SPLIT)) for shape, dtype in shapes]
    return mesh, function(mesh).lower(*shapes).compile()


def computed(mesh, compiled, arrays):
    text = text_with_constants(compiled)
    assert unknown_operations(parse_hlo(text)) == ()
    outs = tuple(tuple(at.spec) for at in jax.tree.leaves(compiled.output_shardings))
    devices = tuple(device.id for device in mesh.devices.flat)
    ins = (tuple(SPLIT),) * len(arrays)
    with jax.enable_x64(True):
        return compute(Job(text, (("data", 4), ("model", 2)), ins, outs, (list(arrays),), "float32", {}, devices))


@pytest.mark.thorough  # test_as_function.py has groups
def test_exchanges_between_slices_whose_chips_are_numbered_in_another_order():
    mesh, compiled = compiled_for("tpu-v5e:2x2*2", mapped, (ROWS.shape, jnp.float32))
    assert [device.id for device in mesh.devices.flat] != sorted(device.id for device in mesh.devices.flat)
    assert parse_hlo(compiled.as_text()).num_devices == 4
    answer = computed(mesh, compiled, [ROWS])
    for got, want in zip(answer.exact[0], mapped(mesh_of(data=4, model=2))(ROWS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_ragged_exchange_of_gpus():
    def ragged(mesh):
        def function(rows, output, starts, sizes, ends, received):
            lists = (starts[0], sizes[0], ends[0], received[0])
            return lax.ragged_all_to_all(rows, output, *lists, axis_name=("data", "model"))

        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False))

    sizes = np.random.default_rng(1).integers(0, 3, (8, 8)).astype(np.int32)  # rows from the first to the second
    starts = np.cumsum(sizes, 1, dtype=np.int32) - sizes
    ends = np.cumsum(sizes, 0, dtype=np.int32) - sizes
    rows = np.random.default_rng(2).normal(size=(8, 16, 4)).astype(np.float32)
    output = np.full((8, 16, 4), 7, np.float32)
    want = output.copy()
    for sender, receiver in np.ndindex(8, 8):
        start, end, size = (which[sender, receiver] for which in (starts, ends, sizes))
        want[receiver, end : end + size] = rows[sender, start : start + size]

    arrays = [rows.reshape(-1, 4), output.reshape(-1, 4), starts, sizes, ends, sizes.T.copy()]
    mesh, compiled = compiled_for("h100:1x8", ragged, *((array.shape, array.dtype) for array in arrays))
    assert "ragged-all-to-all" in compiled.as_text()
    np.testing.assert_array_equal(computed(mesh, compiled, arrays).exact[0][0], want.reshape(-1, 4))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("target", ["h100:1x8", "tpu-v5e:2x4"])
def test_a_callback_is_left_out_if_nothing_uses_what_it_returns(target):
    def printing(state, batch):
        jax.debug.print("mean {}", jnp.mean(batch))
        return state + jnp.sum(batch), jnp.mean(batch)

    def calling(state, batch):
        shape = jax.ShapeDtypeStruct(batch.shape, batch.dtype)
        return state + jnp.sum(jax.pure_callback(lambda x: x * 2, shape, batch)), ()

    def module_of(step):
        mesh = outlay.mesh(data=8, target=target)
        program = outlay.program(step, lambda: jnp.zeros(()), ROWS, layout=outlay.data_parallel(), mesh=mesh)
        return parse_hlo(program.compiled.as_text())

    printed, called = module_of(printing), module_of(calling)
    assert unknown_operations(printed) == ()
    assert num_left_out(printed) == 1
    names = {one.name for one in unknown_operations(called)}
    assert any("callback" in name or "recv" in name for name in names)
    assert num_left_out(called) == 0


def test_slices_that_are_mixed_in_the_mesh_are_not_computed():
    check_slices((100000, 100002, 200001, 200000), 2)
    check_slices((0, 1, 2, 3), 4)
    with pytest.raises(ValueError, match="do not follow one another"):
        check_slices((100000, 200000, 100001, 200001), 2)
