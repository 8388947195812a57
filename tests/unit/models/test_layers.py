"""`outlay.layers`: the user's own loop, bit for bit; and what cannot be layers is said with its path."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import outlay
from outlay.errors import ProgramError
from outlay.models.layers import scan_over_lists

pytestmark = pytest.mark.newest

WIDTH = 4
X = jnp.linspace(-1.0, 1.0, 2 * WIDTH).reshape(2, WIDTH)


def affine(block: Any, x: jax.Array, *, key: Any = None) -> jax.Array:
    x = jnp.tanh(x @ block["w"] + block["b"][None])
    return x if key is None else x * jax.random.uniform(key, (1, WIDTH))


def dicts(num: int = 3) -> list[Any]:
    return [
        {"w": jax.random.normal(key, (WIDTH, WIDTH)), "b": jnp.full((WIDTH,), 0.1)}
        for key in jax.random.split(jax.random.key(0), num)
    ]


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, width: int = WIDTH, rate: float = 0.5) -> None:
        self.linear, self.rate = nnx.Linear(width, width, rngs=rngs), rate
        self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=rngs)  # it holds a key and a counter
        self.activation = lambda x: x * jax.nn.sigmoid(x)  # another object in each block, and the same function

    def __call__(self, x: jax.Array, scale: float = 1.0) -> jax.Array:
        return scale * self.dropout(self.activation(self.linear(x))) + self.rate * x


class Counting(nnx.Module):
    def __init__(self) -> None:
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        return x + self.calls[...]


def in_a_loop(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


def in_a_scan(function: Any, *args: Any) -> Any:
    with scan_over_lists():
        return function(*args)


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize("name", ["nnx", "nnx list", "equinox"])
def test_modules_run_as_in_their_own_loop(name: str) -> None:
    if name == "equinox":
        blocks: Any = tuple(eqx.nn.MLP(WIDTH, WIDTH, 8, 1, key=key) for key in jax.random.split(jax.random.key(1), 3))
        x = X[0]
    else:
        blocks, x = [Mlp(nnx.Rngs(number)) for number in range(3)], X
        blocks = nnx.List(blocks) if name == "nnx list" else blocks
    jit = eqx.filter_jit if name == "equinox" else jax.jit
    expected = jit(in_a_loop)(blocks, x)
    np.testing.assert_array_equal(jit(outlay.layers)(blocks, x), expected)
    np.testing.assert_allclose(in_a_scan(outlay.layers, blocks, x), expected, rtol=1e-6)


@pytest.mark.thorough  # modules run above
@pytest.mark.any_jax
def test_parameters_with_a_function_keys_of_their_own_and_gradients() -> None:
    blocks, keys = dicts(), jax.random.split(jax.random.key(2), 3)

    def loop(blocks: Any, x: Any) -> Any:
        for block, key in zip(blocks, keys, strict=True):
            x = jax.checkpoint(affine)(block, x, key=key)
        return (x**2).sum()

    def lined(blocks: Any, x: Any) -> Any:
        return (outlay.layers(blocks, x, run=jax.checkpoint(affine), each={"key": keys}) ** 2).sum()

    expected = jax.grad(loop)(blocks, X)
    for left, right in zip(jax.tree.leaves(jax.grad(lined)(blocks, X)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(
        jax.tree.leaves(in_a_scan(jax.grad(lined), blocks, X)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7)


def test_a_carry_of_several_arrays_and_arguments_for_all() -> None:
    def run(block: Any, carry: Any, mask: jax.Array, *, power: int) -> Any:
        x, total = carry
        x = affine(block, x) * mask
        return x, total + (x**power).mean()

    args = (dicts(), (X, 0.0), jnp.ones((1, WIDTH)))
    plain = outlay.layers(*args, run=run, power=2)
    for left, right in zip(plain, in_a_scan(lambda: outlay.layers(*args, run=run, power=2)), strict=True):
        # A scan is fused in another way: entries round as the largest one does, which is about 1.
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=2.5e-7)


def test_a_module_that_counts_its_calls_does_so_in_the_loop_and_is_no_pipeline() -> None:
    blocks = [Counting(), Counting()]
    np.testing.assert_array_equal(outlay.layers(blocks, X), X + 2)
    assert [int(block.calls[...]) for block in blocks] == [1, 1]
    with pytest.raises(ProgramError, match=r"blocks.\*.calls(?s:.*)return what changes as part of x"):
        in_a_scan(outlay.layers, blocks, X)


def test_a_scan_holds_one_layer_however_many_there_are() -> None:
    def operations(num: int) -> int:
        with scan_over_lists():
            return len(jax.make_jaxpr(lambda blocks: outlay.layers(blocks, X, run=affine))(dicts(num)).eqns)

    assert operations(2) == operations(9) < 8


OTHERS: dict[str, tuple[Any, str]] = {
    "no layers": ([], r"no layers: blocks(?s:.*)it is empty"),
    "an array": (jnp.ones((3, 4)), r"not a list: blocks(?s:.*)jax.lax.scan"),
    "a dict": ({"layer_0": dicts(1)[0]}, r"blocks is dict; it is a list(?s:.*)\[params\['layer_0'\]"),
    "another shape": (
        [*dicts(2), {"w": jnp.ones((WIDTH, 8)), "b": jnp.ones((WIDTH,))}],
        r"another block: blocks.2.w(?s:.*)float32\[4, 8\], and in blocks.0 float32\[4, 4\]",
    ),
    "another dtype": (
        [*dicts(1), {"w": jnp.ones((WIDTH, WIDTH), jnp.bfloat16), "b": jnp.ones((WIDTH,))}],
        r"blocks.1.w(?s:.*)bfloat16\[4, 4\], and in blocks.0 float32",
    ),
    "a leaf more": ([*dicts(2), {**dicts(1)[0], "gate": jnp.ones(3)}], r"blocks.2.gate(?s:.*)blocks.0 has none"),
    "a leaf less": ([*dicts(2), {"w": dicts(1)[0]["w"]}], r"blocks.2.b(?s:.*)blocks.2 has none"),
    "not callable": (dicts(2), r"blocks.0(?s:.*)it is dict, which cannot be called(?s:.*)run=lambda block, x"),
    "another setting": (
        [Mlp(nnx.Rngs(0)), Mlp(nnx.Rngs(1), rate=0.25)],
        r"another block: blocks.1(?s:.*)0\.25(?s:.*)0\.5",
    ),
    "another number": ([(0.5, jnp.ones(2)), (0.25, jnp.ones(2))], r"blocks.1.0(?s:.*)it is 0.25, and in blocks.0 0.5"),
    "Linen": ([nn.Dense(4), nn.Dense(4)], r"Dense is a module of Linen(?s:.*)nn.scan\(Block"),
}


@pytest.mark.some_cases(11, newest=1)
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_list_of_equal_layers(name: str) -> None:
    blocks, message = OTHERS[name]
    with pytest.raises(ProgramError, match=message):
        outlay.layers(blocks, X)


def test_all_that_differs_is_said_at_once() -> None:
    wide = {"w": jnp.ones((8, 8)), "b": jnp.ones((8,))}
    with pytest.raises(ProgramError) as error:
        outlay.layers([*dicts(2), wide, wide], X, run=affine)
    assert [problem.where for problem in error.value.problems] == [
        "blocks.2.b",
        "blocks.2.w",
        "blocks.3.b",
        "blocks.3.w",
    ]


@pytest.mark.some_cases(6, newest=1)
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda block, x: x[:, :2], r"takes x as float32\[2, 4\] and returns float32\[2, 2\](?s:.*)one width"),
        (lambda block, x: x.astype(jnp.bfloat16), r"returns bfloat16\[2, 4\](?s:.*)x.astype\('bfloat16'\) before"),
        (lambda block, x: (x, x), r"another structure(?s:.*)return what the next layer takes"),
    ],
)
def test_a_layer_that_hands_on_something_else(run: Any, message: str, scanned: bool) -> None:
    def call() -> Any:
        return outlay.layers(dicts(), X, run=run)

    with pytest.raises(ProgramError, match=message):
        in_a_scan(call) if scanned else call()


def test_keys_for_another_number_of_layers() -> None:
    with pytest.raises(ProgramError, match=r"each.key(?s:.*)shape is \(2,\), and there are 3 layers"):
        outlay.layers(dicts(), X, run=affine, each={"key": jax.random.split(jax.random.key(0), 2)})
