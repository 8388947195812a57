"""Steps whose state comes in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.error_types import ProgramError

BATCH = np.ones((8, 4), np.float32)


def init(key):
    return jnp.ones((4, 8)), jnp.zeros((), int)


def train(params, count, batch):
    return params - batch.mean(), count + 1, {"mean": batch.mean()}


def program(step=train, init=init, parts=("params", "count")):
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    return outlay.program(step, init, BATCH, layout=layout, mesh="data=8", parts=parts)


def test_the_state_is_a_dictionary_of_the_parts():
    laid_out = program()
    assert [leaf.path for leaf in laid_out.plan.state] == ["count", "params"]
    state, outputs = laid_out(laid_out.init(jax.random.key(0)), BATCH)
    assert (int(state["count"]), float(outputs["mean"])) == (1, 1.0)
    np.testing.assert_array_equal(state["params"], np.zeros((4, 8)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": "params"}, r"parts='params': give one name a part"),
        ({"parts": ["a", "a"]}, r"parts=\['a', 'a'\]: give one name a part"),
        ({"parts": ["a"]}, r"parts=\['a'\]: init must return a tuple of this part, and returned 2 values"),
        (
            {"step": lambda params, count, batch: (params, count)},
            r"must return a tuple of these 2 parts, and the outputs after them, and returned 2 values\n"
            r"  fix: return params, count, outputs",
        ),
        ({"init": lambda key: [1.0, 2.0]}, r"returned a list\n  fix: return params, count"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ProgramError, match=message):
        program(**options)
