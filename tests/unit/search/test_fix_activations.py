"""Findings of activations followed by rules: the all-to-alls of a model that nobody touched go away."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import squared_error, training

import outlay
from outlay.core.constrain import constrain
from outlay.errors import ExplainError
from outlay.layout.strategies import data_parallel

OPTIMIZER = optax.sgd(0.1)


def mlp(x, params):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def loss(params, tokens, keys):
    x = params["embed"][tokens]
    logits = (x + mlp(x, params)) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(-1), {}


def init(key):
    shapes = {"embed": (128, 16), "up": (16, 64), "down": (64, 16)}
    return {name: jax.random.normal(key, shape) * 0.1 for name, shape in shapes.items()}


@pytest.mark.thorough  # the example of outlay.search.fix moves less
@pytest.mark.compiles
def test_less_is_moved_and_the_numbers_stay():
    """An embedding is split along its features, as the compiler then splits all that comes of it."""
    layout = outlay.Layout([("params.embed", P(None, "data"))]) + outlay.fsdp(min_size=8) + outlay.data_parallel()
    made, tokens = outlay.init_state(init, OPTIMIZER), np.zeros((64, 32), np.int32)
    program = outlay.program(outlay.train_step(loss, OPTIMIZER), made, tokens, layout=layout, mesh=outlay.mesh(data=8))
    fix = outlay.fix(program)
    assert fix.after.bytes_per_step < fix.before.bytes_per_step / 5
    assert "all-to-all" in fix.before.by_kind()
    assert "all-to-all" not in fix.after.by_kind()
    assert fix.rules == (outlay.Rule("@mlp", P("data")),)
    assert fix.python == 'layout = outlay.Layout([\n    ("@mlp", P("data")),\n]) + layout'
    shown = str(fix)
    assert "bytes a step" in shown
    assert "kept" in shown
    assert all(line in shown.splitlines() for line in fix.python.splitlines())  # as it is to be pasted
    assert "@mlp" in fix.to_html()
    fixed = program.with_layout(fix.layout)
    assert outlay.explain(fixed).bytes_per_step == fix.after.bytes_per_step
    outlay.verify(fixed, steps=1).raise_if_different()
    assert [one["helps"] for one in fix.to_dict()["tried"]].count(True) == 1


def test_it_says_that_there_is_nothing_to_try():
    fix = outlay.fix(training(data_parallel()))
    assert not fix.tried
    assert fix.layout == data_parallel()
    assert "nothing to try" in str(fix)


@pytest.mark.compiles
def test_it_says_that_nothing_helped():
    def everybody_takes_all(params, batch, keys):
        return squared_error(params, {**batch, "x": constrain(batch["x"], P())}, keys)

    fix = outlay.fix(training(data_parallel(), loss=everybody_takes_all))
    assert fix.tried
    assert not fix.rules
    assert fix.after is fix.before
    assert "nothing helped" in str(fix)


def test_a_program_by_hand_is_refused():
    with pytest.raises(ExplainError, match="this is mode manual"):
        outlay.fix(training(mode="manual"))


def test_explicit_axes_are_refused():
    """Which `outlay.program` refuses for every rule that is tried: better once, and at the door."""
    mesh = outlay.mesh(data=8, explicit=True)
    layout = outlay.Layout([("**", P()), ("batch", P())])
    program = outlay.program(
        lambda state, batch: (state, {}), lambda key: jnp.zeros(2), np.zeros(8), layout=layout, mesh=mesh
    )
    with pytest.raises(ExplainError, match="this is a mesh with explicit axes"):
        outlay.fix(program)
