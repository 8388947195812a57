"""Products in FP8: rounded as NumPy rounds, found wherever a step multiplies, and the same on any mesh."""

import functools
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.compiles

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 24, 160)).astype(np.float32)
W = (RNG.normal(size=(160, 144)) * 3).astype(np.float32)
C = (RNG.normal(size=(16, 24, 144)) * 1e-4).astype(np.float32)
TYPES = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}


def rounded(x, form="e4m3"):
    """Round with one scale, computed by logarithms in float64."""
    dtype, most = TYPES[form]
    scale = 2.0 ** np.ceil(np.log2(np.abs(x).max() / most))
    return (x / scale).astype(np.float32).astype(dtype).astype(np.float64) * scale


def rounded_in_blocks(x, form, dims):
    """Round each block of 128 entries along some dims, one block at a time."""
    out = np.zeros(x.shape)
    steps = [128 if dim in dims else 1 for dim in range(x.ndim)]
    for start in np.ndindex(*(-(-size // step) for size, step in zip(x.shape, steps, strict=True))):
        at = tuple(slice(i * step, (i + 1) * step) for i, step in zip(start, steps, strict=True))
        out[at] = rounded(x[at], form)
    return out


def gradients(scaling, mode="auto"):
    """Return the sum of a product's entries times C, and its gradients, from a program in FP8."""

    def step(state, batch):
        def loss(w, x):
            return jnp.sum((x @ w) * batch["c"])

        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(state["w"], batch["x"])
        return state, {"loss": value, "w": grads[0], "x": grads[1]}

    layout = outlay.Layout([("w", outlay.layout.fp8(scaling))]) + outlay.data_parallel()
    program = outlay.program(
        step, lambda key: {"w": jnp.asarray(W)}, {"x": X, "c": C}, layout=layout, mesh=outlay.mesh(data=8), mode=mode
    )
    return program(program.init(jax.random.key(0)), {"x": X, "c": C})[1]


def test_a_product_and_its_gradients_are_those_of_numpy():
    got, x, w, g = gradients("current"), rounded(X), rounded(W), rounded(C, "e5m2")
    np.testing.assert_allclose(got["loss"], np.sum(x @ w * C), rtol=1e-5)
    np.testing.assert_allclose(got["x"], g @ w.T, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got["w"], np.einsum("bti,bto->io", x, g), rtol=1e-5, atol=1e-8)
    assert np.abs(got["x"] - C @ W.T).max() > 1e-3 * np.abs(got["x"]).max()  # it has rounded


def test_blocks_along_the_summed_dim_are_those_of_numpy():
    got = gradients("blockwise")
    forward = rounded_in_blocks(X, "e4m3", [2]) @ rounded_in_blocks(W, "e4m3", [0, 1])
    of_x = rounded_in_blocks(C, "e5m2", [2]) @ rounded_in_blocks(W, "e4m3", [0, 1]).T
    of_w = np.einsum("bti,bto->io", rounded_in_blocks(X, "e4m3", [1]), rounded_in_blocks(C, "e5m2", [1]))
    np.testing.assert_allclose(got["loss"], np.sum(forward * C), rtol=1e-5)
    np.testing.assert_allclose(got["x"], of_x, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got["w"], of_w, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
@pytest.mark.parametrize("largest", [448.0, 450.0, 1.75, 1.7500001, 0.0, 3e-12, 1e12, 57344.0])
def test_a_scale_is_the_smallest_power_of_two_that_fits(largest, form):
    from outlay.program.fp8.fp8_scaling import narrowed

    values, scale = narrowed(jnp.array([largest, -largest / 3], jnp.float32), form)
    most = TYPES[form][1]
    assert np.isfinite(values.astype(np.float32)).all()
    if largest:
        assert float(scale) == 2.0 ** np.ceil(np.log2(np.float32(largest).astype(np.float64) / most))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_no_number_stays_none(odd):
    from outlay.program.fp8.fp8_scaling import narrowed

    assert not np.isfinite(narrowed(jnp.array([1.0, odd]), "e4m3").values.astype(np.float32)[1])


WIDTH = 32
BATCH = {"x": X[:, 0, :WIDTH].copy(), "y": X[:, 1, :WIDTH].copy()}


def stacked(params, batch, keys):
    """Run layers by a scan over their stack, each recomputed in the backward pass."""

    @jax.checkpoint
    def layer(x, kernel):
        return jnp.tanh(jnp.einsum("bi,io->bo", x, kernel.astype(jnp.bfloat16))), None

    x, _ = jax.lax.scan(layer, batch["x"].astype(jnp.bfloat16), params["layers"]["kernel"])
    return jnp.mean((x.astype(jnp.float32) - batch["y"]) ** 2, axis=-1), {}


def trained(layout, mode="auto", accumulate=1, steps=3, loss=stacked, schedule=None, **axes):
    """Train; return the losses and the program."""
    kernel = jax.random.normal(jax.random.key(1), (4, WIDTH, WIDTH)) / WIDTH**0.5
    state = outlay.init_state(lambda key: {"layers": {"kernel": kernel}, "scale": jnp.ones(WIDTH)}, optax.adam(1e-2))
    step = outlay.train_step(loss, optax.adam(1e-2), accumulate=accumulate)
    mesh = outlay.mesh(**(axes or {"data": 8}))
    program = outlay.program(step, state, BATCH, layout=layout, mesh=mesh, mode=mode, schedule=schedule)
    now, losses = program.init(jax.random.key(0)), []
    for _ in range(steps):
        now, metrics = program(now, BATCH)
        losses.append(float(metrics["loss"]))
    return losses, program


RULE = ("params.layers.kernel", outlay.layout.fp8())
SPLIT = outlay.fsdp(min_size=16, pattern="params.**.kernel") + outlay.data_parallel()


@functools.cache
def plainly():
    return trained(outlay.data_parallel() + outlay.replicate())[0]


@functools.cache
def in_fp8():
    return trained(outlay.Layout([RULE]) + outlay.data_parallel())


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("mode", "accumulate"), [("auto", 1), ("manual", 1), ("auto", 2)])
def test_a_trained_stack_rounds_alike_on_any_mesh(mode, accumulate):
    losses, program = trained(outlay.Layout([RULE]) + SPLIT, mode, accumulate)
    assert program.passes[0] == "fp8_products"
    assert program.fp8 == "1 product of 1 leaf in FP8 (current scaling, e4m3 forward, e5m2 backward)"
    # Microbatches have scales of their own, and a sum in another order may be rounded to the next number of 8 bits.
    np.testing.assert_allclose(losses[0], in_fp8()[0][0], rtol=1e-6 if accumulate == 1 else 1e-3)
    np.testing.assert_allclose(losses, in_fp8()[0], rtol=1e-3 if accumulate == 1 else 2e-2)
    np.testing.assert_allclose(losses, plainly(), rtol=5e-2)
    assert losses != plainly()


STAGES = outlay.Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=2))])


