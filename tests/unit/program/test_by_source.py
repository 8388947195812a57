"""Values that rules name by the module, the function or the line that makes them."""

import cProfile
import functools
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import outlay
from outlay.errors import ProgramError

pytestmark = pytest.mark.newest

WIDTH, NUM_LAYERS = 16, 2
BATCH = np.random.default_rng(0).normal(size=(16, 4, WIDTH)).astype(np.float32)
SPLIT = outlay.fsdp(min_size=8) + outlay.data_parallel()
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
SOURCE = Path(__file__).read_text().splitlines()


def line_with(comment: str) -> str:
    """The rule's pattern for the line of this file that ends so."""
    (number,) = (number for number, line in enumerate(SOURCE, 1) if line.endswith(f"# {comment}"))
    return f"@test_by_source.py:{number}"


def mlp(x, params):
    up = jnp.tanh(x @ params["up"])  # the up projection
    return up @ params["down"]


def block(x, params):
    return x + mlp(x, params)


def scanned(params, batch, keys):
    x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), batch, params)
    return (x**2).mean(axis=(-1, -2)), {}


def checkpointed(params, batch, keys):
    turn = jax.checkpoint(lambda x, layer: (block(x, layer), None), prevent_cse=False)
    x, _ = jax.lax.scan(turn, batch, params)
    return (x**2).mean(axis=(-1, -2)), {}


def unrolled(params, batch, keys):
    x = batch
    for number in range(NUM_LAYERS):
        x = block(x, jax.tree.map(lambda p, number=number: p[number], params))  # each block
    return (x**2).mean(axis=(-1, -2)), {}


def vmapped(params, batch, keys):
    def of_one(x):
        for number in range(NUM_LAYERS):
            x = block(x, jax.tree.map(lambda p, number=number: p[number], params))
        return x

    return (jax.vmap(of_one)(batch) ** 2).mean(axis=(-1, -2)), {}


def jitted(params, batch, keys):
    return scanned(params, jax.jit(lambda x: x)(batch), keys)


def init(key):
    up, down = 0.3 * np.random.default_rng(0).normal(size=(2, NUM_LAYERS, WIDTH, WIDTH)).astype(np.float32)
    return {"up": jnp.asarray(up), "down": jnp.asarray(down)}  # drawn by JAX, they took XLA longer than the step


def program_of(*rules, loss=scanned, mode="auto", batch=BATCH, init=init, mesh=None) -> outlay.Program:
    return outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init, OPTIMIZER),
        batch,
        layout=outlay.Layout(rules) + SPLIT,
        mesh=mesh or outlay.mesh(data=4, model=2),
        mode=mode,
    )


def num_constraints(program: outlay.Program) -> int:
    """How often the lowered step places a value with a dim over `model`."""
    text = program.lowered.as_text()
    return len(re.findall(r"sharding_constraint .*\"model\"", text))


@functools.cache
def on_one_device(loss, init=init):
    """Parameters and loss after a step on one device, without rules."""
    state = jax.jit(outlay.init_state(init, OPTIMIZER))(jax.random.key(0))
    state, metrics = jax.jit(outlay.train_step(loss, OPTIMIZER))(state, BATCH)
    return jax.device_get((state.params, metrics["loss"]))


def assert_same_numbers(program: outlay.Program, loss, init=init) -> None:
    state, metrics = program(program.init(jax.random.key(0)), BATCH)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6),
        (state.params, metrics["loss"]),
        on_one_device(loss, init),
    )


UP = line_with("the up projection")
# What a pattern names does not depend on what transforms the function that it stands in: each loss meets one or two.
PATTERNS_AND_LOSSES = [
    (UP, vmapped),
    *(("@mlp", loss) for loss in (checkpointed, jitted)),
    ("@block.**", unrolled),
    (UP, scanned),
    *(("@mlp", loss) for loss in (scanned, unrolled, vmapped)),
    ("@block.**", checkpointed),
]


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize(("pattern", "loss"), PATTERNS_AND_LOSSES)
def test_same_numbers_and_the_cotangent_follows(loss, pattern):
    program = program_of((pattern, P("data", None, "model")), loss=loss)
    (leaf,) = program.plan.of_kind("intermediate")
    assert (leaf.path, leaf.shape) == (pattern.removesuffix(".**"), (16, 4, WIDTH))
    times = NUM_LAYERS if loss in (unrolled, vmapped) else 1
    # Forward and backward; what is recomputed is placed once more.
    assert num_constraints(program) >= 2 * times
    if pattern == "@mlp":
        assert_same_numbers(program, scanned)  # what all of them compute


@pytest.mark.any_jax
def test_a_loop_of_python_is_placed_at_every_turn():
    program = program_of((line_with("each block"), P("data", None, "model")), loss=unrolled)
    assert num_constraints(program) == 2 * NUM_LAYERS


def test_the_compiler_takes_it():
    rules = outlay.Rule("@absent", P("data"), optional=True), ("@mlp", P(None, None, ("data", "model")))
    plain, placed = (without_gradient(rule) for rule in rules)
    assert plain.compiled.as_text() != placed.compiled.as_text()


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.mlp = Mlp(rngs)

    def __call__(self, x):
        return x + self.mlp(x)


