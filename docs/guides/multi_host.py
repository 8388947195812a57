"""JAX's calls for several processes, and Outlay's in their place: the same arrays come out."""

import outlay

job = outlay.join()  # jax.distributed.initialize(coordinator_address, num_processes, process_id)

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

arrays = outlay.arrays

# jax.process_index(), jax.process_count()
assert (job.process, job.num_processes) == (jax.process_index(), jax.process_count())

# mesh_utils.create_hybrid_device_mesh
mesh = outlay.mesh(data=2, model=2, over={"data": "hosts"})
rows, whole = jax.NamedSharding(mesh, P("data")), np.arange(16.0, dtype=np.float32).reshape(4, 4)
mine = whole[2 * job.process : 2 * job.process + 2]


def same(one, other):
    """Compare the shards of this process."""
    for a, b in zip(one.addressable_shards, other.addressable_shards, strict=True):
        assert a.device == b.device
        assert (np.asarray(a.data) == np.asarray(b.data)).all()


# jax.make_array_from_process_local_data, multihost_utils.host_local_array_to_global_array
x = arrays.from_pieces(mine, rows)
same(x, jax.make_array_from_process_local_data(rows, mine))
same(x, multihost_utils.host_local_array_to_global_array(mine, mesh, P("data")))

# jax.make_array_from_callback
same(
    arrays.from_callback(lambda index: whole[index], whole.shape, whole.dtype, rows),
    jax.make_array_from_callback(whole.shape, rows, lambda index: whole[index]),
)

# jax.device_put of what every process has
same(arrays.put(whole, rows), jax.device_put(whole, rows))

# multihost_utils.process_allgather, and to one process only
assert (arrays.gather(x) == multihost_utils.process_allgather(x, tiled=True)).all()
assert (arrays.gather(x, to=0) is None) == (job.process != 0)

# multihost_utils.broadcast_one_to_all, whose others must know shape and dtype
seed = arrays.broadcast(np.uint32(7) if job.process == 0 else None)
assert seed == multihost_utils.broadcast_one_to_all(np.uint32(7 if job.process == 0 else 0))

# multihost_utils.global_array_to_host_local_array
(local,) = {shard.data.shape for shard in x.addressable_shards}
assert multihost_utils.global_array_to_host_local_array(x, mesh, P("data")).shape == local == (2, 4)

# multihost_utils.assert_equal
arrays.put(whole, rows, check_equal=True)
multihost_utils.assert_equal(whole)

# a compiled identity with out_shardings, to move an array
columns = jax.NamedSharding(mesh, P(None, "model"))
same(arrays.reshard(x, columns), jax.jit(lambda x: x, out_shardings=columns)(x))

# multihost_utils.sync_global_devices stays JAX's; at the end processes wait for each other anyway
multihost_utils.sync_global_devices("all are here")

# jax.debug.visualize_array_sharding
if job.process == 0:
    print(outlay.show(x))