def test_a_pipeline_multiplies_in_fp8():
    """Each microbatch has scales of its own, which is no mixing of samples."""
    losses, program = trained(STAGES + outlay.Layout([RULE]) + SPLIT, stage=2, data=4)
    assert program.fp8.startswith("1 product of 1 leaf in FP8")
    np.testing.assert_allclose(losses[0], in_fp8()[0][0], rtol=1e-3)
    np.testing.assert_allclose(losses, in_fp8()[0], rtol=2e-2)
    assert losses != plainly()


def of_cast_layers(params, batch, keys):
    """Run layers that are made of the stack before the scan, which a step in stages traces once more at its end."""
    kernels = params["layers"]["kernel"].astype(jnp.bfloat16).astype(jnp.float32)
    x, _ = jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), batch["x"], kernels)
    return jnp.mean((x - batch["y"]) ** 2, axis=-1), {}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("schedule", "loss"), [("1f1b", stacked), ("zb-h1", of_cast_layers)])
def test_stages_that_are_programs_of_their_own_round_as_those_of_one_program(schedule, loss):
    """Each microbatch has the same scales, whoever computes it; sums over devices are in another order."""
    layout = STAGES + outlay.Layout([RULE]) + SPLIT
    expected, _ = trained(layout, loss=loss, stage=2, data=4)
    losses, program = trained(layout, "placed", loss=loss, stage=2, data=4, schedule=schedule)
    assert program.fp8 == "1 product of 1 leaf in FP8 (current scaling, e4m3 forward, e5m2 backward)"
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    assert losses != plainly()


@pytest.mark.parametrize(("policy", "products"), [(None, 4), ("dots_saveable", 3)])
def test_what_a_checkpoint_keeps_is_not_computed_again(policy, products):
    """Products by their policy, and in any case the largest entries of both operands; gradients have a third."""

    def loss(params, batch, keys):
        def layer(x, kernel):
            return jnp.tanh(x @ kernel), None

        saved = policy and getattr(jax.checkpoint_policies, policy)
        inside = jax.checkpoint(layer, policy=saved, prevent_cse=False)
        return jnp.mean((jax.lax.scan(inside, batch["x"], params)[0] - batch["y"]) ** 2, axis=-1), {}

    state = outlay.init_state(lambda key: jnp.ones((4, WIDTH, WIDTH)), optax.sgd(0.1))
    layout = outlay.Layout([("params", outlay.layout.fp8())]) + outlay.data_parallel() + outlay.replicate()
    step = outlay.train_step(loss, optax.sgd(0.1))
    program = outlay.program(step, state, BATCH, layout=layout, mesh=outlay.mesh(data=8))
    text = program.lowered.as_text()
    assert text.count("stablehlo.dot_general") == products
    assert text.count("call @outlay_scale") == 3