GRAPH = nnx.graphdef(nnx.eval_shape(lambda: Block(nnx.Rngs(0))))  # each worker imports this file


def of_nnx(params, batch, keys):
    return (nnx.merge(GRAPH, params)(batch) ** 2).mean(axis=(-1, -2)), {}


def init_of_nnx(key):
    return nnx.state(Block(nnx.Rngs(0)))


@pytest.mark.any_jax
@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "pattern",
    [
        "@Block.mlp",
        "@Linear",
        *(pytest.param(p, marks=pytest.mark.any_jax) for p in ("@Mlp", "@Block", "@Mlp.up", "@*.up")),
    ],
)
def test_modules_of_nnx(pattern):
    program = program_of((pattern, P("data", None, "model")), loss=of_nnx, init=init_of_nnx)
    (leaf,) = program.plan.of_kind("intermediate")
    assert leaf.path == {"@*.up": "@Mlp.up"}.get(pattern, pattern)
    if pattern in ("@Linear", "@Block.mlp"):  # the others are names of values like these
        assert num_constraints(program) == (4 if pattern == "@Linear" else 2)
    if pattern == "@Block.mlp":
        assert_same_numbers(program, of_nnx, init_of_nnx)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(WIDTH)(jax.nn.relu(nn.Dense(2 * WIDTH)(x)))


def of_linen(params, batch, keys):
    return (Network().apply(params, batch) ** 2).mean(axis=(-1, -2)), {}


@pytest.mark.thorough  # those of NNX and Equinox are tried
@pytest.mark.any_jax  # modules of nnx above
def test_modules_of_linen_and_values_of_several_shapes():
    def made(key):
        return Network().init(key, BATCH)

    program = program_of(("@Dense", P("data", None, "model")), loss=of_linen, init=made)
    shapes = {leaf.path: leaf.shape for leaf in program.plan.of_kind("intermediate")}
    assert shapes == {"@Dense": (16, 4, 2 * WIDTH), "@Dense#2": (16, 4, WIDTH)}
    one = program_of(("@Network.Dense_1", P("data", None, "model")), loss=of_linen, init=made)
    assert [leaf.path for leaf in one.plan.of_kind("intermediate")] == ["@Network.Dense_1"]
    assert_same_numbers(program, of_linen, made)


def forward(state, batch):
    def halves(x):
        return {"first": x * 2, "second": jnp.tanh(x)}

    chosen = jax.lax.cond(batch[0, 0, 0] > 0, lambda x: halves(x)["first"], lambda x: halves(x)["second"], batch)
    return {"y": jax.lax.fori_loop(0, 3, lambda _, x: mlp(x, state), chosen)}


