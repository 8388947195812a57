"""FP8 of Flax: statistics that travel as gradients are those of the whole batch, as Flax's own TrainState has them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.linen import fp8_ops
from flax.training.train_state import TrainState

import outlay
from outlay.core.error_types import ProgramError
from outlay.train.optimizer_calls import overwritten_paths

pytestmark = [pytest.mark.compiles, pytest.mark.filterwarnings("ignore:The Fp8DotGeneralOp is deprecated")]

STATISTICS = "_overwrite_with_gradient"
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, weight_decay=0.1))
RNG = np.random.default_rng(0)
BATCH = {
    # The largest values are in one half: with two microbatches in both, with 8 devices on four.
    "x": (RNG.normal(size=(16, 8)) * np.repeat([10.0, 1.0], 8)[:, None]).astype(np.float32),
    "y": RNG.normal(size=(16, 8)).astype(np.float32),
}


@functools.cache
def model(kind="Fp8DirectDotGeneralOp"):
    return nn.Dense(8, dot_general_cls=getattr(fp8_ops, kind))


def init(key, kind="Fp8DirectDotGeneralOp"):
    return model(kind).init(key, jnp.ones((2, 8)))


def losses(params, batch, keys):
    (kind,) = (name.removesuffix("_0") for name in params[STATISTICS])
    return jnp.mean((model(kind).apply(params, batch["x"]) - batch["y"]) ** 2, axis=1), {}


def mean_loss(params, batch, keys):
    return losses(params, batch, keys)[0].mean(), {}


@functools.cache
def by_flax(kind="Fp8DirectDotGeneralOp"):
    """Three steps: scales follow from the histories of earlier ones, so those of the first are 1."""
    state = TrainState.create(apply_fn=None, params=init(jax.random.split(jax.random.key(0))[0], kind), tx=OPTIMIZER)
    step = jax.jit(
        lambda state: state.apply_gradients(grads=jax.grad(lambda p: mean_loss(p, BATCH, None)[0])(state.params))
    )
    return jax.device_get(functools.reduce(lambda state, _: step(state), range(3), state).params)


def assert_same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got[STATISTICS], want[STATISTICS])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got["params"], want["params"])


SPLIT = outlay.fsdp(min_size=8) + outlay.data_parallel()


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("kind", "loss", "accumulate", "mode", "layout"),
    [
        ("Fp8DirectDotGeneralOp", losses, 1, "auto", outlay.data_parallel()),
        ("Fp8DotGeneralOp", losses, 2, "auto", SPLIT),
        ("Fp8DirectDotGeneralOp", losses, 1, "manual", SPLIT),
        ("Fp8DotGeneralOp", losses, 2, "manual", outlay.data_parallel()),
        ("Fp8DotGeneralOp", mean_loss, 1, "manual", outlay.data_parallel()),
    ],
)
def test_statistics_are_those_of_the_whole_batch(kind, loss, accumulate, mode, layout):
    step = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate, reduction="mean" if loss is mean_loss else None)
    mesh = outlay.mesh(data=8) if accumulate == 1 else outlay.mesh(data=4, model=2)
    start = outlay.init_state(functools.partial(init, kind=kind), OPTIMIZER)
    program = outlay.program(step, start, BATCH, layout=layout, mesh=mesh, mode=mode)
    state = program.init(jax.random.key(0))
    for _ in range(3):
        state, _ = program(state, BATCH)
    got = jax.device_get(state.params)
    assert_same(got, by_flax(kind))
    assert got[STATISTICS][f"{kind}_0"]["input_amax_history"].max() == np.abs(BATCH["x"]).max()


@pytest.mark.thorough  # the test above overwrites
def test_the_optimizer_may_also_overwrite_them_itself():
    """As users of optax.partition do; labels name these parameters, so the optimizer must be given the whole tree."""
    new = optax.stateless(lambda new, old: jax.tree.map(jnp.subtract, new, old))
    optimizer = optax.partition(
        {"trained": OPTIMIZER, "new": new},
        lambda params: {name: "new" if name == STATISTICS else "trained" for name in params},
    )
    step, state = outlay.train_step(losses, optimizer), outlay.init_state(init, optimizer)(jax.random.key(0))
    step = jax.jit(step)
    for _ in range(3):
        state, _ = step(state, BATCH)
    assert_same(state.params, by_flax())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"groups": 2}, r"such as params\._overwrite_with_gradient.*groups=2 would add several"),
        ({"reduction": "mean", "accumulate": 2}, r'reduction="mean" with accumulate=2 would add several'),
    ],
)
def test_what_would_add_several_of_them_is_refused(how, message):
    loss = mean_loss if "reduction" in how else losses
    step, state = outlay.train_step(loss, OPTIMIZER, **how), outlay.init_state(init, OPTIMIZER)
    with pytest.raises(ProgramError, match=message):
        jax.eval_shape(lambda key: step(state(key), BATCH), jax.random.key(0))


def test_nodes_of_other_libraries_are_known_by_their_class():
    class OverwriteWithGradient(dict):
        pass

    jax.tree_util.register_pytree_with_keys(
        OverwriteWithGradient,
        lambda node: ([(jax.tree_util.DictKey(key), node[key]) for key in node], tuple(node)),
        lambda keys, values: OverwriteWithGradient(zip(keys, values, strict=True)),
    )
    params = {"layer": {"w": 1.0, "fp8": OverwriteWithGradient(scale=1.0)}, "overwrite": 2.0}
    assert overwritten_paths(params) == {"layer.fp8.scale"}
