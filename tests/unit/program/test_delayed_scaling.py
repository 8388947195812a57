"""Delayed scaling: scales of earlier steps, as NumPy and Flax keep them, and the same on any mesh."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from flax.linen import fp8_ops

import outlay

pytestmark = pytest.mark.compiles

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 32)).astype(np.float32)
C = (RNG.normal(size=(16, 24)) * 1e-3).astype(np.float32)
W = (RNG.normal(size=(32, 24)) / 5).astype(np.float32)
SIZES = (1.0, 40.0, 0.1, 0.1)
"""The batches of four steps are so many times as large: the second outgrows the scale of the first."""
TYPES = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}
RULE = ("**.kernel", outlay.layout.fp8("delayed"))
SGD = optax.sgd(1.0)


def needed(x, form="e4m3"):
    """Return the smallest power of two with which an array fits, by logarithms in float64."""
    return 2.0 ** np.ceil(np.log2(np.abs(x).astype(np.float64).max() / TYPES[form][1]))


def rounded(x, scale, form="e4m3"):
    """Round with a scale; what does not fit becomes the largest number."""
    dtype, most = TYPES[form]
    return np.clip(x / scale, -most, most).astype(np.float32).astype(dtype).astype(np.float64) * scale


def weighed(params, batch, keys):
    """A loss whose product is a matrix times a batch, and whose gradient comes in as `c`."""
    return jnp.sum((batch["x"] @ params["kernel"]) * batch["c"], axis=-1), {}


def made(loss, make, batch, layout, mesh, mode="auto", **options):
    step, init = outlay.train_step(loss, SGD, **options), outlay.init_state(make, SGD)
    return outlay.program(step, init, batch, layout=outlay.Layout([RULE]) + layout, mesh=mesh, mode=mode)


def linear():
    return made(weighed, lambda key: {"kernel": jnp.asarray(W)}, {"x": X, "c": C}, outlay.data_parallel(), "data=8")


def trained(program, batches):
    """Return the states of a training, the first one too."""
    states = [program.init(jax.random.key(0))]
    for batch in batches:
        states.append(program(jax.tree.map(jnp.copy, states[-1]), batch)[0])
    return states


def test_steps_are_those_of_numpy():
    """The first has no scales yet; the second cuts off what has grown; the fourth still has room for that."""
    batches, program = [{"x": X * size, "c": C} for size in SIZES], linear()
    states = trained(program, batches)
    scales, history = [1.0, 1.0, 1.0], []
    for size, batch, (before, after) in zip(SIZES, batches, itertools.pairwise(states), strict=True):
        kernel = np.asarray(before.params["kernel"])
        x, g = rounded(X * size, scales[0]), rounded(C, scales[2], "e5m2")
        expected = kernel - x.T @ g / len(X)
        np.testing.assert_allclose(after.params["kernel"], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
        loss = program(jax.tree.map(jnp.copy, before), batch)[1]["loss"]
        np.testing.assert_allclose(loss, np.sum(x @ rounded(kernel, scales[1]) * C) / len(X), rtol=1e-5)
        history.insert(0, [needed(X * size), needed(kernel), needed(C, "e5m2")])
        rows = np.asarray(after.scaling[0])
        np.testing.assert_array_equal(rows[:, : len(history)], np.transpose(history))
        assert not rows[:, len(history) :].any()
        scales = np.max(history, axis=0)
    assert needed(X * SIZES[1]) >= 16 * needed(X)  # so much was cut off that it shows


def test_histories_are_those_of_flax():
    """Flax keeps largest entries: our scales are the powers of two that these need."""
    batches = [{"x": X * size, "c": C} for size in SIZES]
    layer = fp8_ops.Fp8DirectDotGeneralOp(amax_history_length=1024)
    variables = layer.init(jax.random.key(0), X, W, (((1,), (0,)), ((), ())))

    def sums(variables, kernel, batch):
        out = layer.apply(variables, batch["x"], kernel, (((1,), (0,)), ((), ())))
        return jnp.sum(out * batch["c"])

    states, kernels = trained(linear(), batches), []
    for batch, state in zip(batches, states, strict=False):
        kernels.append(np.asarray(state.params["kernel"]))
        variables = jax.grad(sums)(variables, jnp.asarray(kernels[-1]), batch)
    of_flax = variables["_overwrite_with_gradient"]
    for row, (name, form) in enumerate([("input", "e4m3"), ("kernel", "e4m3"), ("output_grad", "e5m2")]):
        # Where Flax puts the newest entry is its own affair.
        largest = np.asarray(of_flax[f"{name}_amax_history"])
        expected = sorted(needed(np.array([one]), form) for one in largest[largest > 0])
        scales = np.asarray(states[-1].scaling[0, row])
        assert sorted(scales[scales > 0]) == expected


def stacked(params, batch, keys):
    def layer(x, of):
        return jnp.tanh(x @ of["kernel"]), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), batch, params["layers"])
    return jnp.mean((x @ params["head"]["kernel"]) ** 2, axis=-1), {}


def stack(key):
    one, two = jax.random.split(key)
    return {
        "layers": {"kernel": jax.random.normal(one, (4, 32, 32)) / 6},
        "head": {"kernel": jax.random.normal(two, (32, 8)) / 6},
    }


STAGES = outlay.Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=2))])
SPLIT = outlay.fsdp("data", min_size=1) + outlay.data_parallel()


@functools.cache
def on_one_device():
    return trained(
        made(stacked, stack, X, outlay.data_parallel(), outlay.mesh(data=1, devices=jax.devices()[:1])), [X, 2 * X, X]
    )


@pytest.mark.parametrize(
    ("layout", "mesh", "mode", "accumulate"),
    [
        (SPLIT, "data=8", "auto", 2),
        (SPLIT, "data=8", "manual", 2),
        pytest.param(SPLIT, "data=8", "manual", 1, marks=pytest.mark.thorough),  # the case above has its pass too
        (STAGES + SPLIT, "stage=2,data=4", "auto", 1),
    ],
)
def test_scales_are_the_same_on_any_mesh(layout, mesh, mode, accumulate):
    """Of all devices, microbatches and layers, whatever order they are computed in."""
    got = trained(made(stacked, stack, X, layout, mesh, mode, accumulate=accumulate), [X, 2 * X, X])
    for one, other in zip(got, on_one_device(), strict=True):
        np.testing.assert_array_equal(one.scaling, other.scaling)
        for leaf, right in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
            np.testing.assert_allclose(leaf, right, rtol=1e-5, atol=1e-6)


def test_what_is_no_number_or_all_zero_leaves_the_history_alone():
    """One step that overflows must not spoil the scales of a thousand."""
    batches = [{"x": X, "c": C}, {"x": np.where(X > 2, np.inf, X), "c": 0 * C}]
    history = np.asarray(trained(linear(), batches)[-1].scaling[0])
    assert (history[:, 1] > 0).all()
    assert not history[[0, 2], 0].any()


def test_evaluation_reads_the_scales_of_the_training():
    """Its state is the training's, and it multiplies with the same scales."""
    train = made(stacked, stack, X, SPLIT, "data=8")
    init = outlay.init_state(stack, SGD)
    test = outlay.program(
        lambda state, batch: stacked(state.params, batch, None)[0].mean(),
        init,
        X,
        layout=outlay.Layout([RULE]) + SPLIT,
        mesh="data=8",
        donate=False,
    )
    state, _ = train(train.init(jax.random.key(0)), X)
    loss = float(test(state, X))
    np.testing.assert_allclose(loss, float(train(state, X)[1]["loss"]), rtol=1e-6)
    assert test.fp8 == train.fp8 == "2 products of 2 leaves in FP8 (delayed scaling, e4m3 forward, e5m2 backward)"