@pytest.mark.any_jax
def test_a_forward_pass_with_branches_and_a_loop_without_an_end():
    rules = [("@halves.*", P("data", None, "model")), ("@mlp", P("data", None, "model"))]
    program = outlay.program(
        forward,
        lambda key: jax.tree.map(lambda x: x[0], init(key)),
        BATCH,
        layout=outlay.Layout(rules) + SPLIT,
        mesh=outlay.mesh(data=4, model=2),
        donate=False,
    )
    paths = [leaf.path for leaf in program.plan.of_kind("intermediate")]
    assert paths == ["@halves.first", "@halves.second", "@mlp"]
    state = program.init(jax.random.key(0))
    expected = forward(jax.device_get(state), BATCH)["y"]
    np.testing.assert_allclose(program(state, BATCH)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough  # test_storing.py
@pytest.mark.any_jax
def test_it_can_be_kept_or_recomputed_too_and_is_proved():
    program = program_of(("@block", outlay.layout.keep()))
    assert program.plan["@block"].stored == "device"
    outlay.verify(program, steps=1).raise_if_different()


@pytest.mark.thorough  # test_verify.py does, of other programs
def test_a_proof_compares_gradients_and_replays_the_step_in_float64():
    verified = outlay.verify(program_of(("@block", P("data"))), steps=1)
    verified.raise_if_different()
    assert [check for check in verified.checks if check.kind == "gradient"]
    assert not [note for note in verified.notes if note.startswith(("gradients were not", "not replayed"))]


@pytest.mark.any_jax
def test_all_rules_that_speak_of_nothing_are_named_with_what_is_near():
    number = int(line_with("the up projection").partition(":")[2])
    rules = [("@Block.mpl", P("data")), (f"@test_by_source.py:{number + 5}", P("data")), ("@nowhere.py:3", P("data"))]
    with pytest.raises(ProgramError, match="3 problems with rules") as error:
        program_of(*rules, loss=of_nnx, init=init_of_nnx)
    assert "did you mean '@Block.mlp'" in str(error.value)
    assert "of_nnx begins on line" in str(error.value)
    assert "no function of such a file" in str(error.value)


@pytest.mark.any_jax
def test_a_rule_with_too_many_dims_names_every_value_with_its_line():
    with pytest.raises(ProgramError, match="1 problem") as error:
        program_of(("@mlp", P("data", None, None, "model")))
    what = r"gives 4 dims, but the value has 3: float32\[16, 4, 16\], made at .*test_by_source.py:\d+"
    assert re.search(what, str(error.value))


@pytest.mark.any_jax
def test_a_dim_that_does_not_divide_is_the_plans_error():
    with pytest.raises(outlay.errors.LayoutError, match="@mlp"):
        program_of(("@mlp", P(None, ("data", "model"))))


def with_own_derivative(params, batch, keys):
    @jax.custom_vjp
    def own(x, params):
        return mlp(x, params)

    own.defvjp(lambda x, params: (own(x, params), params), lambda params, g: (g, jax.tree.map(jnp.zeros_like, params)))
    return (own(batch, jax.tree.map(lambda p: p[0], params)) ** 2).mean(axis=(-1, -2)), {}


def without_gradient(rule):
    """A program without a gradient: all its values are outside of what is differentiated."""

    def step(state, batch):
        return state, {"loss": mlp(batch, state).mean()}

    layer = {"up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH)}
    return outlay.program(
        step,
        lambda key: {name: jnp.ones(shape) for name, shape in layer.items()},
        BATCH,
        layout=outlay.Layout([rule]) + outlay.data_parallel(),
        mesh=outlay.mesh(data=4, model=2),
    )


@pytest.mark.any_jax
def test_a_value_without_a_gradient_is_placed_and_too_many_dims_for_it_are_refused():
    (leaf,) = without_gradient(("@mlp", P("data", None, "model"))).plan.of_kind("intermediate")
    assert leaf.spec == P("data", None, "model")
    with pytest.raises(ProgramError, match="gives 4 dims, but the value has 3"):
        without_gradient(("@mlp", P("data", None, None, "model")))


def test_a_profiler_goes_on_and_a_search_for_leaks_finds_none_of_the_marks():
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        without_gradient(("@mlp", P("data")))
        before = len(profiler.getstats())
        sorted([2, 1])
        "".join("after")
        profiler.disable()
        assert any("join" in str(entry.code) for entry in profiler.getstats()), before
    finally:
        profiler.disable()
    with jax.checking_leaks():
        assert without_gradient(("@mlp", P("data"))).plan.of_kind("intermediate")


def test_what_is_inside_a_jit_with_shardings_of_its_own_is_refused_since_they_would_be_lost():
    mesh = outlay.mesh(data=8)
    split = jax.NamedSharding(mesh, P("data"))

    def inside(x):
        return jnp.tanh(x)

    def step(state, batch):
        return state, {"loss": jax.jit(lambda x: inside(x) * 2, out_shardings=split)(batch).mean()}

    with pytest.raises(ProgramError, match=r"made inside jax\.jit with shardings of its own"):
        outlay.program(
            step,
            lambda key: jnp.ones(()),
            BATCH,
            layout=outlay.Layout([("@*inside", P("data"))]) + outlay.data_parallel(),
            mesh=mesh,
        )


def test_what_is_inside_a_derivative_by_hand_is_refused():
    with pytest.raises(ProgramError, match=r"made inside custom_vjp_call, at .*test_by_source\.py") as error:
        program_of(("@mlp", P("data", None, "model")), loss=with_own_derivative)
    assert "name what the function around it returns" in str(error.value)


@pytest.mark.any_jax
def test_mode_manual_and_explicit_axes_are_refused_in_words():
    with pytest.raises(ProgramError, match="this is mode manual"):
        program_of(("@mlp", P("data", None, "model")), mode="manual")
    with pytest.raises(ProgramError, match="this is a mesh with explicit axes"):
        program_of(("@mlp", P("data", None, "model")), mesh=outlay.mesh(data=4, model=2, explicit=True))


@pytest.mark.any_jax
def test_the_optimizers_part_of_a_training_step_is_out_of_reach():
    def clip(updates, state, params=None):
        return jax.tree.map(jnp.sign, updates), state

    step = outlay.train_step(scanned, transform := optax.GradientTransformation(lambda params: (), clip))
    with pytest.raises(ProgramError, match="made inside the optimizer's part of a training step"):
        outlay.program(
            step,
            outlay.init_state(init, transform),
            BATCH,
            layout=outlay.Layout([("@clip.**", P("model"))]) + SPLIT,
            mesh=outlay.mesh(data=4, model=2),
        )


@pytest.mark.any_jax
def test_an_optional_rule_may_speak_of_nothing():
    layout = [outlay.Rule("@absent", P("data"), optional=True)]
    assert not program_of(*layout).plan.of_kind("intermediate")


@pytest.mark.any_jax
def test_files_write_such_rules(tmp_path):
    file = tmp_path / "layout.toml"
    file.write_text('[[rule]]\nmatch = "@mlp"\nspec = ["data", "-", "model"]\n')
    assert outlay.layout.read_layout(file).rules == outlay.Layout([("@mlp", P("data", None, "model"))]).rules