def test_the_plan_says_it_and_places_leaves_by_other_rules():
    program = in_fp8()[1]
    assert "products in FP8 (current scaling" in program.plan["params.layers.kernel"].reason
    moments = [leaf for leaf in program.plan if leaf.path.endswith("mu.layers.kernel")]
    assert moments
    assert "FP8" not in moments[0].reason
    with pytest.raises(outlay.errors.LayoutError, match="no rule"):
        outlay.Layout([("w", outlay.layout.fp8())]).plan({"w": W}, outlay.mesh(data=8))


def test_a_program_without_such_a_rule_does_not_enter_it():
    layout = outlay.data_parallel()
    program = outlay.program(
        lambda s, b: (s, b @ s), lambda key: jnp.asarray(W), X[:, 0], layout=layout, mesh=outlay.mesh(data=8)
    )
    assert program.fp8 == ""
    assert program.passes == ()


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(8)(linen.Dense(WIDTH)(x))


def linen_loss(params, x):
    return jnp.mean(Linen().apply({"params": params}, x) ** 2)


def nnx_parts():
    model = nnx.Linear(WIDTH, 8, rngs=nnx.Rngs(0))
    definition, params = nnx.split(model)
    return params, lambda params, x: jnp.mean(nnx.merge(definition, params)(x) ** 2)


def list_loss(params, x):
    for kernel in params:
        x = jax.nn.relu(kernel["kernel"].T.astype(x.dtype) @ x.T).T
    return jnp.mean(x**2)


def picked_loss(params, x):
    return jnp.mean(sum(x @ params["kernel"][i] for i in range(2)) ** 2)


MODELS = {
    "linen": (lambda: Linen().init(jax.random.key(0), X[:1, 0, :WIDTH])["params"], linen_loss, 2),
    "nnx": (lambda: nnx_parts()[0], lambda params, x: nnx_parts()[1](params, x), 1),
    "list": (lambda: [{"kernel": jnp.asarray(W[:WIDTH, :WIDTH])} for _ in range(3)], list_loss, 3),
    "picked": (lambda: {"kernel": jnp.asarray(W[:64, :16].reshape(2, WIDTH, 16))}, picked_loss, 2),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("differentiates", [True, False])
def test_products_are_found_in_any_library_and_step(kind, differentiates):
    make, loss, num = MODELS[kind]

    def step(state, batch):
        if not differentiates:
            return loss(state["params"], batch)
        # Cast outside of what is differentiated, and jitted, as steps of one's own are.
        low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state["params"])
        grads = jax.jit(jax.grad(loss))(low, batch)
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), state["params"], grads)}, None

    layout = outlay.Layout([("params.**", outlay.layout.fp8())]) + outlay.data_parallel()
    program = outlay.program(
        step,
        lambda key: {"params": make()},
        X[:, 0, :WIDTH].astype(jnp.bfloat16),
        layout=layout,
        mesh=outlay.mesh(data=8),
        donate=differentiates,
    )
    assert re.match(rf"{num} products? of ", program.fp8), program.fp8


def test_a_function_with_a_derivative_of_its_own_is_named_and_left():
    @jax.custom_vjp
    def own(x, w):
        return x @ w

    own.defvjp(lambda x, w: (own(x, w), (x, w)), lambda saved, g: (g @ saved[1].T, saved[0].T @ g))

    def step(state, batch):
        def loss(w):
            return jnp.mean(own(batch, w["a"]) @ w["b"])

        return jax.tree.map(lambda w, g: w - g, state, jax.grad(loss)(state)), None

    def make(rules):
        state = {"a": jnp.ones((160, 16)), "b": jnp.ones((16, 4))}
        layout = outlay.Layout(rules) + outlay.data_parallel()
        return outlay.program(step, lambda key: state, X[:, 0], layout=layout, mesh=outlay.mesh(data=8))

    program = make([("*", outlay.layout.fp8())])
    (finding,) = outlay.explain(program).of_kind("not-in-fp8")
    assert re.search(
        r"derivative of its own multiplies stays in the model's dtype: .*test_fp8_products.py:\d+", finding.text
    )
    words = program.fp8
    assert words.startswith("1 product of 1 leaf in FP8")
    assert "as they were: a" in words
    assert re.search(r"as it was, in a function of its own: .*test_fp8_products.py:\d+", words)
    with pytest.raises(
        outlay.errors.ProgramError, match=r'"a", products in FP8.*\n?.*test_fp8_products.py:\d+ multiplies'
    ):
        make([("a", outlay.layout.fp8())])