def test_verify_compares_what_is_not_the_layouts_own():
    # Numbers beyond 448 do not fit at first, which is rounding.
    answer = outlay.verify(linear(), steps=2, batches=[{"x": 1000 * X, "c": C}] * 2)
    assert answer.verdict == "same", answer
    paths = [check.path for check in answer.checks]
    assert "grads.kernel" in paths
    assert "scaling" not in paths


def test_what_several_leaves_are_multiplied_with_is_rounded_once():
    def loss(params, batch, keys):
        return jnp.mean((batch @ params["q"]["kernel"]) * (batch @ params["k"]["kernel"]), axis=-1), {}

    program = made(loss, lambda key: {n: {"kernel": jnp.asarray(W)} for n in "qk"}, X, outlay.data_parallel(), "data=8")
    of_k, of_q = np.asarray(trained(program, [X])[-1].scaling)[..., 0]
    assert (of_q[0], of_k[0]) == (needed(X), 0)
    assert (of_q[1:] > 0).all()
    assert (of_k[1:] > 0).all()


def by_hand(state, batch):
    grads = jax.grad(lambda params: stacked(params, batch, None)[0].mean())(state)
    return jax.tree.map(lambda p, g: p - g, state, grads), None


def test_a_step_without_a_place_for_scales_is_refused():
    message = r"no place for a history: .*\n.*\n +fix: outlay.train_step.*\n +or scaling=\"current\""
    with pytest.raises(outlay.errors.ProgramError, match=message):
        outlay.program(by_hand, stack, X, layout=outlay.Layout([RULE]) + SPLIT, mesh="data=8")


