"""Memory is told by what leaves are, in the words of their library."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx
from tests.contract.shared_models import WIDTH, X, as_step, separate, together

import outlay
from outlay.analysis.attribution.leaves import roles_of

FLOAT, KEY_AND_COUNT = 4, 8 + 4


def test_nnx_variables_are_what_their_types_say_whatever_the_parts_are_called() -> None:
    init, step, _ = separate("regular", "adam")
    with jax.numpy_rank_promotion("allow"):
        program = outlay.program(
            as_step(step), init, X, layout=outlay.data_parallel(), mesh="data=8", parts=("net", "tuner", "sums")
        )
        explanation = outlay.explain(program)
    num_params = WIDTH * WIDTH + 3 * WIDTH
    assert explanation.memory is not None
    assert explanation.memory.state_by_kind == {
        "parameters": num_params * FLOAT,
        "optimizer": (2 * num_params + 2) * FLOAT,  # two moments, two counts
        "batch statistics": 2 * WIDTH * FLOAT,
        "rng state": 3 * KEY_AND_COUNT,
        "metrics": 2 * FLOAT,
        "other state": 0,
    }
    text = str(explanation)
    assert "batch statistics 64 B" in text
    assert "other state 0" not in text
    live = explanation.live_memory
    assert live is not None
    assert live.by_owner()["parameters"] == num_params * FLOAT
    kinds = {one.what for one in live.held if one.owner == "other state"}
    assert kinds == {"batch statistics", "rng state", "metrics"}


def test_the_model_inside_of_its_optimizer_is_parameters_and_unknown_variables_have_their_type() -> None:
    class Cache(nnx.Variable):
        pass

    class Caching(nnx.Module):
        def __init__(self) -> None:
            self.w, self.cache, self.any = nnx.LoRAParam(jnp.ones(3)), Cache(jnp.ones(2)), nnx.Variable(jnp.ones(1))

    model, optimizer = together("tied", "adam")[0](jax.random.key(0))
    assert set(roles_of({"optimizer": nnx.state(optimizer)}).values()) == {"params", "optimizer"}
    roles = roles_of({"optimizer": nnx.state(optimizer)})
    assert roles["optimizer.model.embed.embedding"] == "params"
    moments = optax.adam(0.1).init(nnx.state(model))
    assert set(roles_of({"params": nnx.state(model), "opt_state": moments}).values()) == {"params", "optimizer"}
    assert set(roles_of({"opt_state": moments}).values()) == {"optimizer"}
    assert roles_of({"x": nnx.state(Caching())}) == {"x.any": "", "x.cache": "Cache", "x.w": "params"}
    assert set(roles_of(nnx.state(model)).values()) == {"params"}


def test_other_libraries_are_known_by_the_names_of_their_collections() -> None:
    variables = linen.BatchNorm(use_running_average=False).init(jax.random.key(0), X)
    expected = {"batch_stats.mean": "batch statistics", "batch_stats.var": "batch statistics"}
    assert roles_of(variables) == {**expected, "params.bias": "params", "params.scale": "params"}
    state = {"variables": dict(variables), "rng": jax.random.key(0), "step": jnp.zeros(())}
    assert roles_of(state)["variables.batch_stats.mean"] == "batch statistics"
    assert (roles_of(state)["rng"], roles_of(state)["step"]) == ("rng state", "")
    model: Any = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    opt_state = optax.adam(0.1).init(eqx.filter(model, eqx.is_array))
    assert set(roles_of({"model": model, "opt_state": opt_state}).values()) == {"params", "optimizer"}