def test_a_rule_without_a_product_is_refused():
    with pytest.raises(outlay.errors.ProgramError, match=r"no product of this step reads params.scale"):
        trained(outlay.Layout([("params.scale", outlay.layout.fp8())]) + outlay.data_parallel(), steps=0)


def test_explicit_axes_are_refused():
    mesh = outlay.mesh(data=8, explicit=True)
    layout = outlay.Layout([("**", outlay.layout.fp8())]) + outlay.data_parallel()
    with pytest.raises(outlay.errors.ProgramError, match="this is a mesh with explicit axes"):
        outlay.program(lambda s, b: (s, b @ s), lambda key: jnp.asarray(W), X[:, 0], layout=layout, mesh=mesh)


def test_products_beside_split_tensors_sum_over_devices_first():
    """A largest entry is that of the whole tensor, also where each device has some features."""
    layout = outlay.Layout([RULE, ("params.layers.kernel", P(None, None, "model")), ("opt_state.**", P())])
    mesh = outlay.mesh(data=2, model=4)
    kernel = jax.random.normal(jax.random.key(1), (4, WIDTH, WIDTH)) / WIDTH**0.5
    state = outlay.init_state(lambda key: {"layers": {"kernel": kernel}}, optax.adam(1e-2))
    step = outlay.train_step(stacked, optax.adam(1e-2))
    program = outlay.program(step, state, BATCH, layout=layout + outlay.data_parallel(), mesh=mesh)
    now, losses = program.init(jax.random.key(0)), []
    for _ in range(3):
        now, metrics = program(now, BATCH)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses[0], in_fp8()[0][0], rtol=1e-6)
    np.testing.assert_allclose(losses, in_fp8()[0], rtol=1e-3)


def test_verify_tells_what_it_means_from_what_8_bits_round():
    """In float64 both sides mean the same; in their own dtypes the difference is words."""
    answer = outlay.verify(in_fp8()[1], steps=1)
    assert answer.verdict == "same"
    kernel = next(check for check in answer.checks if check.path == "params.layers.kernel")
    assert kernel.replayed is not None
    assert kernel.replayed < 1e-9
    assert kernel.max_abs > 1e-5
    assert re.search(
        r"FP8 costs in step 1.*outputs.loss is off by 0\.\d+%.*updates of the state are off by", str(answer), re.DOTALL
    )


def test_verify_finds_a_fault_in_a_program_in_fp8():
    """One that 8 bits would hide in their own dtypes is seen in float64."""

    def step(state, batch):
        num = jax.sharding.get_abstract_mesh().size or 1  # what depends on the devices is a fault
        return {"w": state["w"] - jax.grad(lambda w: jnp.mean(batch @ w))(state["w"]) * (1 + 1e-3 * num)}, None

    layout = outlay.Layout([("w", outlay.layout.fp8())]) + outlay.data_parallel()
    program = outlay.program(step, lambda key: {"w": jnp.asarray(W)}, X[:, 0], layout=layout, mesh=outlay.mesh(data=8))
    assert outlay.verify(program, steps=1).verdict == "different"


def test_adams_first_step_of_few_samples_is_within_what_8_bits_may_move():
    """Its size is fixed, so where a gradient is smaller than its rounding the whole update of an entry turns round."""
    layers = [64, 128, 128, 16]

    def loss(params, batch, keys):
        hidden = batch["x"]
        for number in range(len(layers) - 1):
            hidden = jax.nn.relu(hidden) @ params[f"kernel{number}"] + params[f"bias{number}"][None]
        return ((hidden - batch["y"]) ** 2).mean(-1), {}

    def init(key):
        kernels = {f"kernel{n}": jax.random.normal(key, layers[n : n + 2]) / 8 for n in range(len(layers) - 1)}
        return kernels | {f"bias{n}": jnp.zeros(layers[n + 1]) for n in range(len(layers) - 1)}

    optimizer = optax.adam(1e-3)
    batch = {"x": jnp.ones((16, 64)), "y": jnp.zeros((16, 16))}
    layout = outlay.Layout([("**.kernel*", outlay.layout.fp8())]) + outlay.data_parallel()
    step, start = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
    answer = outlay.verify(outlay.program(step, start, batch, layout=layout, mesh=outlay.mesh(data=8)), steps=1)
    assert answer.verdict == "same", answer
    norms = re.search(r"at most (\d+\.\d)%\s\(", str(answer))
    assert norms
    assert float(norms[1]) > 50