def test_stages_that_are_programs_of_their_own_are_refused():
    with pytest.raises(outlay.errors.ProgramError, match=r"do not tell each other.*\n +fix: scaling=\"current\", or"):
        made(stacked, stack, X, STAGES + SPLIT, "stage=2,data=4", "placed")


def test_only_a_layout_with_delayed_scaling_has_a_place_for_it():
    step, init = outlay.train_step(stacked, SGD), outlay.init_state(stack, SGD)
    plain = outlay.program(step, init, X, layout=SPLIT, mesh="data=8")
    assert plain.state_shapes.scaling is None
    for pattern, num in (("**.kernel", 2), ("params.head.kernel", 1), ("**.kernel", 2)):
        plain = plain.with_layout(outlay.Layout([(pattern, outlay.layout.fp8("delayed"))]) + SPLIT)
        assert plain.state_shapes.scaling.shape == (num, 3, 1024)
    # Made with few of them, a program has room for more under another layout.
    few = outlay.Layout([("params.head.kernel", outlay.layout.fp8("delayed"))]) + SPLIT
    made_with_few = outlay.program(step, init, X, layout=few, mesh="data=8")
    assert made_with_few.with_layout(outlay.Layout([RULE]) + SPLIT).state_shapes.scaling.shape == (2, 3, 1024)


def test_gradients_of_each_example_have_scales_together():
    aggregate = optax.contrib.differentially_private_aggregate(1e6, 0.0, jax.random.key(0))
    step = outlay.train_step(weighed, aggregate, per_example_gradients=True)
    init = outlay.init_state(lambda key: {"kernel": jnp.asarray(W)}, aggregate)
    batch = {"x": X, "c": C}
    layout = outlay.Layout([RULE]) + outlay.data_parallel()
    program = outlay.program(step, init, batch, layout=layout, mesh="data=8")
    state, _ = program(program.init(jax.random.key(0)), batch)
    np.testing.assert_array_equal(state.scaling[0, :, 0], [needed(X), needed(W), needed(C, "e5m2")])


class Model(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(32, 24, rngs=rngs)


def of_model(model, batch, keys):
    return jnp.mean(model.up(batch) ** 2, axis=-1), {}


def test_a_state_from_elsewhere_begins_a_history():
    """Of NNX objects too, whose arrays are taken out of them."""
    program = made(of_model, lambda key: Model(nnx.Rngs(key)), X, SPLIT, "data=8")
    plain = outlay.init_state(lambda key: Model(nnx.Rngs(key)), SGD)(jax.random.key(0))
    assert plain.scaling is None
    state, _ = program(program.put(plain), X)
    assert (np.asarray(state.scaling)[..., 0] > 0).all()
