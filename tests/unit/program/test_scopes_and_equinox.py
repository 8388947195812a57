"""Values that rules name by a module of Equinox or by a `jax.named_scope`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.program.test_by_source import (
    NUM_LAYERS,
    WIDTH,
    assert_same_numbers,
    num_constraints,
    program_of,
)

from outlay.errors import ProgramError

pytestmark = pytest.mark.newest


class Layer(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        self.up, self.down = (eqx.nn.Linear(WIDTH, WIDTH, key=key) for _ in range(2))

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


class Stack(eqx.Module):
    layer: Layer

    def __call__(self, x):
        return x + self.layer(x)


def of_equinox(model, batch, keys):
    return (jax.vmap(jax.vmap(model))(batch) ** 2).mean(axis=(-1, -2)), {}


def init_of_equinox(key):
    return Stack(Layer(jax.random.key(0)))


@pytest.mark.any_jax
@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "pattern",
    [
        "@Stack.layer",
        "@Linear",
        *(pytest.param(p, marks=pytest.mark.any_jax) for p in ("@Layer", "@Stack", "@Layer.up", "@*.up")),
    ],
)
def test_modules_of_equinox(pattern):
    program = program_of((pattern, P("data", None, "model")), loss=of_equinox, init=init_of_equinox)
    (leaf,) = program.plan.of_kind("intermediate")
    assert (leaf.path, leaf.shape) == ({"@*.up": "@Layer.up"}.get(pattern, pattern), (16, 4, WIDTH))
    if pattern in ("@Linear", "@Stack.layer"):  # the others are names of values like these
        assert num_constraints(program) == (4 if pattern == "@Linear" else 2)
    if pattern == "@Stack.layer":
        assert_same_numbers(program, of_equinox, init_of_equinox)


def in_scopes(params, batch, keys):
    x = batch
    for number in range(NUM_LAYERS):
        with jax.named_scope(f"layer{number}"):
            with jax.named_scope("mix"):
                mixed = jnp.tanh(x @ params["up"][number])
            x = x + mixed @ params["down"][number]
    return (x**2).mean(axis=(-1, -2)), {}


def in_scopes_of_a_scan(params, batch, keys):
    def turn(x, layer):
        with jax.named_scope("mix"):
            mixed = jnp.tanh(x @ layer["up"])
        return x + mixed @ layer["down"], None

    with jax.named_scope("stack"):
        x, _ = jax.lax.scan(turn, batch, params)
    return (x**2).mean(axis=(-1, -2)), {}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("pattern", "loss", "paths", "times"),
    [
        pytest.param("@mix", in_scopes, ["@mix"], NUM_LAYERS, marks=pytest.mark.any_jax),
        pytest.param("@layer1.mix", in_scopes, ["@layer1.mix"], 1, marks=pytest.mark.any_jax),
        ("@layer*", in_scopes, ["@layer0", "@layer1"], NUM_LAYERS),
        pytest.param("@mix", in_scopes_of_a_scan, ["@mix"], 1, marks=pytest.mark.any_jax),
        ("@stack", in_scopes_of_a_scan, ["@stack"], 1),
    ],
)
def test_what_leaves_a_named_scope(pattern, loss, paths, times):
    program = program_of((pattern, P("data", None, "model")), loss=loss)
    assert [leaf.path for leaf in program.plan.of_kind("intermediate")] == paths
    assert num_constraints(program) == 2 * times
    if (pattern, loss) in (("@layer1.mix", in_scopes), ("@mix", in_scopes_of_a_scan)):
        assert_same_numbers(program, in_scopes)  # what both of them compute


@pytest.mark.any_jax
def test_a_scope_that_is_misspelt_is_told_what_is_near_and_a_function_of_the_name_goes_first():
    with pytest.raises(ProgramError, match=r"nor is a jax.named_scope called so\n +fix: did you mean '@mix'"):
        program_of(("@mx", P("data", None, "model")), loss=in_scopes)

    def mix(x, layer):
        with jax.named_scope("mix"):
            both = jnp.tanh(x @ layer), jnp.sin(x @ layer)
        return both[0] + both[1]

    def loss(params, batch, keys):
        return (mix(batch, params["up"][0]) ** 2).mean(axis=(-1, -2)), {}

    assert num_constraints(program_of(("@mix", P("data", None, "model")), loss=loss)) == 2
