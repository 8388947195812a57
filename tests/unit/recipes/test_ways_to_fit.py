import shlex

import jax
import jax.numpy as jnp
import numpy as np
import optax

from outlay.devices.target import Target
from outlay.recipes.find import find_recipe
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe import Recipe
from outlay.recipes.ways_to_fit import Changes
from outlay.search.candidate import Candidate

DEEP = f"{__file__}:deep"
PEAK = 2**30


def deep(batch: int = 32, remat: str = "none", accumulate: int = 1) -> Recipe:
    """Eight layers; each keeps two values for the backward pass, or, where it computes its products again, one."""

    def layer(x, kernel):
        return jnp.tanh(x @ kernel), None

    def loss(params, batch, keys):
        turn = jax.checkpoint(layer) if remat in ("products", "full") else layer
        return (jax.lax.scan(turn, batch["x"], params["kernel"])[0] ** 2).mean((-1, -2)), {}

    examples = {"x": np.ones((64, 256, 8), np.float32)}
    return Recipe.training(
        "deep",
        init_params=lambda key: {"kernel": jnp.ones((8, 8, 8))},
        loss=loss,
        optimizer=optax.adam(0.1),
        train=examples,
        test=examples,
        batch_size=batch,
        steps=2,
        accumulate=accumulate,
    )


def ways(share):
    """What would fit into a share of what a program needs."""
    words = ("--batch", "16")
    prepared = prepare(find_recipe(DEEP, words), layout="fsdp")
    capacity = int(share * PEAK)
    own, plan = Candidate("fsdp", "data=8"), prepared.program.plan
    target = Target.parse("cpu:8")
    ways = Changes(own, plan, "auto", DEEP, words, target, peak=PEAK, capacity=capacity).that_fit()
    assert all(way.num_bytes <= capacity for way in ways)
    return ways


def test_each_way_makes_the_least_change_of_one_kind_and_is_a_command():
    ways_found = ways(0.9)
    changes = [way.candidate.options for way in ways_found]
    assert changes == [(("batch", 8),), (("remat", "products"),), (("accumulate", 2),)]
    for way in ways_found:
        words = shlex.split(way.command)
        assert words[:3] == ["outlay", "explain", DEEP]
        assert words.count("--batch") == 1
        assert words[words.index("--target") :] == ["--target", "cpu:8", "--layout", "fsdp", "--mesh", "data=8"]
        find_recipe(DEEP, words[3 : words.index("--target")])


def test_what_no_change_alone_brings_they_bring_together():
    (way,) = ways(0.4)
    assert way.candidate.options == (("remat", "full"), ("accumulate", 2))
