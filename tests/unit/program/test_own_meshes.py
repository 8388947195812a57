"""Steps and init functions that name a mesh themselves, as published models do."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.core.error_types import ProgramError

pytestmark = pytest.mark.newest

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def own(*axes, devices=None):
    devices = np.array(jax.devices() if devices is None else devices)
    shape = (len(devices),) if len(axes) == 1 else (2, len(devices) // 2)
    return Mesh(devices.reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))


def experts(mesh, axis):
    """A layer whose experts live on an axis of its own mesh."""

    def step(state, x):
        def own_layer(w, x):
            return jnp.einsum("eij,bi->ebj", w, x)

        mapped = jax.shard_map(own_layer, mesh=mesh, in_specs=(P(axis), P()), out_specs=P(axis))
        return state, {"mean": mapped(state["w"], x).mean()}

    return step


def constrained(mesh, spec):
    def step(state, x):
        hidden = jax.lax.with_sharding_constraint(x @ state["w"][0], NamedSharding(mesh, spec))
        return state, {"mean": hidden.mean()}

    return step


def init(key):
    return {"w": jax.random.normal(key, (8, 8, 4))}


def program(step, init=init, mesh=None, **options):
    options = {"layout": outlay.data_parallel(), "mesh": mesh or outlay.mesh(data=8), **options}
    return outlay.program(step, init, X, **options)


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize(
    "step",
    [
        experts(own("data"), "data"),
        experts(own("expert"), "expert"),
        experts(own("a", "b"), ("a", "b")),
        constrained(own("data"), P("data")),
        constrained(own("a", "b"), P("a", "b")),
    ],
    ids=["shard_map, same mesh", "shard_map, other axis", "shard_map, two axes", "constraint", "constraint, two axes"],
)
def test_a_mesh_over_the_same_devices_runs_and_is_explained(step):
    built = program(step)
    state = built.init(jax.random.key(0))
    expected = jax.jit(step)(jax.device_get(state), X)[1]["mean"]
    assert outlay.explain(built).memory.peak
    np.testing.assert_allclose(built(state, X)[1]["mean"], expected, rtol=1e-5)
    assert jax.sharding.get_abstract_mesh().empty


def test_init_may_name_its_own_mesh_too():
    def init(key):
        draw = jax.shard_map(
            lambda: jax.random.normal(key, (1, 8, 4)), mesh=own("expert"), in_specs=(), out_specs=P("expert"),
            check_vma=False,
        )  # fmt: skip
        return {"w": draw()}

    built = program(experts(own("expert"), "expert"), init)
    assert built.init(jax.random.key(0))["w"].shape == (8, 8, 4)


@pytest.mark.parametrize("make", [experts, constrained])
def test_other_devices_are_all_named_when_the_program_is_made(make):
    half, reversed_ = own("e", devices=jax.devices()[:4]), own("e", devices=jax.devices()[::-1])

    def step(state, x):
        _, first = make(half, "e" if make is experts else P("e"))(state, x)
        return state, {**first, "again": make(reversed_, "e" if make is experts else P("e"))(state, x)[1]["mean"]}

    message = (
        r"(?s)2 lines in the step step name other.*test_own_meshes\.py:\d+\n.*e=4, 4 devices.*runs on "
        r"mesh data=8.*fix: leave mesh= out.*axes there: 'data'.*the same devices in another order"
    )
    with pytest.raises(ProgramError, match=message):
        program(step)


@needs_gpu_compiler
def test_devices_of_this_machine_in_a_program_for_others():
    with pytest.raises(ProgramError, match=r"(?s)1 line.*8 devices from cpu:0 to cpu:7.*H100.*fix: leave mesh= out"):
        program(constrained(own("data"), P("data")), mesh=outlay.mesh(data=8, target="h100:1x8"))


def test_a_mesh_of_its_own_and_the_mesh_of_the_context_do_not_mix():
    def step(state, x):
        x = jax.lax.with_sharding_constraint(x, P("data"))
        return experts(own("expert"), "expert")(state, x)

    with pytest.raises(
        ProgramError, match=r"(?s)the step step names a mesh.*data=8: .*test_own_meshes\.py:\d+\n.*fix: "
    ):
        program(step)


def test_in_mode_manual_a_model_runs_on_pieces_and_splits_nothing_itself():
    def loss(params, batch, keys):
        spread = jax.shard_map(lambda x: x * 2, mesh=own("data"), in_specs=P("data"), out_specs=P("data"))
        return spread(batch @ params["w"][0]).mean(-1), {}

    optimizer = optax.sgd(0.1)
    step = outlay.train_step(loss, optimizer)
    built = program(step, outlay.init_state(init, optimizer), mode="manual")
    with pytest.raises(ProgramError, match=r"(?s)names a mesh.*mode=\"auto\": in mode manual.*JAX says"):
        built.lowered  # noqa: B018


def test_an_axis_that_the_mesh_lacks():
    def step(state, x):
        return state, {"mean": jax.lax.with_sharding_constraint(x, P("model")).mean()}

    with pytest.raises(
        ProgramError,
        match=r"(?s)test_own_meshes\.py:\d+\), and mesh data=8 lacks 1 axis of it.*axis: model\n +known: 'data'",
    ):
        program(step)


def test_annotations_that_name_axes_the_mesh_lacks_are_all_named():
    dense = nn.Dense(8, kernel_init=nn.with_partitioning(nn.initializers.ones, ("in", "modl")))
    layout = outlay.Layout([outlay.replicate()]) + outlay.data_parallel()
    match = (
        r"places a value by P\('in', 'modl'\).*, and mesh data=2,model=4 lacks 2 axes of it:\n  unknown axis: in\n"
        r"(.*\n)+  unknown axis: modl\n    did you mean 'model'\?\n    fix: name an axis of the mesh"
    )
    with pytest.raises(ProgramError, match=match):
        outlay.program(
            lambda state, batch: (state, {}),
            lambda key: dense.init(key, jnp.ones((1, 8))),
            np.ones((8, 8), np.float32),
            layout=layout,
            mesh=outlay.mesh(data=2, model=4),
        )
