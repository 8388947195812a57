"""Eight ways to lay out each of the programs that `rank.py` ranks, on eight simulated devices."""

import jax
import jax.numpy as jnp
from _mlp import WIDTH, init_params, losses, optimizer
from jax.sharding import PartitionSpec as P

import outlay
from outlay.recipes.lm import lm

BATCH = 256


def mlp_programs():
    """Return the MLP of the other benchmarks, with a batch large enough to be worth splitting."""
    data, tensor, sharded = outlay.data_parallel(), tensor_parallel(), outlay.fsdp(min_size=0)
    whole = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    batch = {name: jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32) for name in "xy"}
    init, step = outlay.init_state(init_params, optimizer), outlay.train_step(losses, optimizer)
    ways = {
        "replicated 8": ("data=8", whole),
        "dp 8": ("data=8", data),
        "zero1 8": ("data=8", outlay.zero1() + data),
        "fsdp 8": ("data=8", sharded + data),
        "dp+tp 4x2": ("data=4,model=2", tensor + data),
        "fsdp+tp 4x2": ("data=4,model=2", tensor + sharded + data),
        "fsdp+tp 2x4": ("data=2,model=4", tensor + sharded + data),
        "tp 8": ("model=8", tensor + whole),
    }
    return {
        name: outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(mesh))
        for name, (mesh, layout) in ways.items()
    }


def tensor_parallel():
    """Split columns and rows by turns, so that two layers exchange once."""
    columns, rows = P(None, "model"), P("model", None)
    split = [(f"params.{layer}.bias", P("model")) for layer in (0, 2)]
    return outlay.Layout([(f"params.{layer}.kernel", rows if layer % 2 else columns) for layer in range(4)] + split)


def lm_programs():
    """Return the smallest language model under the recipe's own layouts, on good meshes and on bad ones.

    A layout that leaves an axis idle computes the same again along it: the mistake that an estimate must show. The good
    ones are within a tenth of one another here, closer than the clock can tell them apart.
    """
    recipe = lm("tiny")
    whole = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    named = recipe.layouts
    ways = {
        "replicated 8": ("data=8", whole),
        "dp 2x4, 4 idle": ("data=2,model=4", named["dp"]),
        "dp 4x2, 2 idle": ("data=4,model=2", named["dp"]),
        "fsdp 2x4, 4 idle": ("data=2,model=4", named["fsdp"]),
        "dp 8": ("data=8", named["dp"]),
        "fsdp 8": ("data=8", named["fsdp"]),
        "tp 2x4": ("data=2,model=4", named["tp"]),
        "fsdp+tp+sp 2x4": ("data=2,model=4", named["fsdp+tp+sp"]),
    }
    return {
        name: outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=outlay.mesh(mesh))
        for name, (mesh, layout) in ways.items()
    }
