"""Mistakes that make JAX say what `outlay doctor --message` knows: each is really made, on eight simulated devices."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MISTAKES: list[tuple[str, tuple[str, ...], Callable[[], Any]]] = []
"""The name of the message, words that its explanation must hold, and the mistake."""


def mistake(name: str, *words: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a mistake, under the name of the message that it makes."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        MISTAKES.append((name, words, make))
        return make

    return add


def mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def on(*spec: Any, kind: AxisType = AxisType.Auto) -> NamedSharding:
    return NamedSharding(mesh(kind), P(*spec))


def split(*spec: Any, kind: AxisType = AxisType.Auto) -> jax.Array:
    """Ones of 8 in each dim of the spec."""
    return jax.device_put(jnp.ones((8,) * len(spec)), on(*spec, kind=kind))


def mapped(function: Callable[..., Any], inputs: P, outputs: P, *args: Any) -> Any:
    return jax.shard_map(function, mesh=mesh(), in_specs=inputs, out_specs=outputs)(*args)


def explicit(function: Callable[..., Any], *specs: tuple[Any, ...]) -> Any:
    """Call a function of arrays split on Explicit axes."""
    with jax.set_mesh(mesh(AxisType.Explicit)):
        return function(*(split(*spec, kind=AxisType.Explicit) for spec in specs))


def add(a: Any, b: Any) -> Any:
    return jax.jit(lambda a, b: a + b)(a, b)


@mistake("incompatible devices", "argument a is on device 0", "devices 0 to 7", "argument a was put on one device")
def _one_device():
    add(jax.device_put(jnp.ones(8), jax.devices()[0]), split("data"))


@mistake("incompatible devices", "argument y was put on one device for good")
def _one_device_without_jit():
    return split("data") + jax.device_put(jnp.ones(8), jax.devices()[3])


@mistake("incompatible devices", "the same devices in another order", "build one mesh")
def _another_order():
    backwards = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("data", "model"))
    add(jax.device_put(jnp.ones(8), NamedSharding(backwards, P("data"))), split("data"))


@mistake("incompatible devices", "two meshes", "devices 0 to 3")
def _another_mesh():
    half = Mesh(np.array(jax.devices()[:4]), ("data",))
    add(jax.device_put(jnp.ones(8), NamedSharding(half, P("data"))), split("data"))


@mistake("incompatible devices", "jit's context mesh on devices 0 to 7", "leave the scope of jax.set_mesh")
def _ambient_mesh():
    array = jax.device_put(jnp.ones(8), jax.devices()[0])
    with jax.set_mesh(mesh()):
        return array + 1


@mistake("incompatible devices", "sharding_constraint inside jit")
def _constrained_elsewhere():
    array = jax.device_put(jnp.ones(8), jax.devices()[0])
    jax.jit(lambda a: jax.lax.with_sharding_constraint(a, on("data")))(array)


@mistake(
    "dim does not divide", "dim 0, of size 10, is not divisible by 4, the devices along 'data'", "pad the dim to 12"
)
def _put():
    jax.device_put(jnp.ones((10, 3)), on("data"))


@mistake("dim does not divide", "dim 1, of size 10", "by 8, the devices along 'data', 'model'", "to 16")
def _put_over_two_axes():
    jax.device_put(jnp.ones((3, 10)), on(None, ("data", "model")))


@mistake("dim does not divide", "dim 0", "of size 10", "by 4")
def _in_shardings():
    jax.jit(lambda a: a, in_shardings=on("data"))(jnp.ones(10))


@mistake("dim does not divide", "dim 0", "of size 10", "by 4")
def _out_shardings():
    jax.jit(lambda a: {"w": a}, out_shardings=on("data"))(jnp.ones(10))


@mistake("dim does not divide", "dim 0", "of size 10", "by 4")
def _constraint():
    jax.lax.with_sharding_constraint(jnp.ones(10), on("data"))


@mistake("dim does not divide", "dim 0, of size 10, is not divisible by 4, the devices along 'data'")
def _explicit():
    with jax.set_mesh(mesh(AxisType.Explicit)):
        jax.reshard(jnp.ones(10), P("data"))


@mistake("dim does not divide", "dim 0 of args[0]['w'], of size 10", "dim 0 of args[0]['b'], of size 9", "'data'")
def _by_hand():
    mapped(lambda tree: tree, P("data"), P("data"), {"w": jnp.ones(10), "b": jnp.ones(9)})


@mistake("axis not in the mesh", "P('modle',) names the axis 'modle'", "did you mean 'model'?")
def _misspelt():
    on("modle")


@mistake("axis used twice", "splits two dims over the axis 'data'")
def _twice():
    on("data", "data")


@mistake("spec longer than the array", "P('data', 'model') has 2 entries, but the rank of the array is 1")
def _too_long():
    jax.device_put(jnp.ones(8), on("data", "model"))


@mistake("spec longer than the array", "P('data', 'model') has 2 entries, but the rank of the array is 1")
def _too_long_by_hand():
    mapped(lambda a: a, P("data", "model"), P("data"), jnp.ones(8))


@mistake("spec longer than the array", "P('data',) has 1 entries, but the rank of the array is 0", "P() for a scalar")
def _scalar_by_hand():
    mapped(lambda a: a.sum(), P("data"), P("data"), jnp.ones(8))


@mistake("trees of shardings differ", "in_shardings[0] is a tree with other children")
def _other_tree():
    jax.jit(lambda a: a, in_shardings=({"w": on(), "b": on()},))({"w": jnp.ones(8)})


@mistake("two meshes", "both are 'data': 4, 'model': 2", "(Auto, Auto)", "(Explicit, Explicit)")
def _two_kinds():
    add(split("data"), split("data", kind=AxisType.Explicit))


@mistake("sharding is not the one of jit", "ask for P()", "float32[8] was placed as P('data',)")
def _placed_otherwise():
    jax.jit(lambda a: a, in_shardings=on())(split("data"))


@mistake("mesh larger than the machine", "the mesh (8, 2) needs more devices than the 8")
def _too_large():
    jax.make_mesh((8, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@mistake("names do not fit the mesh", "the rank of the array of devices is 1, but the number of axis names is 2")
def _names():
    Mesh(np.array(jax.devices()), ("data", "model"))


@mistake("no mesh in context", "there is no mesh")
def _bare_constraint():
    jax.jit(lambda a: jax.lax.with_sharding_constraint(a, P("data")))(jnp.ones(8))


@mistake("no mesh in context", "there is no mesh")
def _bare_put():
    jax.device_put(jnp.ones(8), P("data"))


@mistake("no mesh in context", "there is no mesh")
def _bare_shard_map():
    jax.shard_map(lambda a: a, in_specs=P("data"), out_specs=P("data"))(jnp.ones(8))


@mistake("no mesh in context", "there is no mesh")
def _bare_reshard():
    jax.jit(lambda a: jax.reshard(a, P()))(split("data", kind=AxisType.Explicit))


@mistake("annotated parameter without a mesh", "out_sharding=P('data', None)")
def _annotated():
    from flax import nnx

    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("data", None))
    nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))


@mistake("sum over a split dim", "('data',) on the left and ('data',) on the right")
def _contracting():
    explicit(jnp.dot, (None, "data"), ("data", None))


@mistake("sum over a split dim", "('data',) on the left and ('model',) on the right")
def _contracting_otherwise():
    explicit(jnp.dot, (None, "data"), ("model", None))


@mistake("lookup in a split table", "table float32[8@data,8]", ".at[i].get(out_sharding=P(...))")
def _lookup():
    explicit(lambda table: table[jnp.arange(8)], ("data", None))


@mistake("lookup in a split table", "table float32[8@data,8]")
def _scatter():
    explicit(lambda table, i: table.at[i.astype(int)].add(1.0), ("data", None), ("data",))


@mistake("operands split differently", "the operands of add", "f32[8@data,8], f32[8,8@data]")
def _added():
    explicit(lambda a, b: a + b, ("data", None), (None, "data"))


@mistake("operands split differently", "the operands of mul", "('data', None), ('model', None)")
def _multiplied():
    explicit(lambda a, b: a * b, ("data", None), ("model", None))


@mistake("operands split differently", "float32[8@data,8,8] and float32[8@model,8,8]")
def _batched():
    explicit(jnp.matmul, ("data", None, None), ("model", None, None))


@mistake("operands split differently", "spec=P('data', None)")
def _joined():
    explicit(lambda a, b: jnp.concatenate([a, b]), ("data", None), ("model", None))


@mistake("reshape of a split dim", "float32[8,8@data] to (64,)")
def _reshaped():
    explicit(lambda a: a.reshape(64), (None, "data"))


@mistake("constraint is only an assertion", "the value is P(None,), not P('data',)")
def _asserted():
    explicit(jax.jit(lambda a: jax.lax.with_sharding_constraint(a, P("data"))), (None,))


@mistake("spec of the other kind of axes", "with_sharding_constraint with P('data',)", "shard_map: delete the line")
def _constrained_by_hand():
    mapped(lambda a: jax.lax.with_sharding_constraint(a, P("data")), P("data"), P("data"), jnp.ones(8))


@mistake("spec of the other kind of axes", "together here")
def _constrained_by_hand_with_a_mesh():
    mapped(lambda a: jax.lax.with_sharding_constraint(a, on("data")), P("data"), P("data"), jnp.ones(8))


@mistake("spec of the other kind of axes", "reshard with P('data',)")
def _resharded():
    with jax.set_mesh(mesh()):
        jax.reshard(jnp.ones(8), P("data"))


@mistake("axis without shard_map", "psum talks to the other devices along 'data'")
def _unbound():
    jax.jit(lambda a: jax.lax.psum(a, "data"))(jnp.ones(8))


@mistake("result differs between devices", "on all devices along 'data'", "check_vma=False only hides it")
def _not_summed():
    mapped(lambda a: a.sum(), P("data"), P(), jnp.ones(8))


@mistake("loop starts the same everywhere", "the carry c", "jax.lax.pcast(start, ('data',), to='varying')")
def _scanned():
    mapped(
        lambda a: jax.lax.scan(lambda c, x: (c + x, None), jnp.zeros(()), a)[0][None], P("data"), P("data"), jnp.ones(8)
    )


@mistake("loop starts the same everywhere", "the carry c", "along 'data'")
def _looped():
    mapped(
        lambda a: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + a, jnp.zeros(2)),
        P("data"),
        P("data"),
        jnp.ones(8),
    )


@mistake("argument split otherwise", "float32[8] is P(None,), not P('data',)")
def _not_resharded():
    explicit(lambda a: jax.shard_map(lambda a: a, in_specs=P("data"), out_specs=P("data"))(a), (None,))


@mistake("axis that shard_map does not split", "in_specs names the axis 'pipe'", "'data'", "'model'")
def _misspelt_by_hand():
    mapped(lambda a: a, P("pipe"), P("pipe"), jnp.ones(8))


@mistake("piece does not divide", "all_to_all hands each of 4 devices", "2 is not divisible by 4")
def _exchanged():
    mapped(lambda a: jax.lax.all_to_all(a, "data", 0, 0, tiled=True), P("data"), P("data"), jnp.ones(8))


@mistake("piece does not divide", "reduce_scatter hands each of 4 devices")
def _scattered():
    mapped(lambda a: jax.lax.psum_scatter(a, "data", tiled=True), P("data"), P("data"), jnp.ones(8))


@mistake("array given away", "an array of type float32[8] was donated")
def _read_after_donation():
    array = jnp.ones(8)
    jax.jit(lambda a: a + 1, donate_argnums=0)(array)
    np.asarray(array)


@mistake("array given away", "was donated to an earlier call")
def _called_twice():
    array, step = jnp.ones(8), jax.jit(lambda a: a + 1, donate_argnums=0)
    step(array)
    step(array)


@mistake("donation did not help", "sharding as float32[8]")
def _donated_in_vain():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda a: a.sum(), donate_argnums=0)(jnp.ones(8))


@mistake("donated twice", "arguments 0 and 1")
def _donated_twice():
    array = jnp.ones(8)
    jax.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))(array, array)


@mistake("out of memory", "no room for 1,048,576.00 GiB")
def _too_much():
    jnp.zeros(1 << 50, jnp.uint8).block_until_ready()


@mistake("random key as numpy", "jax.random.key_data(key)")
def _key():
    np.asarray(jax.random.key(0))


@mistake("picture of more than two dims", "outlay.show(tree)")
def _drawn():
    jax.debug.visualize_array_sharding(split("data", None, None))


@mistake("number of devices set too late", "right after `import jax`")
def _set_too_late():
    jax.config.update("jax_num_cpu_devices", 4)


@mistake("distributed start too late", "call it first in main")
def _distributed_too_late():
    jax.distributed.initialize("localhost:1234", num_processes=2, process_id=0)


@mistake("platform that is not there", "the platform 'nonsense' was asked for")
def _platform():
    jax.devices("nonsense")


@mistake("value that left its function", "return the value from the function")
def _leaked():
    stored = []
    jax.jit(stored.append)(1.0)
    return stored[0] + 1
