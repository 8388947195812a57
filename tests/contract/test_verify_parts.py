"""`verify` of a graph whose part does not work on some rows as on all: the part is named."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from tests.unit.program.waves import graph, init_of, inputs

import outlay
from outlay.graph import subgraph
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.strategies import by_rows


def noise_for_all(height):
    return jax.random.normal(jax.random.key(0), height.shape) * 0.1


def mean_of_all(height):
    return 0.1 * height.mean()


def changed(height_of):
    """Return the causes that `verify` names where a part adds to its rows what only all of them give."""
    whole = graph()
    plain = whole.parts["b"].step

    def step_of_all(state, read):
        after, produced = plain(state, read)
        height = jnp.asarray(after["height"] + height_of(after["height"]))
        return {**after, "height": height}, {**produced, "height": height}

    parts = {**whole.parts, "b": dataclasses.replace(whole.parts["b"], step=step_of_all)}
    step = GraphLoop(type(whole)(parts, whole.outputs))
    mesh = outlay.mesh(devices=jax.devices()[:2], n=2)
    program = outlay.program(step, init_of(step.graph), inputs(), layout=by_rows("n"), mesh=mesh, mode="manual")
    verification = outlay.verify(program, steps=1, batches=[inputs()])
    assert verification.verdict == "different"
    return verification.causes


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("height_of", [noise_for_all, mean_of_all])
def test_a_part_that_looks_at_all_its_rows_is_named(height_of):
    (cause,) = changed(height_of)
    assert cause.startswith("'b' is the first to differ, in step 1 of the graph loop, from the same state and inputs: ")
    assert "half of its rows alone give other numbers than all rows do" in cause
    assert "random numbers must be drawn for each row by the row's number" in cause


@pytest.mark.thorough  # the test above names a part
def test_a_part_that_is_right_is_not_blamed_for_what_its_rows_become_on_the_way(monkeypatch):
    right = subgraph.exchange_rows

    def shifted(*args):
        return jax.tree.map(lambda x: x + jnp.ones((), x.dtype), right(*args))

    monkeypatch.setattr(subgraph, "exchange_rows", shifted)
    (cause, *_) = changed(jnp.zeros_like)
    assert "half of its rows alone give what all rows give, so its own step is not the reason" in cause
    assert "random numbers" not in cause
